"""Interval analysis of a whole integer module: every width proven before anything is emitted.

The analysis runs the body of every operator on intervals
(`ibert_tvm.relay_passes.integer.intervals`), with the actual integer parameters: the accumulator of
a linear layer is bounded by its own weights and bias, row by row. A value that does not fit its
storage type, or an accumulator that does not fit int32, is a RangeError that names the layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ..dialect.arrays import Integers
from ..errors import CompilerError, LoweringError, RangeError
from ..spec.values import INT32, Ranged, ranged
from ..spec.widths import audit
from .evaluate import as_program, lookup
from .intervals import IntervalDomain, IntervalTensor
from .operator import Serial
from .operators.slots import PackTokens
from .operators.tokens import Embedding
from .program import Program, Step
from .types import Dim, TensorType, dtype_bounds, is_per_token, rows_of

DEFAULT_SEQ_LEN = 512
"""Longest sequence assumed for a model without a table of positions."""


@dataclass(frozen=True)
class ValueRange:
    """What is proven about one value.

    Parameters
    ----------
    low, high
        Closed interval.
    dtype
        Type it is stored in.
    width
        Bits of the widest intermediate (sign included) of the operator that makes it.
    stages
        Intervals of intermediates that are reductions or feed one: sums, scores, accumulators.
    """

    low: int
    high: int
    dtype: str
    width: int
    stages: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def headroom(self) -> int:
        """Bits of its type that no value needs."""
        lowest, highest = dtype_bounds(self.dtype)
        bits = max(self.high, ~self.low).bit_length()
        return max(highest, ~lowest).bit_length() - bits


@dataclass(frozen=True)
class RangeReport:
    """Intervals of a whole module.

    Parameters
    ----------
    max_seq_len
        The proof holds for sequences up to this length, and for any batch.
    details
        By canonical name, in order of execution.
    """

    max_seq_len: int
    details: dict[str, ValueRange]

    @property
    def values(self) -> dict[str, tuple[int, int]]:
        """Closed interval of every value, by canonical name."""
        return {name: (value.low, value.high) for name, value in self.details.items()}


def longest_sequence(program: Program) -> int:
    """Longest sequence that the tables of positions allow; `DEFAULT_SEQ_LEN` without one.

    Parameters
    ----------
    program
        A program of the integer dialect.

    Raises
    ------
    LoweringError
        If a table is too small for one token.
    """
    made_by = {step.name: step for step in program.steps}
    types = {**program.inputs, **program.parameters, **{s.name: s.type for s in program.steps}}
    limits = []
    for step in program.steps:
        operands = {name: types[value] for name, value in step.operands.items()}
        limits.append(step.operator.sequence_limit(operands))
        if isinstance(step.operator, Embedding):
            source = _ungathered(made_by, step.operands["ids"])
            if source is not None:
                limits.append(source.operator.longest_sequence(_static(operands["table"].shape[0])))
    longest = min((limit for limit in limits if limit is not None), default=DEFAULT_SEQ_LEN)
    if longest < 1:
        raise LoweringError(
            "no sequence is short enough for the model",
            "range analysis",
            f"its tables of positions end {1 - longest} tokens before the first",
            "quantise the model again",
        )
    return longest


def _ungathered(made_by: Mapping[str, Step], value: str) -> Step | None:
    """Step that computes the entries of a value, wherever they were moved since."""
    step = made_by.get(value)
    while step is not None and isinstance(step.operator, PackTokens):
        step = made_by.get(next(iter(step.operands.values())))
    return step


def _static(dim: Dim) -> int:
    assert isinstance(dim, int)
    return dim


def _extents(type_: TensorType, max_seq_len: int) -> tuple[int, ...]:
    """Shape of the longest sequence, batch 1, hidden values as kernels store them."""
    sizes = {"seq_len": max_seq_len}
    shape = tuple(
        dim if isinstance(dim, int) else sizes.get(dim.symbol, 1) + dim.plus for dim in type_.shape
    )
    return (shape[0] * shape[1], shape[2]) if is_per_token(shape) else shape


def analyse_ranges(
    module: object,
    parameters: Mapping[str, np.ndarray],
    function: str = "main",
    max_seq_len: int | None = None,
) -> RangeReport:
    """Prove the width of every value and intermediate of an integer function.

    Parameters
    ----------
    module : Program or IRModule
        A program, or a module of the integer dialect.
    parameters
        The integer constants by name.
    function
        Name of the function.
    max_seq_len
        Longest sequence the proof shall cover where the length is symbolic; by default the
        longest one that the model's positions allow.

    Raises
    ------
    RangeError
        If a value does not fit its storage type or an accumulator int32; names the layer.
    LoweringError
        If the function is not of the integer dialect or a parameter is missing.
    """
    program = as_program(module, function)
    if max_seq_len is None:
        max_seq_len = longest_sequence(program)
    run = _Analysis(program, lookup(program.parameters, parameters), max_seq_len)
    return RangeReport(max_seq_len, {step.name: run.analyse(step) for step in program.steps})


class _Analysis:
    """State of one run over a program."""

    def __init__(
        self, program: Program, arrays: Mapping[str, np.ndarray], max_seq_len: int
    ) -> None:
        self.max_seq_len = max_seq_len
        self.tensors: dict[str, IntervalTensor] = {}
        for name, type_ in program.parameters.items():
            array = arrays[name]
            value = ranged(array) if array.size else Ranged(*dtype_bounds(type_.dtype))
            self._bind(name, type_, value, array)
        self.checked = [Ranged(*dtype_bounds(type_.dtype)) for type_ in program.inputs.values()]
        for (name, type_), value in zip(program.inputs.items(), self.checked, strict=True):
            self._bind(name, type_, value)

    def _bind(
        self, name: str, type_: TensorType, value: Ranged, array: Integers | None = None
    ) -> None:
        extents = _extents(type_, self.max_seq_len)
        self.tensors[name] = IntervalTensor(value, extents, type_.dtype, array)

    def _by_rows(
        self, step: Step, operands: dict[str, IntervalTensor]
    ) -> dict[str, IntervalTensor]:
        """Operands as the body takes them, where channels of a token are several rows."""
        types = {name: TensorType(x.shape, x.dtype) for name, x in operands.items()}
        split = step.operator.rows_per_token(types)
        if split == 1:
            return operands
        rows = [operand.name for operand in step.operator.OPERANDS if not operand.is_constant]
        return operands | {
            name: IntervalTensor(x.value, rows_of(x.shape, split), x.dtype)
            for name, x in operands.items()
            if name in rows
        }

    def analyse(self, step: Step) -> ValueRange:
        """Interval of a step's result, which must fit its type."""
        operator, dtype = step.operator, step.type.dtype
        operands = {name: self.tensors[value] for name, value in step.operands.items()}
        shape = step.type.shape
        batch = shape[0] if shape and isinstance(shape[0], int) else 1
        domain = IntervalDomain(batch, self.checked)
        try:
            with audit() as widest:
                if isinstance(operator, Serial):
                    result = Ranged(operator.LEAST, INT32[1])
                else:
                    result = operator.body(domain, **self._by_rows(step, operands))[()]
                low, high = dtype_bounds(dtype)
                if result.low < low or result.high > high:
                    raise RangeError(
                        f"a value in [{result.low}, {result.high}] does not fit {dtype}",
                        why=f"{dtype} holds [{low}, {high}]",
                        todo="use a coarser scale for this value, or a wider storage type",
                    )
        except CompilerError as error:
            raise error.at(operator.where) from None
        self._bind(step.name, step.type, result)
        return ValueRange(result.low, result.high, dtype, widest.bits, domain.stages)
