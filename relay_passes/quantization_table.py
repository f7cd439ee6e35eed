"""The quantisation table: everything lowering must know beyond the canonical module itself.

Calibration fills one (`ibert_tvm.quantization`); a model that arrives quantised (QDQ nodes, an
I-BERT checkpoint) fills the same one from its own scales. Lowering reads nothing else, so there is
one lowering for every source.

A real value ``x`` and its integer ``q`` are related by ``x = (q - zero_point) * scale`` for a
tensor, and by ``x[..., c] = (q[..., c] - zero_point) * scale * channel_divisor[c]`` where smoothing
moved a part of each channel's magnitude into the weights that read it.

A channel with outliers may be split into several columns of one scale (Zhao et al. 2019: outlier
channel splitting), whose integers add up to those of the channel, ``sum_j q_j - zero_point``: each
column holds the part of the range that is its own, and is clamped beyond it. The matrix that reads
them has the channel's weights in each of its columns.

A value may have a scale per token instead of one for all (`ActivationQuant.by_row`): its integers
of 16 bits are brought to 8 by the largest magnitude of their row, and whatever multiplies them by
weights multiplies by that magnitude as well.

Entries compare by identity: they hold arrays, and each belongs to one name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .dialect.arrays import AnyArray
from .errors import CompilerError
from .spec.parts import OPERAND_LIMIT
from .spec.presets import PRESETS
from .spec.short_softmax import VALUE_LIMIT

# The widest stream value: sums of the residual stream are clamped to 21 bits before LayerNorm.
STREAM_LIMIT = (1 << 20) - 1
# The released code has 22 bits there, and the exponentials' range has no other home than a stream.
RELEASED_STREAM_LIMIT = 1 << 21
MOST_COLUMNS = 32
"""Into which a channel of a matrix operand may be split."""
FARTHEST_ZERO_POINT = 2**13
"""Largest zero point of a channel: requantisation adds it in 16 bits."""
WIDE_RANGE = (-VALUE_LIMIT, VALUE_LIMIT)
"""Least and largest integer of what attention averages, where it has more than 8 bits."""
ROW_LIMIT = (1 << 15) - 1
"""Largest integer of a value that is brought to 8 bits row by row."""


class QuantizationTableError(CompilerError):
    """A quantisation table, or one entry of it, is not usable."""


def _positive(value: float, what: str) -> float:
    value = float(value)
    if not np.isfinite(value) or value <= 0:
        raise QuantizationTableError(
            f"{what} is {value}",
            why="a scale is finite and greater than 0",
            todo="a tensor that is constant 0 still needs a scale; any positive one will do",
        )
    return value


def _vector(value: ArrayLike, what: str) -> NDArray[np.float64]:
    array = np.asarray(value, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise QuantizationTableError(
            f"{what} has shape {array.shape}",
            why="it is one number per channel",
            todo="give an array of shape (C,)",
        )
    bad = np.flatnonzero(~(np.isfinite(array) & (array > 0)))
    if bad.size:
        raise QuantizationTableError(
            f"{what} is {array[bad[0]]} at index {bad[0]}",
            why="every entry is finite and greater than 0",
            todo="give dead channels any positive value",
        )
    return array


def sum_of_columns(values: AnyArray, channels: AnyArray) -> AnyArray:
    """Add up the columns of each channel.

    Parameters
    ----------
    values
        [..., K].
    channels
        The channel of each column, integers (K,).

    Returns
    -------
    numpy.ndarray
        [..., C], of the type of `values`.
    """
    count = int(channels.max()) + 1
    result = np.zeros((count, values.size // channels.size), values.dtype)
    np.add.at(result, channels, values.reshape(-1, channels.size).T)
    return result.T.reshape(*values.shape[:-1], count)


def _integers(value: ArrayLike, what: str, why: str) -> NDArray[np.int64]:
    array = np.asarray(value)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
        raise QuantizationTableError(
            f"the {what} of an activation are {array.dtype} of shape {array.shape}",
            why=why,
            todo="give integers of shape (C,)",
        )
    return array.astype(np.int64)


def _counts(value: ArrayLike) -> NDArray[np.int64]:
    array = _integers(value, "splits", "it is a number of columns for each channel")
    if array.min() < 1 or array.max() > MOST_COLUMNS:
        raise QuantizationTableError(
            f"a channel is split into {array.min()} to {array.max()} columns",
            why=f"one to {MOST_COLUMNS} columns are added in 16-bit arithmetic",
            todo="use a coarser scale",
        )
    return array


def _zero_points(value: ArrayLike) -> NDArray[np.int64]:
    array = _integers(value, "zero points", "each channel has one, an integer")
    if int(np.abs(array).max()) > FARTHEST_ZERO_POINT:
        raise QuantizationTableError(
            f"a zero point of an activation is {array[np.abs(array).argmax()]}",
            why=f"requantisation in 16 bits has room for {FARTHEST_ZERO_POINT} steps of 8 bits",
            todo="use a coarser scale",
        )
    return array


def _phases(value: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(value, dtype=np.float64)
    if array.ndim != 1 or array.size == 0 or not (np.abs(array) <= 0.5).all():
        raise QuantizationTableError(
            f"the phases of an activation are {array.dtype} of shape {array.shape}",
            why="each channel has one, from -1/2 to 1/2 of a step",
            todo="move whole steps into the zero points",
        )
    return array


_ARRAYS: dict[str, Callable[[ArrayLike], AnyArray]] = {
    "channel_divisor": lambda value: _vector(value, "the channel divisor of an activation"),
    "splits": _counts,
    "channel_zero_point": _zero_points,
    "phase": _phases,
}
"""What an activation may have for each channel, and how it is checked."""


@dataclass(frozen=True, eq=False)
class ActivationQuant:
    """How one activation becomes integers.

    Parameters
    ----------
    scale
        Real size of one integer step (before ``channel_divisor``).
    low, high
        Smallest and largest integer used; values beyond are clamped.
    zero_point
        The integer that stands for the real 0; inside ``[low, high]``.
    channel_divisor
        float64 of shape (C,), for the last axis. The real value of channel c is divided by it
        before quantisation (smoothing); whatever reads the integers multiplies by it again.
    splits
        int64 of shape (C,): how many columns a channel has, 1 to `MOST_COLUMNS`. The first columns
        of all channels come first, in order, then the others.
    by_row
        Whether the integers, of 16 bits and without zero point or splits, are brought to 8 bits by
        the largest magnitude of their row.
    channel_zero_point
        int64 of shape (C,), for a matrix operand: added to `zero_point`, so that each channel's
        range lies around its own centre. The real 0 may then lie outside of the integers.
    phase
        float64 of shape (C,), for a matrix operand: the fraction of a step, -1/2 to 1/2, that zero
        points leave out. A value of which the steps and this add up to an integer is not rounded.

    Raises
    ------
    QuantizationTableError
        If a field is not usable.
    """

    scale: float
    low: int
    high: int
    zero_point: int = 0
    channel_divisor: NDArray[np.float64] | None = None
    splits: NDArray[np.int64] | None = None
    by_row: bool = False
    channel_zero_point: NDArray[np.int64] | None = None
    phase: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", _positive(self.scale, "the scale of an activation"))
        for name in ("low", "high", "zero_point"):
            object.__setattr__(self, name, int(getattr(self, name)))
        if self.low >= self.high:
            raise QuantizationTableError(
                f"an activation's integer range is [{self.low}, {self.high}]",
                why="low must be below high",
                todo="exchange them",
            )
        if not self.low <= self.zero_point <= self.high:
            raise QuantizationTableError(
                f"an activation's zero point is {self.zero_point}",
                why=f"it is the integer for the real 0, so it lies in [{self.low}, {self.high}]",
                todo="extend the calibrated range until it contains 0",
            )
        for name, checked in _ARRAYS.items():
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, checked(value))
        shifts = (self.channel_zero_point, self.phase, self.splits)
        bare = self.zero_point == 0 and all(array is None for array in shifts)
        if self.by_row and not (bare and self.low == -self.high):
            raise QuantizationTableError(
                "an activation with a scale per row has a zero point, splits or uneven bounds",
                why="its integers are divided by the largest magnitude of their row",
                todo="use symmetric bounds, no zero point and whole channels",
            )

    def to_json(self) -> dict[str, Any]:
        """Return the form as an object of a document; numbers per channel as lists."""
        document: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, np.ndarray):
                document[item.name] = value.tolist()
            elif value is not None and value is not False:
                document[item.name] = value
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ActivationQuant:
        """Read what `to_json` returned; QuantizationTableError as of the class."""
        given: dict[str, Any] = {
            f.name: document[f.name] for f in fields(cls) if f.name in document
        }
        given |= {name: np.array(v) for name, v in given.items() if isinstance(v, list)}
        return cls(**given)

    @property
    def signed(self) -> bool:
        """Whether the integers need a sign (int8) or not (uint8)."""
        return self.low < 0

    @property
    def channel_scale(self) -> NDArray[np.float64]:
        """Scale per channel, shape (C,), or shape (1,) where all channels share one."""
        if self.channel_divisor is None:
            return np.array([self.scale])
        return self.scale * self.channel_divisor

    @property
    def columns(self) -> NDArray[np.int64]:
        """The channel that each column belongs to, (K,); of a value that is split."""
        splits = self._splits
        channels = np.arange(splits.size)
        return np.concatenate([channels, np.repeat(channels, splits - 1)])

    @property
    def zero_points(self) -> NDArray[np.int64] | int:
        """Zero point per channel (C,), or the one of all channels."""
        if self.channel_zero_point is None:
            return self.zero_point
        return self.zero_point + self.channel_zero_point

    @property
    def offset(self) -> NDArray[np.int64] | None:
        """What is added to the integers of the last axis besides `zero_point`; None for nothing."""
        if self.splits is None:
            return self.channel_zero_point
        if self.channel_zero_point is None:
            return self.column_offset
        return self.column_offset + self.channel_zero_point[self.columns]

    @property
    def column_offset(self) -> NDArray[np.int64]:
        """What is added to a column's integers besides zero points, (K,); of a split value."""
        splits = self._splits
        later = [np.arange(1, count) for count in splits if count > 1]
        part = np.concatenate([np.zeros(splits.size, np.int64), *later])
        columns = splits[self.columns]
        return -((columns - 1) * self.low + part * (self.high - self.low))

    @property
    def reach(self) -> tuple[Any, Any]:
        """Least and largest number of steps from 0 that are not clamped, one or per channel."""
        splits = 1 if self.splits is None else self.splits
        low, high = splits * self.low - self.zero_points, splits * self.high - self.zero_points
        return (low, high) if self.phase is None else (low - self.phase, high - self.phase)

    def rounded(self, steps: AnyArray) -> AnyArray:
        """Numbers of steps [..., C] as the integers stand for them: rounded and clamped.

        Of the type of `steps`, a float.
        """
        low, high = (np.asarray(end, steps.dtype) for end in self.reach)
        if self.phase is None:
            rounded = np.rint(steps)
        else:
            phase = self.phase.astype(steps.dtype)
            rounded = steps + phase
            np.rint(rounded, out=rounded)
            rounded -= phase
        return np.clip(rounded, low, high, out=rounded)

    @property
    def _splits(self) -> NDArray[np.int64]:
        if self.splits is None:
            raise TypeError("only a value that is split has columns of channels")
        return self.splits

    def quantize(self, values: AnyArray) -> NDArray[np.int64]:
        """Integers of real ``values`` [..., C], rounded half up and clamped; int64 [..., K].

        Of a value with a scale per row those of 16 bits.
        """
        phase = 0.0 if self.phase is None else self.phase
        steps = np.asarray(values, dtype=np.float64) / self.channel_scale + phase
        steps = np.floor(steps + 0.5)
        if self.splits is not None:
            steps = steps[..., self.columns]
        if (offset := self.offset) is not None:
            steps = steps + offset
        return np.clip(steps + self.zero_point, self.low, self.high).astype(np.int64)

    def dequantize(self, integers: AnyArray) -> NDArray[np.float64]:
        """Real values of ``integers`` [..., K]; float64 [..., C]."""
        columns = np.asarray(integers, dtype=np.int64)
        steps = columns if self.splits is None else sum_of_columns(columns, self.columns)
        phase = 0.0 if self.phase is None else self.phase
        return (steps - self.zero_points - phase) * self.channel_scale


@dataclass(frozen=True, eq=False)
class WeightQuant:
    """One integer matrix with a scale per row.

    For a linear layer a row is an output channel, and ``values`` hold the weights *after* the
    channel divisor of the activation that they multiply was moved into them. For an embedding a
    row is a vocabulary entry; only its integers may have 16 bits.

    Parameters
    ----------
    values
        int8 or int16 [N, K].
    scale
        float64 [N]: ``weight[n, k] = values[n, k] * scale[n]``.
    trained
        Whether training computed with these integers: what they stand for are the weights then, and
        the model's own only say where training goes on.

    Raises
    ------
    QuantizationTableError
        If shapes or dtypes do not fit, or a scale is not positive.
    """

    values: NDArray[np.int8 | np.int16]
    scale: NDArray[np.float64]
    trained: bool = False

    def __post_init__(self) -> None:
        values = np.asarray(self.values)
        if values.dtype not in (np.int8, np.int16) or values.ndim != 2:
            raise QuantizationTableError(
                f"a quantised weight has dtype {values.dtype} and shape {values.shape}",
                why="kernels take an int8 matrix of (rows, columns), or an int16 table of rows",
                todo="quantise and reshape it first",
            )
        scale = _vector(self.scale, "the row scale of a weight")
        if scale.shape != values.shape[:1]:
            raise QuantizationTableError(
                f"a quantised weight has {values.shape[0]} rows and {scale.shape[0]} row scales",
                why="every row has its own scale",
                todo="repeat a scale that several rows share",
            )
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "scale", scale)

    def dequantize(self) -> NDArray[np.float64]:
        """Real weights, float64 [N, K]."""
        return self.values.astype(np.float64) * self.scale[:, None]


@dataclass(frozen=True, eq=False)
class QuantizationTable:
    """All scales of a model.

    Parameters
    ----------
    preset
        ``"accurate"``, ``"paper"`` or ``"released"``: which forms of the non-linear functions
        lowering emits.
    matmul
        By canonical name: the form of a value that a matrix product reads, of 8 bits. What
        attention averages may have `WIDE_RANGE` instead, what matrices of weights multiply up to
        `OPERAND_LIMIT` on either side.
    stream
        By canonical name: the wide symmetric form of a value that additions, LayerNorm, GELU or
        the caller (an output) read. No zero point and no channel divisor.
    weights
        By the canonical name of the *linear op* whose matrix it is, not of the matrix: when two
        layers share a matrix but not its input, smoothing gives each its own integers.
    embeddings
        By the canonical name of the embedding op.
    grids
        By canonical name, where a model that came quantised rounds a value before anything reads
        it: every form of the value is made from these integers. No zero point and no channel
        divisor: the integers of an asymmetric grid are counted from its zero point.
    norm_shifts
        By the canonical name of a layer norm, preset ``released`` only: bits by which deviations
        are shifted before they are squared. 0 where the name is missing.
    centred
        Whether biases make up for what requantisation in 16 bits adds in the mean to what linear
        layers read.
    offsets
        By the canonical name of a linear layer, float64 (N,): what its bias takes off its results,
        so that they lie around 0. Their reader makes up for it (`Form.offset`).
    calibrated
        Whether calibration chose the scales: a function whose approximation does not serve the
        scale of its operand then takes the constants of the nearest that it serves. Given scales
        are refused instead.

    Raises
    ------
    QuantizationTableError
        If the preset is unknown or an entry does not fit its section.
    """

    preset: str
    matmul: Mapping[str, ActivationQuant] = field(default_factory=dict)
    stream: Mapping[str, ActivationQuant] = field(default_factory=dict)
    weights: Mapping[str, WeightQuant] = field(default_factory=dict)
    embeddings: Mapping[str, WeightQuant] = field(default_factory=dict)
    grids: Mapping[str, ActivationQuant] = field(default_factory=dict)
    norm_shifts: Mapping[str, int] = field(default_factory=dict)
    centred: bool = False
    offsets: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    calibrated: bool = False

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise QuantizationTableError(
                f"unknown preset {self.preset!r}",
                why="a preset chooses the form of every approximation",
                todo=f"use one of: {', '.join(PRESETS)}",
            )
        for name, quant in self.matmul.items():
            if quant.by_row:
                self._check_by_row(name, quant)
                continue
            bounds = (-128, 127) if quant.signed else (0, 255)
            bare = quant.splits is None and quant.channel_zero_point is None
            wide = bare and quant.zero_point == 0 and -quant.low == quant.high <= OPERAND_LIMIT
            if not wide and (quant.low < bounds[0] or quant.high > bounds[1]):
                raise QuantizationTableError(
                    f"a matrix operand uses integers {quant.low}..{quant.high}",
                    where=f"matmul entry {name!r}",
                    why="a matrix operand has 8 bits, or more with even bounds, one zero point of "
                    "0 and whole channels",
                    todo=f"stay within -128..127, 0..255 or -{OPERAND_LIMIT}..{OPERAND_LIMIT}",
                )
        for name, weight in self.weights.items():
            if weight.values.dtype != np.int8:
                raise QuantizationTableError(
                    f"a matrix of weights is {weight.values.dtype}",
                    where=f"weights entry {name!r}",
                    why="kernels multiply int8; only rows of embeddings may be int16",
                    todo="quantise it to 8 bits",
                )
        limit = RELEASED_STREAM_LIMIT if self.preset == "released" else STREAM_LIMIT
        plain = [("stream", *entry) for entry in self.stream.items()]
        plain += [("grids", *entry) for entry in self.grids.items()]
        for section, name, quant in plain:
            special = (quant.channel_divisor, quant.splits, quant.channel_zero_point)
            if quant.zero_point != 0 or quant.by_row or any(x is not None for x in special):
                raise QuantizationTableError(
                    "it has a zero point, a channel divisor, split channels or a scale per row",
                    where=f"{section} entry {name!r}",
                    why="values that are added are symmetric and share one scale",
                    todo="give it a plain scale",
                )
            if max(-quant.low, quant.high) > limit:
                raise QuantizationTableError(
                    f"it uses integers {quant.low}..{quant.high}",
                    where=f"{section} entry {name!r}",
                    why=f"LayerNorm takes {(limit - 1).bit_length() + 1} bits",
                    todo=f"stay within -{limit}..{limit}",
                )

    def _check_by_row(self, name: str, quant: ActivationQuant) -> None:
        """Refuse a scale per row that lowering has no integers for."""
        if self.preset == "released":
            raise QuantizationTableError(
                "it has a scale per row",
                where=f"matmul entry {name!r}",
                why="the released arithmetic has static scales only",
                todo="use the preset accurate or paper",
            )
        if quant.high > ROW_LIMIT:
            raise QuantizationTableError(
                f"it uses integers {quant.low}..{quant.high}",
                where=f"matmul entry {name!r}",
                why="what is divided by the magnitude of its row has 15 bits and a sign",
                todo=f"stay within -{ROW_LIMIT}..{ROW_LIMIT}",
            )
