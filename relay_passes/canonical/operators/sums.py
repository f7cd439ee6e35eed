"""Sums and products of two values, or of a value and learned rows."""

from __future__ import annotations

from ...dialect.arrays import Floats
from ...dialect.record import Operand
from ..operator import FLOAT, CanonicalOperator


class Add(CanonicalOperator):
    """``a + b``, of one shape."""

    OPERANDS = (Operand("a", FLOAT, "... C"), Operand("b", FLOAT, "... C"))
    RESULT = "... C"

    def evaluate(self, a: Floats, b: Floats) -> Floats:
        return a + b


class AddRow(CanonicalOperator):
    """``x + row`` by channel, where no bias before it takes the row over."""

    OPERANDS = (Operand("x", FLOAT, "... C"), Operand("row", FLOAT, "C"))
    RESULT = "... C"

    def evaluate(self, x: Floats, row: Floats) -> Floats:
        return x + row


class AddPositions(CanonicalOperator):
    """Add row s of `table` to token s of x, whose length is static."""

    OPERANDS = (Operand("x", FLOAT, "b S C"), Operand("table", FLOAT, "S C"))
    RESULT = "b S C"

    def evaluate(self, x: Floats, table: Floats) -> Floats:
        return x + table


class Multiply(CanonicalOperator):
    """``a b``, entry by entry, of one shape."""

    OPERANDS = (Operand("a", FLOAT, "... C"), Operand("b", FLOAT, "... C"))
    RESULT = "... C"
    ELEMENTWISE = True

    def evaluate(self, a: Floats, b: Floats) -> Floats:
        return a * b
