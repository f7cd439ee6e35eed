"""What the body of an operator is written in: tensor expressions over an unspecified arithmetic.

A body is one method, ``Operator.body(domain, **operands)``. Three domains run it:

* `ibert_tvm.relay_passes.integer.arrays` evaluates it with NumPy (int64, or Python's unbounded
  integers), the reference that compiled code equals bit for bit;
* `ibert_tvm.relay_passes.integer.intervals` proves the interval of every stage;
* `ibert_tvm.relay_passes.emit.domain` traces it to TIR, which is what is compiled.

As in TVM's tensor expressions, a stage is defined by a function from indices to an entry, and
entries are values of `ibert_tvm.relay_passes.spec`. A hidden value [batch, seq_len, channels] is
seen as [batch * seq_len, channels], as kernels store it. Indices may be combined by ``+ - * // %``
and compared; what an index is differs from domain to domain, so a body turns one into a value by
`Domain.number` and a comparison of indices into a condition by `Domain.condition`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

Index = Any
"""An index of a stage: an array, a TIR variable or an expression of it, or any place at all."""
Entry = Any
"""A value of the specification: a NumPy array, or a `Ranged`."""


class Tensor(Protocol):
    """An operand or a stage."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Static extents."""

    @property
    def dtype(self) -> str:
        """Storage type; of a stage without one, that of the widest entry."""

    def __getitem__(self, index: Any) -> Entry:
        """One entry, as a value of the specification."""


class Heads(Protocol):
    """Attention's view of its operands: queries, keys and values by (sequence, head, row, column).

    Rows and keys may be padded to whole register tiles; entries beyond the true sizes count for
    nothing. Stages of a row have the indices ``b, h, i``, those of a score ``b, h, i, j``.

    Attributes
    ----------
    score_bounds
        Least and largest score of a key that counts, whatever the data.
    key_count
        Most keys that a row has.
    value_bounds
        Least and largest entry of V.
    wide_values
        Whether V has 16 bits.
    has_bias, has_window
        Whether `bias` and `in_window` say anything.
    """

    score_bounds: tuple[int, int]
    value_bounds: tuple[int, int]
    wide_values: bool
    key_count: int
    has_bias: bool
    has_window: bool

    def kept_key(self, batch: Index, key: Index) -> Any:
        """Whether a key counts, as far as that depends on the key alone: a condition."""

    def in_window(self, batch: Index, query: Index, key: Index) -> Any:
        """Whether a query may see a key, by what depends on both: a condition."""

    def bias(self, batch: Index, head: Index, query: Index, key: Index) -> Entry:
        """What is added to a score."""

    def products(self) -> Tensor:
        """Define Q K^T, [batch, heads, rows, keys], which may lack `key_correction`."""

    def key_correction(self, batch: Index, head: Index, key: Index) -> Entry:
        """What a product of this key lacks to be the score; 0 where operands carry no offset."""

    def exact_score(
        self, products: Any, batch: Index, head: Index, query: Index, key: Index
    ) -> Entry:
        """One of the products, corrected."""

    def per_key(self, name: str, entry: Callable[..., Entry]) -> Tensor:
        """Define a stage [batch, heads, keys], int32."""

    def per_row(self, name: str, entry: Callable[..., Entry], dtype: str) -> Tensor:
        """Define a stage [batch, heads, rows]."""

    def per_score(self, name: str, entry: Callable[..., Entry]) -> Tensor:
        """Define a stage [batch, heads, rows, keys], int32."""

    def weights(self, name: str, entry: Callable[..., Entry], largest: int) -> Tensor:
        """Define the bytes 0..`largest` that V is multiplied with, [batch, heads, rows, keys]."""

    def row_max(self, name: str, scores: Any) -> Tensor:
        """Define the maximum over the keys of a row, [batch, heads, rows]."""

    def row_sum(self, name: str, x: Any, largest: int) -> Tensor:
        """Define the sum over the keys of a row of entries 0..`largest`, [batch, heads, rows]."""

    def context(self, weights: Any, largest: int) -> Callable[..., Entry]:
        """``sum_j weights[b, h, i, j] v[b, h, j, d]`` as a function of b, h, i, d."""

    def output(self, entry: Callable[..., Entry], multiplier: Any, dtype: str) -> Tensor:
        """Define the result by ``entry(b, h, i, d, factor)``, factor being the channel's."""


class HeadStages:
    """What the views of all domains share: stages by head, and the terms that operands bring.

    Parameters
    ----------
    domain
        Of the body.
    attention
        The operator.
    operands
        By name.
    leading
        Sequences and heads.
    rows, keys
        Extents of stages.
    """

    def __init__(
        self,
        domain: Any,
        attention: Any,
        operands: Any,
        leading: tuple[int, int],
        rows: int,
        keys: int,
    ) -> None:
        self.domain, self.attention = domain, attention
        self.mask, self.table, self.pairs = map(operands.get, ("mask", "bias", "pair_mask"))
        self.by_query, self.by_key = map(operands.get, ("query_term", "key_term"))
        self.terms = [x for x in (self.table, self.by_query, self.by_key) if x is not None]
        self.has_bias = bool(self.terms)
        self.has_window = attention.limits_distance or self.pairs is not None
        self.wide_values = operands["v"].dtype == "int16"
        self.leading, self.rows, self.keys = leading, rows, keys

    def bias(self, batch: Index, head: Index, query: Index, key: Index) -> Entry:
        """All terms of a score."""
        return self.bias_of_places(batch, head, *self.places(batch, query, key))

    def bias_of_places(self, batch: Index, head: Index, query: Index, key: Index) -> Entry:
        """All terms of a score, given the places of query and key in their sequence."""
        total: Entry = 0
        if self.table is not None:
            total = self.table_entry(head, query, key)
        if self.by_query is not None:
            total = total + self.by_query[self.pair(batch, query, head, key)]
        if self.by_key is not None:
            total = total + self.by_key[self.pair(batch, key, head, query)]
        return total

    def places(self, batch: Index, query: Index, key: Index) -> tuple[Index, Index]:
        """Places in their sequence of a query and a key."""
        return query, key

    def pair(self, *index: Index) -> tuple[Index, ...]:
        """Where a computed term has sequence, token, head, other token."""
        return index

    def table_entry(self, head: Index, query: Index, key: Index) -> Entry:
        """Entry of the bias, by distance or by query and key, given their places."""
        row = 0 if self.table.shape[0] == 1 else head
        if len(self.table.shape) == 3:
            return self.table[row, query, key]
        return self.table[row, key - query + self.table.shape[1] // 2]

    def key_correction(self, batch: Index, head: Index, key: Index) -> Entry:
        """Nothing: only kernels multiply anything but what the operands hold."""
        return 0

    def exact_score(
        self, products: Any, batch: Index, head: Index, query: Index, key: Index
    ) -> Entry:
        """The product."""
        return products[batch, head, query, key]

    def define(self, name: str, extents: tuple[int, ...], entry: Any, dtype: str) -> Any:
        """Define a stage [batch, heads, *extents]."""
        return self.domain.define(name, (*self.leading, *extents), entry, dtype)

    def per_key(self, name: str, entry: Callable[..., Entry]) -> Any:
        """[batch, heads, keys]."""
        return self.define(name, (self.keys,), entry, "int32")

    def per_row(self, name: str, entry: Callable[..., Entry], dtype: str) -> Any:
        """[batch, heads, rows]."""
        return self.define(name, (self.rows,), entry, dtype)

    def per_score(self, name: str, entry: Callable[..., Entry]) -> Any:
        """[batch, heads, rows, keys]."""
        return self.define(name, (self.rows, self.keys), entry, "int32")


class Domain(Protocol):
    """The operations of a body, beside those of `ibert_tvm.relay_passes.spec.values`."""

    @property
    def batch(self) -> int:
        """Sequences."""

    def define(
        self, name: str, shape: tuple[int, ...], entry: Callable[..., Entry], dtype: str = ""
    ) -> Tensor:
        """Define a stage entry by entry.

        Parameters
        ----------
        name
            Of the block in emitted code, and of the interval in a report of ranges.
        shape
            Extents.
        entry
            Takes as many indices, returns a value.
        dtype
            Storage type; the narrowest of int32 and int64 where it is left out.
        """

    def sum(
        self,
        name: str,
        shape: tuple[int, ...],
        extent: int,
        entry: Callable[..., Entry],
        dtype: str = "",
    ) -> Tensor:
        """Define the sum over k < `extent` of ``entry(*indices, k)``.

        Raises
        ------
        RangeError
            If a partial sum, in any order, might leave `dtype`, or 64 bits where it is left out.
        """

    def max(
        self,
        name: str,
        shape: tuple[int, ...],
        extent: int,
        entry: Callable[..., Entry],
        dtype: str = "",
    ) -> Tensor:
        """Define the maximum over k < `extent` of ``entry(*indices, k)``."""

    def square_sum(
        self, name: str, x: Callable[..., Entry], total: Any, mean: Any, shape: Any
    ) -> Tensor:
        """Define the sum over each row of ``(x[row, channel] - mean[row])^2``, as it is cheapest.

        Without a mean, that of ``x[row, channel]^2``.

        Parameters
        ----------
        name
            Of the stage, [rows].
        x
            ``x(row, channel)``; 15 bits.
        total, mean
            Sum and mean of the row; both None for squares about 0.
        shape
            [rows, channels].
        """

    def linear(self, x: Any, weight: Any, bias: Any) -> Tensor:
        """Define ``x weight^T + bias``: 8-bit [M, K] and [N, K], int32 [N] and [M, N]."""

    def distance_products(self, x: Any, table: Any, heads: int) -> Tensor:
        """Define ``sum_c x[b, i, h, c] table[h, c, j - i + P - 1]``, [batch, s, heads, s], int32.

        Parameters
        ----------
        x
            8-bit [batch * s, heads * c].
        table
            [heads * c, 2 P - 1], P not below s.
        heads
            Of x.
        """

    def heads(self, attention: Any, operands: Mapping[str, Any]) -> Heads:
        """See the operands of an `Attention` by heads."""

    def lookup(self, value: Entry, rows: int, source: Any) -> Index:
        """Row of a table that a value of `source` names, which is checked to be one."""

    def number(self, index: Index, low: int, high: int) -> Entry:
        """Return an index as a value, which is known to lie in [low, high]."""

    def tokens(self, length: int) -> Entry:
        """Return the tokens of a sequence as a value; a shorter one has less."""

    def condition(self, comparison: Any) -> Any:
        """Condition of the specification for a comparison of indices."""

    def choose(self, comparison: Any, yes: Entry, no: Entry) -> Entry:
        """Read one of two operands, by a comparison of indices."""

    def at_most(self, index: Index, bound: int) -> Index:
        """``min(index, bound)``."""

    def at_least(self, index: Index, bound: int) -> Index:
        """``max(index, bound)``."""

    def index(self, value: Entry) -> Index:
        """Use a value that is known to be one as an index."""

    def row_of_token(self, x: Any, slots: Any, batch: Index, token: Index) -> Index:
        """Row of x that holds a token: its own, or where x is packed that of its slot.

        For a token that was not kept this is row 0: the reader must not use what it finds there.
        """

    def bounds(self, tensor: Any) -> tuple[int, int]:
        """What is known of the entries of a tensor: the least and the largest there may be."""
