"""Keys on an asymmetric grid, made symmetric without changing what the model computes.

Attention takes symmetric int8. A constant added to every element of every key adds, for each query,
the same number to all of its scores, and softmax does not see that. So keys on a grid of 0..255
around a zero point can be counted from 128: their layer's bias takes the difference, and every
integer of the grid is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax

from ibert_tvm.relay_passes.canonical import canonical_calls, main_function, value_name

from ...common.types import Array
from ..given import GivenReader, GivenScale

_KEYS = 1
"""Position of the keys among the operands of attention."""


def centre_keys(
    module: tvm.IRModule,
    parameters: Mapping[str, NDArray[np.float32]],
    readers: Mapping[str, tuple[GivenReader, ...]],
) -> tuple[dict[str, Array], dict[str, tuple[GivenReader, ...]], tuple[str, ...]]:
    """Shift keys so that their grid is symmetric.

    Parameters
    ----------
    module
        A canonical module.
    parameters
        Its weights.
    readers
        How values are rounded for their readers.

    Returns
    -------
    parameters
        With the biases of some key layers changed.
    readers
        With the zero points of their grids in the middle.
    names : tuple of str
        Canonical names of the keys that were shifted.
    """
    arrays, result, names = dict(parameters), dict(readers), []
    calls = list(canonical_calls(module))
    uses: dict[relax.Var, list[tuple[str, int]]] = {}
    for _, call in calls:
        for index, argument in enumerate(call.args):
            uses.setdefault(argument, []).append((str(call.op.name), index))
    returned = set(relax.analysis.free_vars(main_function(module).body.body))
    for variable, call in calls:
        name = value_name(call)
        only_key = uses.get(variable) == [("canonical.attention", _KEYS)]
        if call.op.name != "canonical.linear" or not only_key or variable in returned:
            continue
        scale = _movable(readers.get(name, ()))
        bias = call.args[2]
        if scale is None or len(uses[bias]) > 1:
            continue
        middle = (scale.low + scale.high + 1) // 2
        shift = float(scale.scale) * (int(scale.zero_point) - middle)
        arrays[bias.name] = (parameters[bias.name] + np.float64(shift)).astype(np.float32)
        moved = replace(scale, zero_point=np.asarray(middle, np.int64))
        result[name] = tuple(
            replace(reader, scale=moved if reader.scale is not None else None)
            for reader in readers[name]
        )
        names.append(name)
    return arrays, result, tuple(names)


def _movable(readers: tuple[GivenReader, ...]) -> GivenScale | None:
    """The one grid of all readers, if it is asymmetric and fits int8 around its middle."""
    scales = [reader.scale for reader in readers if reader.scale is not None]
    if not scales or not all(scale.same_as(scales[0]) for scale in scales):
        return None
    scale = scales[0]
    if not scale.per_tensor or scale.bits > 8:
        return None
    zero = int(scale.zero_point)
    fits = scale.low - zero >= -128 and scale.high - zero <= 127
    return None if fits else scale
