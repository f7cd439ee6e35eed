"""Sizes of a model, read off its canonical form.

A configuration file may be missing or wrong; the tables and layers of the canonical module are
what runs, so the limits that inputs are checked against come from there.
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import relax

from ibert_tvm.relay_passes.canonical import (
    OPERATORS,
    canonical_calls,
    main_function,
    num_inputs,
    types_of,
)
from ibert_tvm.relay_passes.canonical.operators.attention import Attention
from ibert_tvm.relay_passes.canonical.operators.positions import PositionIds
from ibert_tvm.relay_passes.canonical.operators.tokens import Embedding


@dataclass(frozen=True)
class Sizes:
    """Limits and sizes of a canonical module.

    Parameters
    ----------
    rows
        Rows of the smallest table that each input indexes, that is, its valid ids are below.
    max_sequence_length
        Longest sequence that tables of positions, rotations and biases by distance allow, or the
        only one that images become; None without such a limit.
    table_length
        Longest sequence that tables of positions allow, whatever the rest; None without any.
    padding_index
        Id that RoBERTa-like positions skip; None if positions are absolute or absent.
    hidden_size
        Channels of the last attention, or of the first output if there is none.
    image_size
        Planes, height and width of the images that the module takes, or planes and frames of its
        features; None if it takes tokens.
    """

    rows: dict[str, int]
    max_sequence_length: int | None
    table_length: int | None
    padding_index: int | None
    hidden_size: int
    image_size: tuple[int, ...] | None = None


def measure(module: tvm.IRModule) -> Sizes:
    """Measure a canonical module.

    Parameters
    ----------
    module
        The module.

    Returns
    -------
    Sizes
        Its sizes.
    """
    function = main_function(module)
    inputs = {variable: variable.name for variable in function.params[: num_inputs(function)]}
    positions: dict[relax.Var, PositionIds] = {}
    rows: dict[str, int] = {}
    longest: int | None = None
    biased: int | None = None
    padding: int | None = None
    hidden = 0
    image: tuple[int, ...] | None = None
    most = 0
    for variable in inputs:
        if str(variable.ty.dtype) == "float32":
            image = tuple(int(extent) for extent in variable.ty.shape.values[1:])
    for variable, call in canonical_calls(module):
        operator = OPERATORS[call.op.name].from_dict(call.attrs)
        limit = operator.longest(types_of(call))
        if limit is not None:
            biased = min(biased or limit, limit)
        if isinstance(operator, PositionIds):
            positions[variable] = operator
        elif isinstance(operator, Embedding):
            table, ids = call.args
            count = int(table.ty.shape.values[0])
            if ids in inputs:
                rows[inputs[ids]] = min(count, rows.get(inputs[ids], count))
            else:
                numbers = positions[ids]
                padding = numbers.padding_index if numbers.kind == "roberta" else padding
                usable = numbers.served_by(count)
                longest = usable if longest is None else min(longest, usable)
        elif isinstance(operator, Attention):
            hidden = int(variable.ty.shape.values[2])
            if image is not None:
                longest = max(longest or 0, int(variable.ty.shape.values[1]))
        if image is not None and variable.ty.ndim == 3:
            most = max(most, int(variable.ty.shape.values[1]))
    if longest is None and most:  # without attention
        longest = most
    if not hidden:
        first = function.body.body.ty
        first = first.fields[0] if isinstance(first, relax.TupleType) else first
        hidden = int(first.shape.values[-1])
    limits = [limit for limit in (longest, biased) if limit is not None]
    return Sizes(rows, min(limits, default=None), longest, padding, hidden, image)
