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

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeAlias, TypeVar

from ..spec import nibbles


class IndexExpression(Protocol):
    """What is computed of the indices of a stage, in the domain's own way."""

    def __add__(self, other: Index, /) -> Index: ...
    def __radd__(self, other: int, /) -> Index: ...
    def __sub__(self, other: Index, /) -> Index: ...
    def __rsub__(self, other: int, /) -> Index: ...
    def __mul__(self, other: Index, /) -> Index: ...
    def __rmul__(self, other: int, /) -> Index: ...
    def __floordiv__(self, other: int, /) -> Index: ...
    def __mod__(self, other: int, /) -> Index: ...
    def __lt__(self, other: Index, /) -> object: ...
    def __le__(self, other: Index, /) -> object: ...
    def __gt__(self, other: Index, /) -> object: ...
    def __ge__(self, other: Index, /) -> object: ...


class EntryExpression(Protocol):
    """A value of the specification that is no plain number: a NumPy array, or a `Ranged`."""

    def __add__(self, other: Entry, /) -> Entry: ...
    def __radd__(self, other: int, /) -> Entry: ...
    def __sub__(self, other: Entry, /) -> Entry: ...
    def __rsub__(self, other: int, /) -> Entry: ...
    def __mul__(self, other: Entry, /) -> Entry: ...
    def __rmul__(self, other: int, /) -> Entry: ...
    def __rshift__(self, other: int, /) -> Entry: ...
    def __neg__(self) -> Entry: ...


Index: TypeAlias = IndexExpression | int
"""An index of a stage: an array, a TIR variable or an expression of it, or any place at all."""
Entry: TypeAlias = EntryExpression | int
"""A value of the specification."""
EntryAt: TypeAlias = Callable[..., Entry]
"""Gives the value at the indices of a stage."""
Shape: TypeAlias = tuple[int, ...]
Comparison: TypeAlias = object
"""A comparison of indices, which `Domain.condition` turns into a condition."""
Condition: TypeAlias = object
"""A condition of the specification, as `ibert_tvm.relay_passes.spec.values.select` takes it."""


class Tensor(Protocol):
    """An operand or a stage."""

    @property
    def shape(self) -> Shape:
        """Static extents."""

    @property
    def dtype(self) -> str:
        """Storage type; of a stage without one, that of the widest entry."""

    def __getitem__(self, index: Index | tuple[Index, ...], /) -> Entry:
        """One entry, as a value of the specification."""


T = TypeVar("T", bound=Tensor)
"""The tensors of a domain."""
_T_co = TypeVar("_T_co", bound=Tensor, covariant=True)


class Windowed(Protocol):
    """What the views of attention's operands read of its attributes."""

    @property
    def num_heads(self) -> int:
        """Heads of the queries."""

    @property
    def before(self) -> int:
        """Largest distance of a key in front of its query."""

    @property
    def after(self) -> int:
        """Largest distance of a key behind it."""

    @property
    def limits_distance(self) -> bool:
        """Whether a key can be too far from its query."""


class Stages(Protocol[_T_co]):
    """Where stages are defined."""

    def define(self, name: str, shape: Shape, entry: EntryAt, dtype: str = "") -> _T_co:
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


class Heads(ABC, Generic[T]):
    """Attention's view of its operands: queries, keys and values by (sequence, head, row, column).

    Rows and keys may be padded to whole register tiles; entries beyond the true sizes count for
    nothing. Stages of a row have the indices ``b, h, i``, those of a score ``b, h, i, j``.

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
    key_count: int

    def __init__(
        self,
        domain: Stages[T],
        attention: Windowed,
        operands: Mapping[str, T],
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
        """What is added to a score: all terms."""
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
        assert self.table is not None
        row = 0 if self.table.shape[0] == 1 else head
        if len(self.table.shape) == 3:
            return self.table[row, query, key]
        return self.table[row, key - query + self.table.shape[1] // 2]

    def key_correction(self, batch: Index, head: Index, key: Index) -> Entry:
        """What a product of this key lacks to be the score; 0 where operands carry no offset."""
        return 0

    def exact_score(
        self, products: T, batch: Index, head: Index, query: Index, key: Index
    ) -> Entry:
        """One of the products, corrected."""
        return products[batch, head, query, key]

    def define(self, name: str, extents: Shape, entry: EntryAt, dtype: str) -> T:
        """Define a stage [batch, heads, *extents]."""
        return self.domain.define(name, (*self.leading, *extents), entry, dtype)

    def per_key(self, name: str, entry: EntryAt) -> T:
        """Define a stage [batch, heads, keys], int32."""
        return self.define(name, (self.keys,), entry, "int32")

    def per_row(self, name: str, entry: EntryAt, dtype: str) -> T:
        """Define a stage [batch, heads, rows]."""
        return self.define(name, (self.rows,), entry, dtype)

    def per_score(self, name: str, entry: EntryAt) -> T:
        """Define a stage [batch, heads, rows, keys], int32."""
        return self.define(name, (self.rows, self.keys), entry, "int32")

    @abstractmethod
    def kept_key(self, batch: Index, key: Index) -> Condition:
        """Whether a key counts, as far as that depends on the key alone: a condition."""

    @abstractmethod
    def in_window(self, batch: Index, query: Index, key: Index) -> Condition:
        """Whether a query may see a key, by what depends on both: a condition."""

    @abstractmethod
    def products(self) -> T:
        """Define Q K^T, [batch, heads, rows, keys], which may lack `key_correction`."""

    @abstractmethod
    def weights(self, name: str, entry: EntryAt, largest: int) -> T:
        """Define the bytes 0..`largest` that V is multiplied with, [batch, heads, rows, keys]."""

    @abstractmethod
    def row_max(self, name: str, scores: T) -> T:
        """Define the maximum over the keys of a row, [batch, heads, rows]."""

    @abstractmethod
    def row_sum(self, name: str, x: T, largest: int) -> T:
        """Define the sum over the keys of a row of entries 0..`largest`, [batch, heads, rows]."""

    @abstractmethod
    def context(self, weights: T, largest: int) -> EntryAt:
        """``sum_j weights[b, h, i, j] v[b, h, j, d]`` as a function of b, h, i, d."""

    @abstractmethod
    def output(self, entry: EntryAt, multiplier: T, dtype: str) -> T:
        """Define the result by ``entry(b, h, i, d, factor)``, factor being the channel's."""


class Domain(Stages[T], Protocol[T]):
    """The operations of a body, beside those of `ibert_tvm.relay_passes.spec.values`."""

    batch: int
    """Sequences."""

    def sum(self, name: str, shape: Shape, extent: int, entry: EntryAt, dtype: str = "") -> T:
        """Define the sum over k < `extent` of ``entry(*indices, k)``.

        Raises
        ------
        RangeError
            If a partial sum, in any order, might leave `dtype`, or 64 bits where it is left out.
        """

    def max(self, name: str, shape: Shape, extent: int, entry: EntryAt, dtype: str = "") -> T:
        """Define the maximum over k < `extent` of ``entry(*indices, k)``."""

    def square_sum(
        self, name: str, x: EntryAt, total: T | None, mean: T | None, shape: tuple[int, int]
    ) -> T:
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

        def square(row: Index, k: Index) -> Entry:
            deviation = x(row, k) if mean is None else x(row, k) - mean[row]
            return deviation * deviation

        return self.sum(name, shape[:1], shape[1], square, "int64")

    def widened(self, weight: T, scales: T, channels: int) -> T:
        """Define the int8 [N, channels] that a weight in half bytes stands for."""
        shape = (weight.shape[0], channels)
        return self.define(
            "weight", shape, lambda n, k: half_byte(self, weight, scales, n, k), "int8"
        )

    def linear(self, x: T, weight: T, bias: T) -> T:
        """Define ``x weight^T + bias``: 8-bit [M, K] and [N, K], int32 [N] and [M, N]."""

    def distance_products(self, x: T, table: T, heads: int) -> T:
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

    def heads(self, attention: Windowed, operands: Mapping[str, T]) -> Heads[T]:
        """See the operands of an `Attention` by heads."""

    def lookup(self, value: Entry, rows: int, source: T) -> Index:
        """Row of a table that a value of `source` names, which is checked to be one."""

    def number(self, index: Index, low: int, high: int) -> Entry:
        """Return an index as a value, which is known to lie in [low, high]."""

    def tokens(self, length: int) -> Entry:
        """Return the tokens of a sequence as a value; a shorter one has less."""

    def condition(self, comparison: Comparison) -> Condition:
        """Condition of the specification for a comparison of indices."""

    def choose(self, comparison: Comparison, yes: Entry, no: Entry) -> Entry:
        """Read one of two operands, by a comparison of indices."""

    def at_most(self, index: Index, bound: int) -> Index:
        """``min(index, bound)``."""

    def at_least(self, index: Index, bound: int) -> Index:
        """``max(index, bound)``."""

    def index(self, value: Entry) -> Index:
        """Use a value that is known to be one as an index."""

    def row_of_token(self, x: T, slots: T | None, batch: Index, token: Index) -> Index:
        """Row of x that holds a token: its own, or where x is packed that of its slot.

        For a token that was not kept this is row 0: the reader must not use what it finds there.
        """

    def bounds(self, tensor: T) -> tuple[int, int]:
        """What is known of the entries of a tensor: the least and the largest there may be."""


def half_byte(domain: Domain[T], table: T, scales: T, row: Index, channel: Index) -> Entry:
    """Entry of 8 bits of a table in half bytes, uint8 [V, H], with scales of groups [V, G]."""
    group, within = channel // nibbles.GROUP, channel % nibbles.GROUP
    return nibbles.entry_of(
        table[row, group * nibbles.HALF + within % nibbles.HALF],
        domain.number(within // nibbles.HALF, 0, 1),
        scales[row, group // 2],
        domain.number(group % 2, 0, 1),
    )
