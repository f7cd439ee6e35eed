"""Sums and products of two values, or of a value and learned rows."""

from __future__ import annotations

from ...dialect.record import Operand
from ...spec.short_requantise import saturating_sum
from ...spec.values import saturate_short
from ..checks import check_bounds
from ..domain import Domain, Entry, T
from ..operator import Elementwise, Operator, Traits
from ..types import NARROW


class Add(Elementwise):
    """``a + b``; both operands already have the result's scale."""

    OPERANDS = (Operand("a", NARROW, "... C"), Operand("b", NARROW, "... C"))
    dtype = "int32"
    TRAITS = Traits(elementwise=True, per_token=True, sums=True)
    STAGE = "sum"

    def entry(self, a: Entry, b: Entry) -> Entry:
        return a + b


class AddShort(Elementwise):
    """``clamp(a + b, low, high)``; both operands already have the result's scale.

    Parameters
    ----------
    low, high
        Closed interval of the sum, within int16.
    """

    low: int
    high: int

    OPERANDS = (Operand("a", NARROW, "... C"), Operand("b", NARROW, "... C"))
    dtype = "int16"
    TRAITS = Traits(elementwise=True, per_token=True, sums=True)
    STAGE = "sum"

    def __post_init__(self) -> None:
        check_bounds(self, ("int16",))

    def entry(self, a: Entry, b: Entry) -> Entry:
        return saturating_sum(a, b, self.low, self.high)


class AddRow(Elementwise):
    """``x + row``, both at one scale."""

    OPERANDS = (Operand("x", NARROW, "... C"), Operand("row", ("int32",), "1|C"))
    dtype = "int32"
    STAGE = "sum"

    def entry(self, x: Entry, row: Entry) -> Entry:
        return x + row


class AddPositions(Operator):
    """``x + table``: row s to token s of every sequence; both at one scale, s static."""

    OPERANDS = (Operand("x", NARROW, "b s C"), Operand("table", ("int32",), "s C"))
    RESULT = "b s C"
    dtype = "int32"
    TRAITS = Traits(elementwise=True)

    def body(self, domain: Domain[T], **operands: T) -> T:
        x, table = operands["x"], operands["table"]
        length = table.shape[0]
        return domain.define(
            "sum",
            x.shape,
            lambda row, channel: x[row, channel] + table[row % length, channel],
            "int32",
        )


class Multiply(Elementwise):
    """``a b`` of operands that are cut at 16 bits; its scale is the product of theirs."""

    OPERANDS = (Operand("a", NARROW, "... C"), Operand("b", NARROW, "... C"))
    dtype = "int32"
    STAGE = "product"

    def entry(self, a: Entry, b: Entry) -> Entry:
        return saturate_short(a) * saturate_short(b)
