"""The domain of arrays: operators evaluated with NumPy, the reference of compiled code.

Entries are arrays that broadcast: a stage is its function applied to the open mesh of its indices.
Integers are int64, or Python's own, which have no bounds: evaluated with these, a program shows
that no intermediate leaves the interval that is proven of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..errors import RangeError
from ..spec.values import not_equal
from .domain import HeadStages
from .operator import per_channel
from .types import dtype_bounds

Index = Any
Entry = Any


def exact_matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
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


def _largest(a: np.ndarray) -> int:
    return max(int(a.max()), -int(a.min()))


class _Axis(np.ndarray):
    """All indices of one axis of a mesh; what is computed of them is a plain array."""

    axis: int | None

    def __array_finalize__(self, obj: Any) -> None:
        self.axis = None


def mesh(shape: tuple[int, ...]) -> list[Any]:
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

    def __init__(self, array: np.ndarray, dtype: str, kind: Any = np.int64) -> None:
        self.array = array.astype(kind, copy=False)
        self.dtype = dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""
        return self.array.shape

    def __getitem__(self, index: Any) -> np.ndarray:
        index = index if isinstance(index, tuple) else (index,)
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
            return self.array.reshape(view)  # as it is: what the indices would copy
        return np.asarray(self.array[tuple(np.asarray(i) for i in index)])


class ElementDomain:
    """What the domains share in which a stage is all of its elements: arrays, and torch tensors."""

    def square_sum(
        self: Any,
        name: str,
        x: Callable[..., Entry],
        total: Any,
        mean: Any,
        shape: tuple[int, int],
    ) -> Any:
        """As it says: deviations, squared and added up."""
        if mean is None:
            return self.sum(name, shape[:1], shape[1], lambda row, k: x(row, k) ** 2)
        return self.sum(name, shape[:1], shape[1], lambda row, k: (x(row, k) - mean[row]) ** 2)

    def tokens(self, length: int) -> int:
        """Return the number."""
        return length

    def choose(self: Any, comparison: Any, yes: Entry, no: Entry) -> Any:
        """Choose elementwise: both were read at places that exist."""
        return np.where(self.condition(comparison), yes, no)

    def bounds(self, tensor: Any) -> tuple[int, int]:
        """Those of the type: elements need no more."""
        return dtype_bounds(tensor.dtype)


class ArrayDomain(ElementDomain):
    """See the module, and `ibert_tvm.relay_passes.integer.domain`.

    Parameters
    ----------
    batch : int
        Sequences.
    where : str
        The operator, for messages.
    kind : type
        ``numpy.int64``, or ``object`` for unbounded integers.
    """

    def __init__(self, batch: int, where: str, kind: Any = np.int64) -> None:
        self.batch = batch
        self.where = where
        self.kind = kind
        self.stages: dict[str, ArrayTensor] = {}

    def define(
        self, name: str, shape: tuple[int, ...], entry: Callable[..., Entry], dtype: str = ""
    ) -> ArrayTensor:
        """Apply the function to the mesh."""
        value = np.broadcast_to(np.asarray(entry(*mesh(shape))), shape)
        self.stages[name] = ArrayTensor(value, dtype, self.kind)
        return self.stages[name]

    def sum(
        self,
        name: str,
        shape: tuple[int, ...],
        extent: int,
        entry: Callable[..., Entry],
        dtype: str = "",
    ) -> ArrayTensor:
        """Sum over the last axis of the mesh."""
        return self._reduced(np.sum, name, (*shape, extent), entry, dtype)

    def max(
        self,
        name: str,
        shape: tuple[int, ...],
        extent: int,
        entry: Callable[..., Entry],
        dtype: str = "",
    ) -> ArrayTensor:
        """Largest of the last axis of the mesh."""
        return self._reduced(np.max, name, (*shape, extent), entry, dtype)

    def _reduced(
        self,
        reduce: Callable[..., Any],
        name: str,
        whole: tuple[int, ...],
        entry: Callable[..., Entry],
        dtype: str,
    ) -> ArrayTensor:
        terms = np.broadcast_to(np.asarray(entry(*mesh(whole)), self.kind), whole)
        self.stages[name] = ArrayTensor(reduce(terms, axis=-1), dtype, self.kind)
        return self.stages[name]

    def linear(self, x: ArrayTensor, weight: ArrayTensor, bias: ArrayTensor) -> ArrayTensor:
        """Multiply exactly."""
        product = _product(x.array, weight.array.T)
        return ArrayTensor(product + bias.array, "int32", self.kind)

    def distance_products(self, x: ArrayTensor, table: ArrayTensor, heads: int) -> ArrayTensor:
        """Multiply with the vectors of all distances, and pick those of each token."""
        rows, channels = x.shape
        length, distances = rows // self.batch, table.shape[1]
        by_head = x.array.reshape(rows, heads, -1).swapaxes(0, 1)
        products = _product(by_head, table.array.reshape(heads, channels // heads, distances))
        products = products.swapaxes(0, 1).reshape(self.batch, length, heads, distances)
        place = np.arange(length)
        column = place[None, :] - place[:, None] + distances // 2
        picked = np.take_along_axis(products, column[None, :, None, :], axis=3)
        self.stages["products"] = ArrayTensor(picked, "int32", self.kind)
        return self.stages["products"]

    def heads(self, attention: Any, operands: Mapping[str, ArrayTensor]) -> _ArrayHeads:
        """See one sequence by heads."""
        return _ArrayHeads(self, attention, operands)

    def lookup(self, value: np.ndarray, rows: int, source: ArrayTensor) -> np.ndarray:
        """Check that there are such rows."""
        if value.size and not (value.min() >= 0 and value.max() < rows):
            raise RangeError(
                f"ids in [{value.min()}, {value.max()}]",
                self.where,
                f"the table has {rows} rows",
                "use the tokenizer of this model, and no more tokens than it has positions",
            )
        return self.index(value)

    def index(self, value: np.ndarray) -> np.ndarray:
        """Index arrays are int64, whatever values are."""
        return value.astype(np.int64)

    def number(self, index: Index, low: int, high: int) -> np.ndarray:
        """Return the index."""
        return np.asarray(index).astype(self.kind)

    def condition(self, comparison: Any) -> np.ndarray:
        """Return the comparison."""
        return np.asarray(comparison)

    def at_most(self, index: Index, bound: int) -> np.ndarray:
        """``min(index, bound)``."""
        return np.asarray(np.minimum(np.asarray(index), bound))

    def at_least(self, index: Index, bound: int) -> np.ndarray:
        """``max(index, bound)``."""
        return np.asarray(np.maximum(np.asarray(index), bound))

    def row_of_token(
        self, x: ArrayTensor, slots: ArrayTensor | None, batch: Index, token: Index
    ) -> np.ndarray:
        """See the protocol."""
        if slots is None:
            return np.asarray(batch * (x.shape[0] // self.batch) + token)
        return self.at_least(self.index(slots[batch, token]), 0)


def _product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """``a @ b`` without loss, in the kind of integers that `a` has."""
    return a @ b if a.dtype == object else exact_matmul(a, b)


class _ArrayHeads(HeadStages):
    """One sequence, [1, H, s, ...]: evaluation takes sequences one by one, which bounds memory."""

    def __init__(
        self, domain: ArrayDomain, attention: Any, operands: Mapping[str, ArrayTensor]
    ) -> None:
        self.count = attention.num_heads
        length, channels = operands["q"].shape
        super().__init__(domain, attention, operands, (1, self.count), length, length)
        self.key_count = length
        self.channels = channels // self.count
        self.q, self.k, self.v = (self._split(operands[name].array) for name in "qkv")
        self.key_heads = self.k.shape[1]
        self.tokens = operands.get("tokens")
        self._products = self._reduced("score", self._by_head(self.q, self.k.swapaxes(-1, -2)))
        terms = [self._products, *self.terms]
        low, high = (sum(int(f(x.array)) for x in terms) for f in (np.min, np.max))
        self.score_bounds = (low, high)
        self.value_bounds = (int(self.v.min()), int(self.v.max()))

    def _reduced(self, name: str, array: np.ndarray) -> ArrayTensor:
        tensor = ArrayTensor(array, "int32", self.domain.kind)
        self.domain.stages[name] = tensor
        return tensor

    def _split(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(len(x), 1, -1, self.channels).transpose(1, 2, 0, 3)

    def _by_head(self, x: np.ndarray, shared: np.ndarray) -> np.ndarray:
        """Products of what heads of queries have with what the heads of keys have.

        Those that share keys are rows of one product.
        """
        together = x.reshape(1, self.key_heads, -1, x.shape[-1])
        return _product(together, shared).reshape(*x.shape[:-1], -1)

    def _place(self, token: Index) -> np.ndarray:
        """Position of a token in its sequence, where padding is left out."""
        if self.tokens is None:
            return np.asarray(token)
        return self.domain.index(self.tokens.array[np.asarray(token)])

    def kept_key(self, batch: Index, key: Index) -> Any:
        """By the mask."""
        if self.mask is None:
            return np.ones(np.asarray(key).shape, np.bool_)
        return not_equal(self.mask[0, key], 0)

    def in_window(self, batch: Index, query: Index, key: Index) -> Any:
        """By the distance, and by the mask of pairs."""
        distance = self._place(key) - self._place(query)
        near = (distance >= -self.attention.before) & (distance <= self.attention.after)
        return near if self.pairs is None else near & not_equal(self.pairs[query, key], 0)

    def places(self, batch: Index, query: Index, key: Index) -> tuple[Index, Index]:
        """Those of packed tokens are told."""
        return self._place(query), self._place(key)

    def pair(self, *index: Index) -> tuple[Index, ...]:
        """Of the only sequence there is."""
        return (0, *index[1:])

    def products(self) -> ArrayTensor:
        """Q K^T."""
        return self._products

    def weights(self, name: str, entry: Callable[..., Entry], largest: int) -> ArrayTensor:
        """[1, H, s, s]."""
        return self.per_score(name, entry)

    def row_max(self, name: str, scores: ArrayTensor) -> ArrayTensor:
        """Largest of the last axis."""
        return self._reduced(name, scores.array.max(axis=-1))

    def row_sum(self, name: str, x: ArrayTensor, largest: int) -> ArrayTensor:
        """Sum of the last axis."""
        return self._reduced(name, x.array.sum(axis=-1))

    def context(self, weights: ArrayTensor, largest: int) -> Callable[..., Entry]:
        """P V."""
        product = self._reduced("context", self._by_head(weights.array, self.v))
        return lambda b, h, i, d: product[b, h, i, d]

    def output(
        self, entry: Callable[..., Entry], multiplier: ArrayTensor, dtype: str
    ) -> ArrayTensor:
        """[s, H D]."""

        def channel(b: Index, h: Index, i: Index, d: Index) -> Entry:
            factor = per_channel(multiplier, np.asarray(h * self.channels + d))
            return entry(b, h, i, d, factor)

        rows = self.define("attended", (self.key_count, self.channels), channel, dtype)
        merged = rows.array.transpose(0, 2, 1, 3).reshape(self.key_count, -1)
        return ArrayTensor(merged, dtype, self.domain.kind)
