"""Interval analysis of a whole integer module: every width proven before anything is emitted.

The analysis runs the functions of `relay_passes.spec` on intervals (`Ranged` without expressions),
operator by operator, with the actual integer parameters: the accumulator of a linear layer is
bounded by its own weights and bias, row by row. A value that does not fit its storage type, or an
accumulator that does not fit int32, is a RangeError that names the layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tvm import IRModule, relax

from ..errors import CompilerError, LoweringError, RangeError
from ..spec import gelu, layer_norm, pooling, short_layer_norm, short_softmax, softmax
from ..spec.fixed_point import requantise, requantise_clamped
from ..spec.released import layer_norm as released_norm
from ..spec.released import requantise_even
from ..spec.short_requantise import requantise_short, saturating_sum
from ..spec.tanh import i_tanh
from ..spec.values import INT32, Condition, Ranged, audit, known, maximum, ranged
from .attrs import dtype_bounds
from .evaluate import lookup
from .program import Program, Step, read_program

SCHEMA_VERSION = 1
DEFAULT_SEQ_LEN = 512
"""Longest sequence assumed for a model without a table of positions."""


@dataclass(frozen=True)
class ValueRange:
    """What is proven about one value.

    Parameters
    ----------
    low, high : int
        Closed interval.
    dtype : str
        Type it is stored in.
    width : int
        Bits of the widest intermediate (sign included) of the operator that makes it.
    stages : dict of str to (int, int)
        Intervals of intermediates that are reductions or feed one: sums, scores, accumulators.
    """

    low: int
    high: int
    dtype: str
    width: int
    stages: dict[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class RangeReport:
    """Intervals of a whole module.

    Parameters
    ----------
    max_seq_len : int
        The proof holds for sequences up to this length, and for any batch.
    details : dict of str to ValueRange
        By canonical name, in order of execution.
    """

    max_seq_len: int
    details: dict[str, ValueRange]

    @property
    def values(self) -> dict[str, tuple[int, int]]:
        """Closed interval of every value, by canonical name."""
        return {name: (value.low, value.high) for name, value in self.details.items()}

    @property
    def widest(self) -> tuple[str, int]:
        """Name and bits of the widest intermediate of the module."""
        name = max(self.details, key=lambda key: self.details[key].width)
        return name, self.details[name].width

    def __getitem__(self, name: str) -> ValueRange:
        if name not in self.details:
            raise LoweringError(
                f"no interval for {name!r}",
                "range analysis",
                "the analysed module has no value of this name",
                "analyse the module that is being emitted",
            )
        return self.details[name]

    def to_json(self) -> dict[str, Any]:
        """Serialisable form, with a schema version."""
        return {
            "schema": SCHEMA_VERSION,
            "max_seq_len": self.max_seq_len,
            "values": {
                name: {
                    "low": value.low,
                    "high": value.high,
                    "dtype": value.dtype,
                    "width": value.width,
                    "stages": {key: list(pair) for key, pair in value.stages.items()},
                }
                for name, value in self.details.items()
            },
        }

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> RangeReport:
        """Read what `to_json` wrote.

        Raises
        ------
        LoweringError
            If the schema version is another one.
        """
        if document.get("schema") != SCHEMA_VERSION:
            raise LoweringError(
                f"range report of schema {document.get('schema')!r}",
                "range analysis",
                f"this version reads schema {SCHEMA_VERSION}",
                "analyse the module again",
            )
        return RangeReport(
            int(document["max_seq_len"]),
            {
                name: ValueRange(
                    entry["low"],
                    entry["high"],
                    entry["dtype"],
                    entry["width"],
                    {key: (pair[0], pair[1]) for key, pair in entry["stages"].items()},
                )
                for name, entry in document["values"].items()
            },
        )


def accumulator_range(weight: np.ndarray, bias: np.ndarray, low: int, high: int) -> tuple[int, int]:
    """Exact interval of ``x weight^T + bias`` for x in [low, high].

    Parameters
    ----------
    weight : numpy.ndarray
        int8 [N, K].
    bias : numpy.ndarray
        int32 [N].
    low, high : int
        Interval of every entry of x.

    Returns
    -------
    low, high : int
        Over all rows; both ends are reached by some x.

    Raises
    ------
    RangeError
        If a partial sum, in any order, might leave int32.
    """
    positive = np.maximum(weight, 0).sum(axis=1, dtype=np.int64)
    negative = np.minimum(weight, 0).sum(axis=1, dtype=np.int64)
    offset = bias.astype(np.int64)
    largest = max(abs(low), abs(high))
    # Overflow of a partial sum would wrap back, but it is undefined in the emitted code.
    partial = (positive - negative) * largest + np.abs(offset)
    row = int(partial.argmax())
    if partial[row] > INT32[1]:
        raise RangeError(
            f"the int32 accumulator of output {row} may overflow",
            why=f"its sum over {weight.shape[1]} inputs in [{low}, {high}] and a bias of "
            f"{offset[row]} reaches {partial[row]}, and int32 ends at {INT32[1]}",
            todo="use a coarser weight or activation scale for this layer",
        )
    tops = positive * high + negative * low + offset
    bottoms = positive * low + negative * high + offset
    return int(bottoms.min()), int(tops.max())


class _Analysis:
    """State of one run over a program."""

    def __init__(self, program: Program, arrays: dict[Any, np.ndarray], max_seq_len: int) -> None:
        self.program = program
        self.arrays = arrays
        self.max_seq_len = max_seq_len
        self.intervals: dict[Any, Ranged] = {}
        self.stages: dict[str, tuple[int, int]] = {}

    def interval(self, expr: relax.Expr) -> Ranged:
        """Interval of a step's result, a parameter or an input."""
        if expr not in self.intervals:
            array = self.array(expr)
            if array is not None and array.size:
                self.intervals[expr] = ranged(array)
            else:
                self.intervals[expr] = Ranged(*dtype_bounds(str(expr.ty.dtype)))
        return self.intervals[expr]

    def array(self, expr: relax.Expr) -> np.ndarray | None:
        """Contents of a parameter; None for a computed value."""
        return self.arrays.get(expr)

    def stage(self, name: str, value: Ranged) -> Ranged:
        """Record an intermediate."""
        self.stages[name] = (value.low, value.high)
        return value

    def seq_len(self, expr: relax.Expr) -> int:
        """Length of the second axis: its own if static, the assumed maximum if symbolic."""
        extent = getattr(expr.ty.shape.values[1], "value", None)
        return self.max_seq_len if extent is None else int(extent)

    def total(self, name: str, entry: Ranged, count: int, dtype: str) -> Ranged:
        """Sum of at most `count` entries, which must fit `dtype`."""
        low, high = min(entry.low, 0) * count, max(entry.high, 0) * count
        bottom, top = dtype_bounds(dtype)
        if low < bottom or high > top:
            raise RangeError(
                f"the {name} may overflow {dtype}",
                why=f"the sum of {count} entries in [{entry.low}, {entry.high}] is in "
                f"[{low}, {high}]",
                todo="use a shorter maximal sequence length or narrower operands",
            )
        return self.stage(name, Ranged(low, high))


def _position_ids(run: _Analysis, step: Step, ids: Ranged) -> Ranged:
    length = run.seq_len(step.operands[0])
    if step.attrs.kind == "absolute":
        return Ranged(step.attrs.offset, step.attrs.offset + max(length - 1, 0))
    return Ranged(step.attrs.padding_index, step.attrs.padding_index + length)


def _embedding(run: _Analysis, step: Step, ids: Ranged, table: Ranged, m: Ranged) -> Ranged:
    rows = int(step.operands[1].ty.shape.values[0])
    source = unpacked_operand(run.program, step.operands[0])
    computed = source not in run.program.inputs  # those that come in are checked later
    if computed and ids.high >= rows:
        raise RangeError(
            f"positions up to {ids.high}",
            why=f"the table has {rows} rows; sequences of {run.max_seq_len} tokens are asked for",
            todo="use a shorter maximal sequence length",
        )
    return requantise(table, m, step.attrs.shift)


def _linear(run: _Analysis, step: Step, x: Ranged, weight: Ranged, bias: Ranged) -> Ranged:
    w, b = run.array(step.operands[1]), run.array(step.operands[2])
    if w is None or b is None:
        raise LoweringError(
            "weight or bias of a linear layer is not a parameter",
            why="its accumulator is bounded by the actual integers",
            todo="pass weight and bias as parameters of the function",
        )
    return Ranged(*accumulator_range(w, b, x.low, x.high))


def _requantise(_run: _Analysis, step: Step, x: Ranged, multiplier: Ranged) -> Ranged:
    a = step.attrs
    return requantise_clamped(x, multiplier, a.shift, a.zero_point, a.low, a.high)


def _requantise_even(
    _run: _Analysis, step: Step, x: Ranged, multiplier: Ranged, shift: Ranged
) -> Ranged:
    a = step.attrs
    return requantise_even(x, multiplier, shift, a.split, a.zero_point, a.low, a.high)


def _requantise_short(
    _run: _Analysis, step: Step, x: Ranged, multiplier: Ranged, pre_shift: Ranged
) -> Ranged:
    a = step.attrs
    return requantise_short(x, multiplier, pre_shift, a.shift, a.zero_point, a.low, a.high)


def _gelu(_run: _Analysis, step: Step, x: Ranged, *constants: Ranged) -> Ranged:
    if step.attrs.constants is not None:
        return gelu.gelu_accurate(x, step.attrs.constants)
    return gelu.gelu_paper(x, *constants)


def _relu(_run: _Analysis, _step: Step, x: Ranged) -> Ranged:
    return ranged(maximum(x, 0))


def _tanh(_run: _Analysis, step: Step, x: Ranged) -> Ranged:
    return ranged(i_tanh(x, step.attrs.exponential, step.attrs.fraction_bits))


def _add(_run: _Analysis, _step: Step, a: Ranged, b: Ranged) -> Ranged:
    return a + b


def _add_short(_run: _Analysis, step: Step, a: Ranged, b: Ranged) -> Ranged:
    return ranged(saturating_sum(a, b, step.attrs.low, step.attrs.high))


def _layer_norm_short(
    run: _Analysis, step: Step, x: Ranged, gain: Ranged, offset: Ranged
) -> Ranged:
    a, k, norm = step.attrs, step.attrs.constants, short_layer_norm
    channels = int(step.operands[0].ty.shape.values[-1])
    y = run.stage("bounded", norm.bounded(x))
    mean = run.stage("mean", norm.mean_of(run.total("sum", y, channels, "int32"), channels))
    d = run.stage("deviation", norm.deviation(y, mean))
    squares = run.total("square_sum", norm.square(d), channels, "int64")
    root = run.stage("root", norm.root(squares, norm.root_half_bits(squares, k), k))
    bits = run.stage("root_bits", norm.root_bits(root, k))
    factor = run.stage("reciprocal", norm.reciprocal(root, bits))
    return norm.normalise(d, bits, factor, gain, offset, k, a.shift, a.low, a.high)


def _layer_norm(run: _Analysis, step: Step, x: Ranged, gain: Ranged, offset: Ranged) -> Ranged:
    a, k = step.attrs, step.attrs.constants
    channels = int(step.operands[0].ty.shape.values[-1])
    y = run.stage("bounded", layer_norm.bounded(x, k))
    total = run.stage("sum", Ranged(y.low * channels, y.high * channels))
    mean = run.stage("mean", layer_norm.mean_of(total, channels))
    d = run.stage("deviation", layer_norm.deviation(y, mean))
    squares = run.total("square_sum", layer_norm.square(d), channels, "int64")
    half = run.stage("half_bits", layer_norm.root_half_bits(squares, k))
    inverse = run.stage("inverse", layer_norm.inverse_std(squares, half, k))
    return layer_norm.normalise(d, inverse, gain, offset, k, a.shift, a.low, a.high)


def _released_layer_norm(run: _Analysis, step: Step, x: Ranged, offset: Ranged) -> Ranged:
    k = step.attrs.constants
    channels = int(step.operands[0].ty.shape.values[-1])
    total = run.total("sum", x, channels, "int64")
    mean = run.stage("mean", released_norm.mean_of(total, channels))
    # A mean lies among the values; that its interval is that of x, the sum's cannot tell.
    d = run.stage("deviation", x - known(mean, x.low, x.high))
    squares = run.total("square_sum", released_norm.square(d, k), channels, "int64")
    half = run.stage("half_bits", released_norm.root_half_bits(squares))
    factor = run.stage("factor", released_norm.factor(squares, half, k))
    return released_norm.normalise(d, factor, offset)


def _attention(
    run: _Analysis, step: Step, q: Ranged, k: Ranged, v: Ranged, *last: Ranged
) -> Ranged:
    # Before the multiplier a mask, perhaps; behind it the starts of packed sequences.
    a, multiplier = step.attrs, last[1] if len(last) > 1 else last[0]
    head_dim = int(step.operands[0].ty.shape.values[-1]) // a.num_heads
    length = run.seq_len(step.operands[0])
    score = run.total("score", q * k, head_dim, "int32")
    if a.softmax == "short":
        return _short_attention(run, step, score, v, length, multiplier)
    if score.low <= softmax.MASKED_SCORE:
        raise RangeError(
            f"a score may be {score.low}",
            why=f"masked keys count as {softmax.MASKED_SCORE}, which is to be below real scores",
            todo="use narrower clamps on Q and K, or smaller heads",
        )
    row_max = Ranged(softmax.MASKED_SCORE, max(score.high, softmax.MASKED_SCORE))
    e = run.stage("exponential", ranged(softmax.exp_of(score, row_max, Condition(), a.exponential)))
    total = run.total("sum", e, length, "int32")
    factor = run.stage("reciprocal", softmax.factor_of_sum(total))
    p = run.stage("probability", softmax.probability_of(e, factor))
    acc = run.total("accumulator", p * v, length, "int32")
    context = run.stage("context", softmax.context_of_probabilities(acc))
    return softmax.output_of(context, multiplier, a.shift, a.zero_point, a.low, a.high)


def _short_attention(
    run: _Analysis, step: Step, acc: Ranged, v: Ranged, length: int, multiplier: Ranged
) -> Ranged:
    a = step.attrs
    if max(acc.high, -acc.low) > short_softmax.LARGEST_SCORE:
        raise RangeError(
            f"a score may be {max(acc.high, -acc.low)}",
            why=f"masked keys stay apart from scores up to {short_softmax.LARGEST_SCORE}",
            todo="use narrower clamps on Q and K, or smaller heads",
        )
    score = short_softmax.score_of(acc, short_softmax.key_offset(Condition()))
    row_max = Ranged(short_softmax.ROW_FLOOR, acc.high)
    e = run.stage("exponential", short_softmax.exponential_of(score, row_max, a.exponential))
    total = run.total("sum", e, length, "int32")
    bits = run.stage("sum_bits", short_softmax.sum_bits(total, total.high))
    factor = run.stage("reciprocal", short_softmax.reciprocal(total, bits))
    products = run.total("accumulator", e * v, length, "int32")
    context = run.stage("context", short_softmax.context_of(products, bits, factor))
    return requantise_short(context, multiplier, 0, a.shift, a.zero_point, a.low, a.high)


def _mean_pool(run: _Analysis, step: Step, x: Ranged, *_mask: Ranged) -> Ranged:
    length = run.seq_len(step.operands[0])
    total = run.total("sum", x, length, "int32")
    reciprocal = run.stage("reciprocal", pooling.reciprocal_of_count(Ranged(0, length)))
    return pooling.mean_of_tokens(total, reciprocal, step.attrs.fraction_bits, x)


def _patches(_run: _Analysis, _step: Step, pixels: Ranged) -> Ranged:
    return pixels


def _prepend_tokens(_run: _Analysis, _step: Step, x: Ranged, tokens: Ranged) -> Ranged:
    return Ranged(min(x.low, tokens.low), max(x.high, tokens.high))


def _select_token(_run: _Analysis, _step: Step, x: Ranged, *_slots: Ranged) -> Ranged:
    return x


def _or_zero(_run: _Analysis, _step: Step, x: Ranged, *_mask_or_slots: Ranged) -> Ranged:
    return Ranged(min(x.low, 0), max(x.high, 0))


def _row_or_token(_run: _Analysis, step: Step, _operand: Ranged) -> Ranged:
    """Numbers of rows, of tokens, or -1: int32 holds any, since memory has to hold the values."""
    return Ranged(-1 if step.op == "integer.token_slots" else 0, INT32[1])


def _split_channels(_run: _Analysis, _step: Step, x: Ranged) -> Ranged:
    return x


_OPERATORS: dict[str, Callable[..., Ranged]] = {
    "integer.position_ids": _position_ids,
    "integer.embedding": _embedding,
    "integer.linear": _linear,
    "integer.requantise": _requantise,
    "integer.requantise_even": _requantise_even,
    "integer.requantise_short": _requantise_short,
    "integer.gelu": _gelu,
    "integer.relu": _relu,
    "integer.tanh": _tanh,
    "integer.add": _add,
    "integer.add_positions": _add,
    "integer.patches": _patches,
    "integer.prepend_tokens": _prepend_tokens,
    "integer.add_short": _add_short,
    "integer.layer_norm": _layer_norm,
    "integer.layer_norm_short": _layer_norm_short,
    "integer.released_layer_norm": _released_layer_norm,
    "integer.attention": _attention,
    "integer.mean_pool": _mean_pool,
    "integer.select_token": _select_token,
    "integer.split_channels": _split_channels,
    "integer.mask_tokens": _or_zero,
    "integer.token_slots": _row_or_token,
    "integer.slot_tokens": _row_or_token,
    "integer.slot_starts": _row_or_token,
    "integer.pack_tokens": _select_token,
}


def unpacked_operand(program: Program, ids: relax.Var) -> relax.Var:
    """Ids or positions from which `ids` were packed; `ids` itself if they were not.

    Parameters
    ----------
    program : Program
        A program of the integer dialect.
    ids : relax.Var
        An operand of an embedding in it.

    Returns
    -------
    relax.Var
    """
    packed = {s.result: s.operands[0] for s in program.steps if s.op == "integer.pack_tokens"}
    return packed.get(ids, ids)


def longest_sequence(program: Program) -> int:
    """Longest sequence that the tables of positions allow; `DEFAULT_SEQ_LEN` without one.

    Parameters
    ----------
    program : Program
        A program of the integer dialect.

    Returns
    -------
    int
    """
    positions = {step.result: step for step in program.steps if step.op == "integer.position_ids"}
    limits = []
    for step in program.steps:
        source = unpacked_operand(program, step.operands[0])
        if step.op == "integer.embedding" and source in positions:
            attrs = positions[source].attrs
            rows = int(step.operands[1].ty.shape.values[0])
            absolute = attrs.kind == "absolute"
            limits.append(rows - attrs.offset if absolute else rows - attrs.padding_index - 1)
    return min(limits, default=DEFAULT_SEQ_LEN)


def analyse_ranges(
    module: IRModule,
    parameters: Mapping[str, np.ndarray],
    function: str = "main",
    max_seq_len: int | None = None,
) -> RangeReport:
    """Prove the width of every value and intermediate of an integer function.

    Parameters
    ----------
    module : IRModule
        A module of the integer dialect.
    parameters : mapping of str to numpy.ndarray
        The integer constants by name.
    function : str
        Name of the function.
    max_seq_len : int, optional
        Longest sequence the proof shall cover where the length is symbolic; by default the
        longest one that the model's positions allow.

    Returns
    -------
    RangeReport

    Raises
    ------
    RangeError
        If a value does not fit its storage type or an accumulator int32; names the layer.
    LoweringError
        If the function is not of the integer dialect or a parameter is missing.
    """
    program = read_program(module, function)
    if max_seq_len is None:
        max_seq_len = longest_sequence(program)
    run = _Analysis(program, lookup(program.parameters, parameters), max_seq_len)
    details: dict[str, ValueRange] = {}
    for step in program.steps:
        run.stages = {}
        dtype = str(step.result.ty.dtype)
        try:
            with audit() as widest:
                operands = [run.interval(operand) for operand in step.operands]
                result = _OPERATORS[step.op](run, step, *operands)
        except CompilerError as error:
            raise error.at(f"{step.op} {step.name!r}") from None
        low, high = dtype_bounds(dtype)
        if result.low < low or result.high > high:
            raise RangeError(
                f"a value in [{result.low}, {result.high}] does not fit {dtype}",
                f"{step.op} {step.name!r}",
                f"{dtype} holds [{low}, {high}]",
                "use a coarser scale for this value, or a wider storage type",
            )
        run.intervals[step.result] = result
        details[step.name] = ValueRange(result.low, result.high, dtype, widest.bits, run.stages)
    return RangeReport(max_seq_len, details)
