"""The domain of intervals: what every stage of an operator can be, whatever the data."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..dialect.arrays import Integers
from ..errors import LoweringError, RangeError
from ..spec import nibbles
from ..spec.values import INT32, Condition, Ranged, ranged
from .domain import Comparison, Domain, Entry, EntryAt, Heads, Index, Shape, Windowed
from .operator import per_channel
from .types import dtype_bounds


def accumulator_bounds(weight: Integers, low: int, high: int) -> tuple[Integers, Integers]:
    """Exact bounds of ``sum_k x[k] weight[n, k]`` for x in [low, high], by row of the weight.

    Parameters
    ----------
    weight : numpy.ndarray
        Integers [N, K].
    low, high
        Interval of every entry of x.

    Returns
    -------
    low, high : numpy.ndarray
        int64 [N]; both are reached by some x.
    """
    positive = np.maximum(weight, 0).sum(axis=1, dtype=np.int64)
    negative = np.minimum(weight, 0).sum(axis=1, dtype=np.int64)
    return positive * low + negative * high, positive * high + negative * low


def check_accumulator(weight: Integers, bias: Integers, low: int, high: int) -> int:
    """Refuse a product whose partial sums, in any order, might leave int32.

    Overflow of a partial sum would wrap back, but it is undefined in compiled code.

    Parameters
    ----------
    weight, bias : numpy.ndarray
        Integers [N, K] and [N].
    low, high
        Interval of every entry x[k] that is multiplied.

    Returns
    -------
    int
        Bound of all ``|bias[n] + sum_k x[k] weight[n, k]|`` and of their partial sums.

    Raises
    ------
    RangeError
        Naming the row.
    """
    # The next wider type holds every magnitude, in a fraction of the time of 64 bits.
    magnitudes = np.abs(weight.astype(f"int{min(64, 16 * weight.itemsize)}"))
    partial = magnitudes.sum(axis=1, dtype=np.int64) * max(abs(low), abs(high))
    partial += np.abs(bias.astype(np.int64))
    row = int(partial.argmax())
    if partial[row] > INT32[1]:
        raise RangeError(
            f"the int32 accumulator of output {row} may overflow",
            why=f"its sum over {weight.shape[1]} inputs in [{low}, {high}] and a bias of "
            f"{int(bias[row])} reaches {partial[row]}, and int32 ends at {INT32[1]}",
            todo="use a coarser weight or activation scale for this layer",
        )
    return int(partial[row])


def sum_bounds(value: Ranged, count: int) -> tuple[int, int]:
    """Bounds of the sum of at most `count` entries, and of all its partial sums."""
    return min(value.low, 0) * count, max(value.high, 0) * count


def check_sum(what: str, value: Ranged, count: int, dtype: str) -> None:
    """Refuse a sum that might leave its type.

    Raises
    ------
    RangeError
        Naming the sum.
    """
    low, high = sum_bounds(value, count)
    bottom, top = dtype_bounds(dtype)
    if low < bottom or high > top:
        raise RangeError(
            f"the {what} may overflow {dtype}",
            why=f"the sum of {count} entries in [{value.low}, {value.high}] is in [{low}, {high}]",
            todo="use a shorter maximal sequence length or narrower operands",
        )


class Place:
    """Some index: whatever is computed of it is one too, and a comparison may hold or not."""

    def _place(self, other: object) -> Place:
        return self

    def _condition(self, other: object) -> Condition:
        return Condition()

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _place
    __floordiv__ = __mod__ = _place
    __lt__ = __le__ = __gt__ = __ge__ = _condition


class IntervalTensor:
    """An operand or a stage.

    Parameters
    ----------
    value
        What every entry is.
    shape
        Extents.
    dtype
        Storage type.
    array : numpy.ndarray, optional
        Contents, where they are known.
    """

    def __init__(
        self, value: Ranged, shape: Shape, dtype: str, array: Integers | None = None
    ) -> None:
        self.value = value
        self.shape = shape
        self.dtype = dtype
        self.array = array

    def __getitem__(self, index: Index | tuple[Index, ...]) -> Ranged:
        return self.value


class IntervalDomain(Domain[IntervalTensor]):
    """See the module, and `ibert_tvm.relay_passes.integer.domain`.

    Parameters
    ----------
    batch
        Sequences.
    checked : collection of Ranged
        Values of the program's inputs: the runtime checks what they name.
    """

    def __init__(self, batch: int, checked: list[Ranged]) -> None:
        self.batch = batch
        self.checked = checked
        self.stages: dict[str, tuple[int, int]] = {}

    def _stage(self, name: str, value: Ranged, shape: Shape, dtype: str) -> IntervalTensor:
        if dtype:
            low, high = dtype_bounds(dtype)
            if value.low < low or value.high > high:
                raise RangeError(
                    f"a value in [{value.low}, {value.high}] does not fit {dtype}",
                    why=f"{dtype} holds [{low}, {high}]",
                    todo="use a coarser scale for this value, or a wider storage type",
                )
        self.stages[name] = (value.low, value.high)
        return IntervalTensor(value, shape, dtype or value.dtype)

    def define(self, name: str, shape: Shape, entry: EntryAt, dtype: str = "") -> IntervalTensor:
        """Apply the function to any place."""
        return self._stage(name, ranged(entry(*(Place() for _ in shape))), shape, dtype)

    def sum(
        self, name: str, shape: Shape, extent: int, entry: EntryAt, dtype: str = ""
    ) -> IntervalTensor:
        """Add up as many entries as there are."""
        value = ranged(entry(*(Place() for _ in shape), Place()))
        check_sum(name, value, extent, dtype or "int64")
        return self._stage(name, Ranged(*sum_bounds(value, extent)), shape, dtype)

    def max(
        self, name: str, shape: Shape, extent: int, entry: EntryAt, dtype: str = ""
    ) -> IntervalTensor:
        """One of the entries."""
        value = ranged(entry(*(Place() for _ in shape), Place()))
        return self._stage(name, value, shape, dtype)

    def widened(
        self, weight: IntervalTensor, scales: IntervalTensor, channels: int
    ) -> IntervalTensor:
        """Of half bytes that are known, the entries are."""
        made = super().widened(weight, scales, channels)
        if weight.array is not None and scales.array is not None:
            made.array = nibbles.unpack(weight.array, scales.array, channels)
        return made

    def linear(
        self, x: IntervalTensor, weight: IntervalTensor, bias: IntervalTensor
    ) -> IntervalTensor:
        """Bound every row by its own weights and bias."""
        if weight.array is None or bias.array is None:
            raise LoweringError(
                "weight or bias of a linear layer is not a parameter",
                why="its accumulator is bounded by the actual integers",
                todo="pass weight and bias as parameters of the function",
            )
        check_accumulator(weight.array, bias.array, x.value.low, x.value.high)
        low, high = accumulator_bounds(weight.array, x.value.low, x.value.high)
        offset = bias.array.astype(np.int64)
        value = Ranged(int((low + offset).min()), int((high + offset).max()))
        return self._stage("accumulator", value, (*x.shape[:-1], weight.shape[0]), "int32")

    def distance_products(
        self, x: IntervalTensor, table: IntervalTensor, heads: int
    ) -> IntervalTensor:
        """Bound every head and distance by its own vector; partial sums by the widest entries."""
        if table.array is None:
            raise LoweringError(
                "the vectors for distances are not a parameter",
                why="their products are bounded by the actual integers",
                todo="pass the table as a parameter of the function",
            )
        rows, channels = x.shape
        check_sum("products", x.value * table.value, channels // heads, "int32")
        vectors = table.array.reshape(heads, channels // heads, -1).swapaxes(1, 2)
        by_row = vectors.reshape(-1, channels // heads)
        low, high = accumulator_bounds(by_row, x.value.low, x.value.high)
        length = rows // self.batch
        value = Ranged(int(low.min()), int(high.max()))
        return self._stage("products", value, (self.batch, length, heads, length), "int32")

    def heads(self, attention: Windowed, operands: Mapping[str, IntervalTensor]) -> _IntervalHeads:
        """See operands by heads."""
        return _IntervalHeads(self, attention, operands)

    def lookup(self, value: Entry, rows: int, source: IntervalTensor) -> Place:
        """Refuse places that a table does not have, unless the runtime checks them."""
        value = ranged(value)
        given = any(value is one for one in self.checked)
        if not given and value.low < 0:
            raise RangeError(
                f"positions from {value.low}",
                why="the rows of a table are counted from 0",
                todo="quantise the model again",
            )
        if not given and value.high >= rows:
            raise RangeError(
                f"positions up to {value.high}",
                why=f"the table has {rows} rows; sequences of {source.shape[-1]} tokens are asked "
                "for",
                todo="use a shorter maximal sequence length",
            )
        return Place()

    def index(self, value: Entry) -> Place:
        """Any place."""
        return Place()

    def number(self, index: Index, low: int, high: int) -> Ranged:
        """What is known of it."""
        return Ranged(low, high)

    def tokens(self, length: int) -> Ranged:
        """Any number up to that of the longest sequence."""
        return Ranged(1, length)

    def condition(self, comparison: Comparison) -> Condition:
        """May hold or not."""
        return Condition()

    def choose(self, comparison: Comparison, yes: Entry, no: Entry) -> Ranged:
        """Either."""
        a, b = ranged(yes), ranged(no)
        return Ranged(min(a.low, b.low), max(a.high, b.high))

    def at_most(self, index: Index, bound: int) -> Place:
        """Any place."""
        return Place()

    at_least = at_most

    def row_of_token(
        self, x: IntervalTensor, slots: IntervalTensor | None, batch: Index, token: Index
    ) -> Place:
        """Any place."""
        return Place()

    def bounds(self, tensor: IntervalTensor) -> tuple[int, int]:
        """Interval of the entries."""
        return tensor.value.low, tensor.value.high


class _IntervalHeads(Heads[IntervalTensor]):
    """Operands of attention at any sequence, head, query and key."""

    def __init__(
        self, domain: IntervalDomain, attention: Windowed, operands: Mapping[str, IntervalTensor]
    ) -> None:
        super().__init__(domain, attention, operands, (0, 0), 0, 0)
        q, k, self.v = operands["q"], operands["k"], operands["v"]
        self.channels = q.shape[-1] // attention.num_heads
        self.key_count = q.shape[0] // domain.batch
        # One value may be both, but not in the same entries: a product of them is no square.
        entry = q.value * Ranged(k.value.low, k.value.high)
        check_sum("score", entry, self.channels, "int32")
        self._score = Ranged(*sum_bounds(entry, self.channels))
        values = [self._score, *(x.value for x in self.terms)]
        self.score_bounds = (sum(v.low for v in values), sum(v.high for v in values))
        self.value_bounds = domain.bounds(self.v)

    def _stage(self, name: str, value: Ranged, dtype: str = "int32") -> IntervalTensor:
        return self.domain.define(name, (), lambda: value, dtype)

    def kept_key(self, batch: Index, key: Index) -> Condition:
        """May count or not."""
        return Condition()

    def in_window(self, batch: Index, query: Index, key: Index) -> Condition:
        """May count or not."""
        return Condition()

    def products(self) -> IntervalTensor:
        """Scores of keys that count."""
        return self._stage("score", self._score)

    def weights(self, name: str, entry: EntryAt, largest: int) -> IntervalTensor:
        """Any query and key."""
        return self.define(name, (0, 0), entry, "uint8")

    def row_max(self, name: str, scores: IntervalTensor) -> IntervalTensor:
        """A score."""
        return self._stage(name, scores.value)

    def row_sum(self, name: str, x: IntervalTensor, largest: int) -> IntervalTensor:
        """Sum over as many keys as there are."""
        check_sum(name, x.value, self.key_count, "int32")
        return self._stage(name, Ranged(*sum_bounds(x.value, self.key_count)))

    def context(self, weights: IntervalTensor, largest: int) -> EntryAt:
        """Sum over as many keys as there are."""
        entry = weights.value * self.v.value
        check_sum("context", entry, self.key_count, "int32")
        value = self._stage("context", Ranged(*sum_bounds(entry, self.key_count)))
        return lambda b, h, i, d: value.value

    def output(self, entry: EntryAt, multiplier: IntervalTensor, dtype: str) -> IntervalTensor:
        """Any entry of the result."""
        return self.define(
            "attended",
            (0, 0),
            lambda b, h, i, d: entry(b, h, i, d, per_channel(multiplier, d)),
            dtype,
        )
