"""The domain of arrays: operators evaluated with NumPy, the reference of compiled code.

Entries are arrays that broadcast: a stage is its function applied to the open mesh of its indices.
What the arrays are made of is a parameter, `Numbers`. With NumPy (`NumpyNumbers`) integers are
int64, or Python's own, which have no bounds: evaluated with these, a program shows that no
intermediate leaves the interval that is proven of it. Training runs the same domain on torch
tensors (`ibert_tvm.train.integers`), so there is no second domain that could differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias, cast

import numpy as np

from ..dialect.arrays import AnyArray, Integers
from ..errors import RangeError
from ..spec.short_softmax import VALUE_LIMIT
from ..spec.values import not_equal
from .domain import Comparison, Condition, Domain, Entry, EntryAt, Heads, Index, Shape, Windowed
from .operator import per_channel
from .types import dtype_bounds

Array: TypeAlias = AnyArray
"""An array of a `Numbers`: NumPy's, or what answers NumPy's operators and functions."""


class Numbers(Protocol):
    """What arrays are made of, and the few things that NumPy's functions do not do for all."""

    @property
    def kind(self) -> type:
        """Type of an entry, as `numpy.ndarray.astype` takes it."""

    def array(self, value: Entry, shape: Shape) -> Array:
        """Return an entry as an array of whole numbers of this shape."""

    def product(self, a: Array, b: Array, largest_a: int, largest_b: int) -> Array:
        """Compute ``a @ b`` exactly, given bounds of the magnitudes."""

    def bounds(self, array: Array) -> tuple[int, int]:
        """Least and largest entry of an array that has some."""


class NumpyNumbers:
    """NumPy arrays.

    Parameters
    ----------
    kind
        ``numpy.int64``, or ``object`` for integers without bounds.
    """

    def __init__(self, kind: type = np.int64) -> None:
        self.kind = kind

    def array(self, value: Entry, shape: Shape) -> Array:
        """Return the value as an array of a shape."""
        return np.broadcast_to(np.asarray(value, self.kind), shape)

    def product(self, a: Array, b: Array, largest_a: int, largest_b: int) -> Array:
        """Return the exact matrix product of two arrays within these magnitudes."""
        return a @ b if a.dtype == object else exact_matmul(a, b)

    def bounds(self, array: Array) -> tuple[int, int]:
        """Return the least and the greatest element."""
        return int(array.min()), int(array.max())


def exact_matmul(a: Integers, b: Integers) -> Integers:
    """``a @ b`` of integer arrays, exactly.

    Matrix products of small integers go through floating-point BLAS, because NumPy has no fast
    integer product. That is exact where ``K max|a| max|b|`` is below 2^24 (float32) or 2^53
    (float64): every product and every partial sum, in any order and with or without fused
    multiply-add, is then an integer that the type represents. Beyond that the product is int64.

    Parameters
    ----------
    a, b : numpy.ndarray
        Integers [..., M, K] and [..., K, N].

    Returns
    -------
    numpy.ndarray
        int64 [..., M, N].

    Raises
    ------
    RangeError
        If the bound ``K max|a| max|b|`` does not fit int64.
    """
    if a.size == 0 or b.size == 0:
        return a.astype(np.int64) @ b.astype(np.int64)
    bound = a.shape[-1] * _largest(a) * _largest(b)
    if bound >= 2**63:
        raise RangeError(
            "a matrix product may not fit int64",
            why=f"its elements are bounded by {bound}",
            todo="use narrower operands",
        )
    if bound >= 2**53:
        return a.astype(np.int64) @ b.astype(np.int64)
    real = np.float32 if bound < 2**24 else np.float64
    if a.ndim > 2:  # transposed stacks of matrices would not reach BLAS
        a, b = np.ascontiguousarray(a, real), np.ascontiguousarray(b, real)
    return (a.astype(real, copy=False) @ b.astype(real, copy=False)).astype(np.int64)


def _largest(a: Integers) -> int:
    return max(int(a.max()), -int(a.min()))


class _Axis(np.ndarray):
    """All indices of one axis of a mesh; what is computed of them is a plain array."""

    axis: int | None

    def __array_finalize__(self, obj: Any) -> None:
        self.axis = None


def mesh(shape: Shape) -> list[_Axis]:
    """Return the indices of all axes as arrays that broadcast; each knows its ``axis``."""
    axes = []
    for axis, extent in enumerate(shape):
        view = [1] * len(shape)
        view[axis] = extent
        index = np.arange(extent).reshape(view).view(_Axis)
        index.axis = axis
        axes.append(index)
    return axes


class ArrayTensor:
    """An operand or a stage: an array of wide integers, and the type it is stored in."""

    def __init__(self, array: Array, dtype: str, numbers: Numbers) -> None:
        self.array, self.dtype, self._numbers = array, dtype, numbers

    @property
    def shape(self) -> Shape:
        """Extents."""
        return self.array.shape

    @property
    def largest(self) -> int:
        """Bound of the magnitudes."""
        low, high = dtype_bounds(self.dtype)
        if high >= 2**16 and self.array.size:
            low, high = self._numbers.bounds(self.array)
        return max(-low, high)

    def __getitem__(self, given: Index | tuple[Index, ...]) -> Entry:
        return cast(Entry, self._entries(given if isinstance(given, tuple) else (given,)))

    def _entries(self, index: tuple[Any, ...]) -> Array:
        axes = [getattr(i, "axis", None) for i in index]
        found = [axis for axis in axes if axis is not None]
        if (
            len(found) == len(axes)
            and found == sorted(found)
            and self.shape == tuple(i.size for i in index)
        ):
            view = [1] * index[0].ndim
            for i in index:
                view[i.axis] = i.size
            return self.array.reshape(tuple(view))  # as it is: what the indices would copy
        entries = self.array[tuple(_plain(i) for i in index)]
        return entries if isinstance(entries, type(self.array)) else np.asarray(entries)


def _plain(index: object) -> Array:
    """Array of an index or a comparison of indices; values that are used as such are arrays."""
    known = isinstance(index, (int, np.ndarray, np.generic))
    return np.asarray(index) if known else cast(Array, index)


class ArrayDomain(Domain[ArrayTensor]):
    """See the module, and `ibert_tvm.relay_passes.integer.domain`.

    Parameters
    ----------
    batch
        Sequences.
    where
        The operator, for messages.
    numbers
        What arrays are made of.
    stages
        Where to keep intermediates, by name.
    """

    def __init__(
        self, batch: int, where: str, numbers: Numbers, stages: dict[str, ArrayTensor] | None = None
    ) -> None:
        self.batch, self.where, self.numbers, self._stages = batch, where, numbers, stages

    def stage(self, name: str, array: Array, dtype: str = "") -> ArrayTensor:
        """Name an intermediate."""
        tensor = ArrayTensor(array, dtype or "int64", self.numbers)
        if self._stages is not None:
            self._stages[name] = tensor
        return tensor

    def define(self, name: str, shape: Shape, entry: EntryAt, dtype: str = "") -> ArrayTensor:
        """Apply the function to the mesh."""
        return self.stage(name, self.numbers.array(entry(*mesh(shape)), shape), dtype)

    def sum(
        self, name: str, shape: Shape, extent: int, entry: EntryAt, dtype: str = ""
    ) -> ArrayTensor:
        """Sum over the last axis of the mesh."""
        whole = (*shape, extent)
        terms = self.numbers.array(entry(*mesh(whole)), whole)
        return self.stage(name, terms.sum(axis=-1), dtype)

    def max(
        self, name: str, shape: Shape, extent: int, entry: EntryAt, dtype: str = ""
    ) -> ArrayTensor:
        """Largest of the last axis of the mesh."""
        whole = (*shape, extent)
        terms = self.numbers.array(entry(*mesh(whole)), whole)
        return self.stage(name, terms.max(axis=-1), dtype)

    def linear(self, x: ArrayTensor, weight: ArrayTensor, bias: ArrayTensor) -> ArrayTensor:
        """Multiply exactly."""
        product = self.numbers.product(x.array, weight.array.T, x.largest, weight.largest)
        return ArrayTensor(product + bias.array, "int32", self.numbers)

    def distance_products(self, x: ArrayTensor, table: ArrayTensor, heads: int) -> ArrayTensor:
        """Multiply with the vectors of all distances, and pick those of each token."""
        rows, channels = x.shape
        length, distances = rows // self.batch, table.shape[1]
        by_head = x.array.reshape(rows, heads, -1).swapaxes(0, 1)
        vectors = table.array.reshape(heads, channels // heads, distances)
        products = self.numbers.product(by_head, vectors, x.largest, table.largest)
        products = products.swapaxes(0, 1).reshape(self.batch, length, heads, distances)
        place = np.arange(length)
        column = place[None, :] - place[:, None] + distances // 2
        picked = np.take_along_axis(products, column[None, :, None, :], axis=3)
        return self.stage("products", picked, "int32")

    def heads(self, attention: Windowed, operands: Mapping[str, ArrayTensor]) -> _ArrayHeads:
        """See all sequences by heads."""
        return _ArrayHeads(self, attention, operands)

    def lookup(self, value: Entry, rows: int, source: ArrayTensor) -> Index:
        """Check that there are such rows."""
        array = _plain(value)
        low, high = self.numbers.bounds(array) if array.size else (0, 0)
        if low < 0 or high >= rows:
            raise RangeError(
                f"ids in [{low}, {high}]",
                self.where,
                f"the table has {rows} rows",
                "use the tokenizer of this model, and no more tokens than it has positions",
            )
        return self.index(value)

    def index(self, value: Entry) -> Index:
        """Index arrays are int64, whatever values are."""
        return cast(Index, _plain(value).astype(np.int64))

    def number(self, index: Index, low: int, high: int) -> Entry:
        """Return the index."""
        return cast(Entry, _plain(index).astype(self.numbers.kind))

    def tokens(self, length: int) -> int:
        """Return the number."""
        return length

    def condition(self, comparison: Comparison) -> Condition:
        """Return the comparison."""
        return _plain(comparison)

    def choose(self, comparison: Comparison, yes: Entry, no: Entry) -> Entry:
        """Choose elementwise: both were read at places that exist."""
        return cast(Entry, np.where(_plain(comparison), _plain(yes), _plain(no)))

    def at_most(self, index: Index, bound: int) -> Index:
        """``min(index, bound)``."""
        return cast(Index, np.minimum(_plain(index), bound))

    def at_least(self, index: Index, bound: int) -> Index:
        """``max(index, bound)``."""
        return cast(Index, np.maximum(_plain(index), bound))

    def row_of_token(
        self, x: ArrayTensor, slots: ArrayTensor | None, batch: Index, token: Index
    ) -> Index:
        """See the protocol."""
        if slots is None:
            return cast(Index, _plain(batch * (x.shape[0] // self.batch) + token))
        return self.at_least(self.index(slots[batch, token]), 0)

    def bounds(self, tensor: ArrayTensor) -> tuple[int, int]:
        """Those of the type: elements need no more."""
        return dtype_bounds(tensor.dtype)


class _ArrayHeads(Heads[ArrayTensor]):
    """Operands of attention by heads, [b, H, s, ...]."""

    domain: ArrayDomain

    def __init__(
        self, domain: ArrayDomain, attention: Windowed, operands: Mapping[str, ArrayTensor]
    ) -> None:
        count = attention.num_heads
        rows, channels = operands["q"].shape
        length = rows // domain.batch
        super().__init__(domain, attention, operands, (domain.batch, count), length, length)
        self.key_count = length
        self.channels = channels // count
        self.q, self.k, self.v = (self._split(operands[name].array) for name in "qkv")
        self.tokens = operands.get("tokens")
        scores = self._by_head(self.q, self.k.swapaxes(-1, -2), 128, 128)
        self._products = domain.stage("score", scores, "int32")
        bounds = [domain.numbers.bounds(x.array) for x in (self._products, *self.terms)]
        self.score_bounds = (sum(low for low, _ in bounds), sum(high for _, high in bounds))
        self.value_bounds = domain.numbers.bounds(self.v)

    def _split(self, x: Array) -> Array:
        return x.reshape(self.leading[0], self.rows, -1, self.channels).transpose(0, 2, 1, 3)

    def _by_head(self, x: Array, shared: Array, largest_x: int, largest_shared: int) -> Array:
        """Products of what heads of queries have with what the heads of keys have.

        Those that share keys are rows of one product.
        """
        together = x.reshape(len(x), shared.shape[1], -1, x.shape[-1])
        product = self.domain.numbers.product(together, shared, largest_x, largest_shared)
        return product.reshape(*x.shape[:-1], -1)

    def _place(self, batch: Index, token: Index) -> Array:
        """Position of a token in its sequence, where padding is left out."""
        if self.tokens is None:
            return _plain(token)
        return _plain(self.domain.index(self.tokens[batch, token]))

    def kept_key(self, batch: Index, key: Index) -> Condition:
        """By the mask."""
        if self.mask is None:
            return np.ones(np.asarray(key).shape, np.bool_)
        return not_equal(self.mask[batch, key], 0)

    def in_window(self, batch: Index, query: Index, key: Index) -> Condition:
        """By the distance, and by the mask of pairs."""
        distance = self._place(batch, key) - self._place(batch, query)
        near = (distance >= -self.attention.before) & (distance <= self.attention.after)
        return near if self.pairs is None else near & not_equal(self.pairs[batch, query, key], 0)

    def places(self, batch: Index, query: Index, key: Index) -> tuple[Index, Index]:
        """Those of packed tokens are told."""
        return cast(Index, self._place(batch, query)), cast(Index, self._place(batch, key))

    def products(self) -> ArrayTensor:
        """Q K^T."""
        return self._products

    def weights(self, name: str, entry: EntryAt, largest: int) -> ArrayTensor:
        """[b, H, s, s]."""
        return self.per_score(name, entry)

    def row_max(self, name: str, scores: ArrayTensor) -> ArrayTensor:
        """Largest of the last axis."""
        return self.domain.stage(name, scores.array.max(axis=-1), "int32")

    def row_sum(self, name: str, x: ArrayTensor, largest: int) -> ArrayTensor:
        """Sum of the last axis."""
        return self.domain.stage(name, x.array.sum(axis=-1), "int32")

    def context(self, weights: ArrayTensor, largest: int) -> EntryAt:
        """P V."""
        largest_value = VALUE_LIMIT if self.wide_values else 128
        product = self._by_head(weights.array, self.v, largest, largest_value)
        stage = self.domain.stage("context", product, "int32")
        return lambda b, h, i, d: stage[b, h, i, d]

    def output(self, entry: EntryAt, multiplier: ArrayTensor, dtype: str) -> ArrayTensor:
        """[b s, H D]."""

        def channel(b: Index, h: Index, i: Index, d: Index) -> Entry:
            factor = per_channel(multiplier, _plain(h * self.channels + d))
            return entry(b, h, i, d, factor)

        rows = self.define("attended", (self.rows, self.channels), channel, dtype)
        merged = rows.array.transpose(0, 2, 1, 3).reshape(self.leading[0] * self.rows, -1)
        return ArrayTensor(merged, dtype, self.domain.numbers)
