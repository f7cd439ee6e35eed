"""Values that wait to become canonical ones: they still take a bias, a scale, a slice or rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from tvm import relax

from ...common.types import Array
from .builder import Builder, layer_of
from .mismatch import Mismatch
from .values import Computed, Emitted, Hidden, PerChannel, Weight


@dataclass(frozen=True, eq=False)
class Linear(Computed):
    """A matrix product that still waits for its bias, a scale or a slice.

    Parameters
    ----------
    x
        The operand.
    weight
        [channels, K].
    bias
        [channels].
    """

    x: Emitted
    weight: Weight
    bias: Weight | None

    TAKES_FACTORS: ClassVar[bool] = True

    def changed(self, change: Callable[[Array], Array], part: str = "", **fields: Any) -> Linear:
        """Return the product with its weight and its bias changed alike, along their first axis.

        Parameters
        ----------
        change
            Applied to both arrays.
        part
            Behind their names.
        **fields
            Other fields, as for `dataclasses.replace`.
        """

        def changed(weight: Weight) -> Weight:
            return Weight(f"{weight.name}{part}", change(weight.array))

        bias = None if self.bias is None else changed(self.bias)
        return replace(self, weight=changed(self.weight), bias=bias, **fields)

    def make(self, c: Builder) -> Emitted:
        bias, name = self.bias, c.unique(self.name)
        weight = self.weight.operand(c)
        if bias is None:
            zeros = np.zeros(self.channels, np.float32)
            bias = Weight(f"{layer_of(self.weight.name)}.bias", zeros)
            c.note(name, "the source has no bias: zeros")
        var = c.call("linear", name, self.ops, self.x, weight, bias)
        return Emitted(name, self.channels, self.ops, var)

    def scaled(self, c: Builder, factor: float) -> Computed:
        c.note(self.name, f"factor {factor:g} moved to the weights")
        return super().scaled(c, factor)

    def affine(self, c: Builder, by: PerChannel) -> Linear:
        result = self
        if by.scale is not None:
            factors = by.scale.array
            result = self.changed(lambda array: (array.T * factors).T)
        if by.row is not None:
            old = result.bias
            bias = by.row if old is None else Weight(old.name, old.array + by.row.array)
            result = replace(result, bias=bias)
        return replace(result, ops=(*self.ops, *by.ops))

    def note_row(self, c: Builder, row: Weight) -> None:
        if self.bias is not None:
            c.note(self.name, f"{row.name} added to the bias")


@dataclass(frozen=True, eq=False)
class Embedded(Computed):
    """Rows of a table that may still take a constant row added to all of them.

    Parameters
    ----------
    table
        [V, channels].
    ids
        Ids [batch, seq_len] in the canonical module.
    """

    table: Weight
    ids: relax.Var

    TAKES_FACTORS: ClassVar[bool] = True

    def make(self, c: Builder) -> Emitted:
        given = (self.channels, self.ops, self.table, self.ids)
        return Emitted.call(c, "embedding", self.name, *given)

    def scaled(self, c: Builder, factor: float) -> Computed:
        c.note(self.table.name, f"factor {factor:g} moved to the table")
        scaled = Weight(self.table.name, self.table.array * np.float32(factor))
        return replace(self, table=scaled)

    def affine(self, c: Builder, by: PerChannel) -> Computed:
        if by.scale is not None or by.row is None:
            return super().affine(c, by)
        table = Weight(self.table.name, self.table.array + by.row.array)
        return replace(self, table=table, ops=(*self.ops, *by.ops))

    def note_row(self, c: Builder, row: Weight) -> None:
        c.note(self.table.name, f"{row.name} added to every row")


@dataclass(frozen=True, eq=False)
class ConstantRow(Computed):
    """The same row for every token, waiting to be added to something.

    Parameters
    ----------
    row
        [channels].
    """

    row: Weight

    def make(self, c: Builder) -> Emitted:
        raise Mismatch(
            f"{self.name} is the same row for every token, whatever the input; such a row may "
            "only be added to what depends on it"
        )

    def affine(self, c: Builder, by: PerChannel) -> ConstantRow:
        array = self.row.array
        array = array if by.scale is None else array * by.scale.array
        array = array if by.row is None else array + by.row.array
        return replace(self, row=Weight(self.row.name, array), ops=(*self.ops, *by.ops))


@dataclass(frozen=True, eq=False)
class LinearSum(Computed):
    """A sum of matrix products: that of operands whose channels were joined.

    Parameters
    ----------
    terms
        Their bias is that of the first.
    """

    terms: tuple[Linear, ...]

    def make(self, c: Builder) -> Emitted:
        name = c.unique(self.name)
        total, *others = (term.emit(c) for term in self.terms)
        for index, other in enumerate(others):
            label = name if index == len(others) - 1 else c.unique(f"{name}.part")
            var = c.call("add", label, self.ops, total, other)
            total = Emitted(label, self.channels, self.ops, var)
        return total

    def affine(self, c: Builder, by: PerChannel) -> LinearSum:
        first, *others = self.terms
        rest = (term.affine(c, PerChannel(by.scale)) for term in others)
        terms = (first.affine(c, PerChannel(by.scale, by.row)), *rest)
        return replace(self, terms=terms, ops=(*self.ops, *by.ops))


@dataclass(frozen=True, eq=False)
class Joined(Computed):
    """Channels of several hidden tensors one after the other, perhaps for a matrix product.

    Parameters
    ----------
    parts
        The tensors, of one layout but for their channels, which are last.
    """

    parts: tuple[Hidden, ...]

    def make(self, c: Builder) -> Emitted:
        total, *others = (part.emit(c) for part in self.parts)
        for other in others:
            name, channels = f"{total.name}.concatenate", total.channels + other.channels
            total = Emitted.call(c, "concatenate", name, channels, self.ops, total, other)
        return total


@dataclass(frozen=True, eq=False)
class Prepended(Computed):
    """Tokens with learned rows before them, and perhaps a table of positions added to all.

    Parameters
    ----------
    x
        The tokens.
    rows
        [n, channels].
    table
        [n + tokens, channels].
    """

    x: Emitted
    rows: Weight
    table: Weight | None = None

    def make(self, c: Builder) -> Emitted:
        name, given = self.rows.name, (self.channels, self.ops)
        result = Emitted.call(c, "prepend_tokens", name, *given, self.x, self.rows)
        if self.table is not None:
            name, ops = self.table.name, (*self.ops, "relax.add")
            given = (self.channels, ops)
            result = Emitted.call(c, "add_positions", name, *given, result, self.table)
        return result


@dataclass(frozen=True, eq=False)
class TokenRun(Computed):
    """Neighbouring tokens of every sequence.

    Parameters
    ----------
    x
        The sequences.
    first, last
        Places of the first one, and behind the last.
    length
        Of a sequence, in the probe shape.
    """

    x: Computed
    first: int
    last: int
    length: int

    def make(self, c: Builder) -> Emitted:
        given, count = (self.name, self.channels, self.ops, self.x.emit(c)), self.last - self.first
        if count == 1:
            return Emitted.call(c, "select_token", *given, index=self.first)
        return Emitted.call(c, "slice_tokens", *given, first=self.first, count=count)

    def behind(self, other: Computed) -> bool:
        """Tell whether it is the rest of sequences of which another value is the beginning."""
        return (
            isinstance(other, TokenRun)
            and other.x is self.x
            and (other.first, other.last, self.last) == (0, self.first, self.length)
        )
