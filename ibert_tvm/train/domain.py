"""The domain of torch tensors: bodies of integer operators on whole batches, on any device.

It is the domain of arrays (`ibert_tvm.relay_passes.integer.arrays`) with tensors in the place of
arrays: indices of a mesh stay NumPy's, entries are `TensorArray`, int64. What differs is how
products and reductions are computed, and that attention takes all sequences at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from ibert_tvm.relay_passes.errors import RangeError
from ibert_tvm.relay_passes.integer.arrays import ElementDomain, mesh
from ibert_tvm.relay_passes.integer.domain import HeadStages
from ibert_tvm.relay_passes.integer.operator import per_channel
from ibert_tvm.relay_passes.integer.types import dtype_bounds
from ibert_tvm.relay_passes.spec.short_softmax import VALUE_LIMIT
from ibert_tvm.relay_passes.spec.values import not_equal

from .tensors import TensorArray, tensor_of

__all__ = ["TensorDomain", "TensorStage", "exact_product"]

Index = Any
Entry = Any
_EXACT = 2**24
"""float32 has every integer up to here."""


def exact_product(a: torch.Tensor, b: torch.Tensor, largest_a: int, largest_b: int) -> torch.Tensor:
    """``a @ b`` of integers, exactly, by float matrix products.

    In float32 where no partial sum can reach 2^24, cut along the inner axis if it must be; in
    float64 below 2^53. Every product and partial sum is then an integer that the type has. Where
    torch was told that float32 products may be less precise (TF32, bfloat16), all are float64.

    Parameters
    ----------
    a, b : torch.Tensor
        int64 [..., M, K] and [..., K, N].
    largest_a, largest_b : int
        Bounds of their magnitudes.

    Returns
    -------
    torch.Tensor
        int64 [..., M, N].

    Raises
    ------
    RangeError
        If a sum might not fit 53 bits.
    """
    inner, term = a.shape[-1], max(largest_a * largest_b, 1)
    if inner * term >= 2**53:
        raise RangeError(
            "a matrix product may not fit 53 bits",
            why=f"its elements are bounded by {inner * term}",
            todo="use narrower operands",
        )
    run = (_EXACT - 1) // term
    # Many short products would take longer than one of twice the width.
    if run * 4 < inner or torch.get_float32_matmul_precision() != "highest":
        return (a.double() @ b.double()).to(torch.int64)
    left, right = a.float(), b.float()
    if inner <= run:
        return (left @ right).to(torch.int64)
    cuts = range(0, inner, -(-inner // -(-inner // run)))
    parts = [left[..., k : k + cuts.step] @ right[..., k : k + cuts.step, :] for k in cuts]
    return torch.stack([part.to(torch.int64) for part in parts]).sum(0)


class TensorStage:
    """An operand or a stage: int64 numbers, and the type that they are stored in."""

    def __init__(self, tensor: torch.Tensor, dtype: str) -> None:
        self.tensor = tensor
        self.dtype = dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""
        return tuple(self.tensor.shape)

    @property
    def largest(self) -> int:
        """Bound of the magnitudes."""
        low, high = dtype_bounds(self.dtype)
        if high < 2**16:
            return max(-low, high)
        return max(int(self.tensor.max()), -int(self.tensor.min())) if self.tensor.numel() else 0

    def __getitem__(self, index: Any) -> TensorArray:
        index = index if isinstance(index, tuple) else (index,)
        axes = [getattr(i, "axis", None) for i in index]
        found = [axis for axis in axes if axis is not None]
        sizes = tuple(getattr(i, "size", 0) for i in index)
        if len(found) == len(axes) and found == sorted(found) and self.shape == sizes:
            view = [1] * index[0].ndim
            for i in index:
                view[i.axis] = i.size
            return TensorArray(self.tensor.reshape(view))  # as it is: what the indices would copy
        device = self.tensor.device
        return TensorArray(self.tensor[tuple(tensor_of(i, device) for i in index)])


class TensorDomain(ElementDomain):
    """See the module, and `ibert_tvm.relay_passes.integer.domain`.

    Parameters
    ----------
    batch : int
        Sequences.
    where : str
        The operator, for messages.
    device : torch.device
        Of all tensors.
    """

    def __init__(self, batch: int, where: str, device: torch.device) -> None:
        self.batch = batch
        self.where = where
        self.device = device

    def _tensor(self, entry: Entry, shape: tuple[int, ...]) -> torch.Tensor:
        value = tensor_of(entry, self.device)
        if not isinstance(value, torch.Tensor):
            value = torch.tensor(value, device=self.device)
        return value.to(torch.int64).expand(shape)

    def define(
        self, name: str, shape: tuple[int, ...], entry: Callable[..., Entry], dtype: str = ""
    ) -> TensorStage:
        """Apply the function to the mesh."""
        return TensorStage(self._tensor(entry(*mesh(shape)), shape), dtype or "int64")

    def sum(
        self,
        name: str,
        shape: tuple[int, ...],
        extent: int,
        entry: Callable[..., Entry],
        dtype: str = "",
    ) -> TensorStage:
        """Sum over the last axis of the mesh."""
        whole = (*shape, extent)
        terms = self._tensor(entry(*mesh(whole)), whole)
        return TensorStage(terms.sum(-1), dtype or "int64")

    def max(
        self,
        name: str,
        shape: tuple[int, ...],
        extent: int,
        entry: Callable[..., Entry],
        dtype: str = "",
    ) -> TensorStage:
        """Largest of the last axis of the mesh."""
        whole = (*shape, extent)
        terms = self._tensor(entry(*mesh(whole)), whole)
        return TensorStage(terms.amax(-1), dtype or "int64")

    def linear(self, x: TensorStage, weight: TensorStage, bias: TensorStage) -> TensorStage:
        """Multiply exactly."""
        product = exact_product(x.tensor, weight.tensor.T, x.largest, weight.largest)
        return TensorStage(product + bias.tensor, "int32")

    def distance_products(self, x: TensorStage, table: TensorStage, heads: int) -> TensorStage:
        """Multiply with the vectors of all distances, and pick those of each token."""
        rows, channels = x.shape
        length, distances = rows // self.batch, table.shape[1]
        by_head = x.tensor.reshape(rows, heads, -1).transpose(0, 1)
        vectors = table.tensor.reshape(heads, channels // heads, distances)
        products = exact_product(by_head, vectors, x.largest, table.largest)
        products = products.transpose(0, 1).reshape(self.batch, length, heads, distances)
        place = torch.arange(length, device=self.device)
        column = (place[None, :] - place[:, None] + distances // 2)[None, :, None, :]
        picked = torch.gather(products, 3, column.expand(self.batch, length, heads, length))
        return TensorStage(picked, "int32")

    def heads(self, attention: Any, operands: Mapping[str, TensorStage]) -> _TensorHeads:
        """See all sequences by heads."""
        return _TensorHeads(self, attention, operands)

    def lookup(self, value: TensorArray, rows: int, source: TensorStage) -> TensorArray:
        """Check that there are such rows."""
        tensor = value.tensor
        if tensor.numel():
            low, high = (int(bound) for bound in torch.aminmax(tensor))
            if not (low >= 0 and high < rows):
                raise RangeError(
                    f"ids in [{low}, {high}]",
                    self.where,
                    f"the table has {rows} rows",
                    "use the tokenizer of this model, and no more tokens than it has positions",
                )
        return value

    def index(self, value: TensorArray) -> TensorArray:
        """Return the value: tensors are indices."""
        return value

    def number(self, index: Index, low: int, high: int) -> Entry:
        """Return the index."""
        return index if isinstance(index, TensorArray) else np.asarray(index)

    def condition(self, comparison: Any) -> Any:
        """Return the comparison."""
        return comparison if isinstance(comparison, TensorArray) else np.asarray(comparison)

    def at_most(self, index: Index, bound: int) -> Index:
        """``min(index, bound)``."""
        return np.minimum(self.number(index, 0, bound), bound)

    def at_least(self, index: Index, bound: int) -> Index:
        """``max(index, bound)``."""
        return np.maximum(self.number(index, 0, bound), bound)

    def row_of_token(
        self, x: TensorStage, slots: TensorStage | None, batch: Index, token: Index
    ) -> Index:
        """See the protocol; what is trained is never packed."""
        if slots is not None:
            raise TypeError("a program that leaves padding out is for the compiler")
        return self.number(batch * (x.shape[0] // self.batch) + token, 0, x.shape[0])


class _TensorHeads(HeadStages):
    """All sequences, [b, H, s, ...]."""

    def __init__(
        self, domain: TensorDomain, attention: Any, operands: Mapping[str, TensorStage]
    ) -> None:
        count, batch = attention.num_heads, domain.batch
        rows, channels = operands["q"].shape
        length = rows // batch
        super().__init__(domain, attention, operands, (batch, count), length, length)
        self.key_count = length
        self.channels = channels // count
        self.q, self.k, self.v = (self._split(operands[name]) for name in "qkv")
        self.key_heads = self.k.shape[1]
        product = self._by_head(self.q, self.k.transpose(-1, -2), 128, 128)
        self._products = TensorStage(product, "int32")
        terms = [self._products.tensor, *(x.tensor for x in self.terms)]
        self.score_bounds = (
            sum(int(x.min()) for x in terms),
            sum(int(x.max()) for x in terms),
        )
        self.value_bounds = (int(self.v.min()), int(self.v.max()))
        self.largest_value = VALUE_LIMIT if self.wide_values else 128

    def _split(self, x: TensorStage) -> torch.Tensor:
        batch = self.leading[0]
        return x.tensor.reshape(batch, self.rows, -1, self.channels).transpose(1, 2)

    def _by_head(
        self, x: torch.Tensor, shared: torch.Tensor, largest_x: int, largest_shared: int
    ) -> torch.Tensor:
        """Products of what heads of queries have with what the heads of keys have.

        Those that share keys are rows of one product.
        """
        together = x.reshape(x.shape[0], self.key_heads, -1, x.shape[-1])
        product = exact_product(together, shared, largest_x, largest_shared)
        return product.reshape(*x.shape[:-1], -1)

    def kept_key(self, batch: Index, key: Index) -> Any:
        """By the mask."""
        if self.mask is None:
            return np.ones(np.asarray(key).shape, np.bool_)
        return not_equal(self.mask[batch, key], 0)

    def in_window(self, batch: Index, query: Index, key: Index) -> Any:
        """By the distance."""
        distance = np.asarray(key) - np.asarray(query)
        return (distance >= -self.attention.before) & (distance <= self.attention.after)

    def products(self) -> TensorStage:
        """Q K^T."""
        return self._products

    def weights(self, name: str, entry: Callable[..., Entry], largest: int) -> Any:
        """[b, H, s, s]."""
        return self.per_score(name, entry)

    def row_max(self, name: str, scores: TensorStage) -> TensorStage:
        """Largest of the last axis."""
        return TensorStage(scores.tensor.amax(-1), "int32")

    def row_sum(self, name: str, x: TensorStage, largest: int) -> TensorStage:
        """Sum of the last axis."""
        return TensorStage(x.tensor.sum(-1), "int32")

    def context(self, weights: TensorStage, largest: int) -> Callable[..., Entry]:
        """P V."""
        product = self._by_head(weights.tensor, self.v, largest, self.largest_value)
        stage = TensorStage(product, "int32")
        return lambda b, h, i, d: stage[b, h, i, d]

    def output(
        self, entry: Callable[..., Entry], multiplier: TensorStage, dtype: str
    ) -> TensorStage:
        """[b s, H D]."""

        def channel(b: Index, h: Index, i: Index, d: Index) -> Entry:
            factor = per_channel(multiplier, np.asarray(h * self.channels + d))
            return entry(b, h, i, d, factor)

        rows = self.define("attended", (self.rows, self.channels), channel, dtype)
        merged = rows.tensor.transpose(1, 2).reshape(self.leading[0] * self.rows, -1)
        return TensorStage(merged, dtype)
