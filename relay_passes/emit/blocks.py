"""A kernel under construction: its attributes, and blocks that compute entry by entry."""

from __future__ import annotations

from dataclasses import replace

from tvm import te

from ..integer.domain import EntryAt, Shape
from ..spec.values import Ranged, trace
from .layout import KernelLayout
from .stage import Expr, Stage, expression

_NEGATED_MAXIMUM = -127


class KernelBlocks:
    """State of one kernel under construction, and its plainest blocks.

    Parameters
    ----------
    layout
        Operand layout of the target.
    batch
        Sequences that the kernel serves.
    layer
        Name for messages.

    Attributes
    ----------
    attributes
        Attributes of the resulting function, read by schedules.
    merged_output
        Whether the result is written as [batch, seq_len, heads, head_dim] and stored as [tokens,
        channels].
    keys
        Tensors that packed attention reads from the first key of a sequence on.
    """

    def __init__(self, layout: KernelLayout, batch: int, layer: str) -> None:
        self.layout = layout
        self.arithmetic = layout.arithmetic.fresh()
        self.batch = batch
        self.layer = layer
        self.attributes: dict[str, object] = {}
        self.merged_output = False
        self.keys: list[te.Tensor] = []
        self._both_minimum: list[str] = []

    def stage(self, tensor: te.Tensor, low: int, high: int) -> Stage:
        """Stage of a tensor, with the target's arithmetic."""
        return Stage(tensor, low, high, self.arithmetic)

    def value(self, low: int, high: int, expr: Expr) -> Ranged:
        """Value of an expression that the specification did not make."""
        return Ranged(low, high, expr, arithmetic=self.arithmetic)

    def trace(self, entry: EntryAt, *index: Expr) -> Ranged:
        """Expression of one entry, with the let-bindings that it needs."""
        return trace(entry, *index, arithmetic=self.arithmetic)

    def define(self, name: str, shape: Shape, entry: EntryAt, dtype: str = "") -> Stage:
        """Define a block that computes entry by entry."""
        bounds: list[Ranged] = []

        def compute(*index: Expr) -> Expr:
            value = self.trace(entry, *index)
            bounds.append(value)
            return expression(value, dtype or value.dtype)

        tensor = te.compute(tuple(shape), compute, name=name)
        (value,) = bounds
        return replace(self.stage(tensor, value.low, value.high), is_known=value.expr is None)

    def note_operands(self, product: str, lhs_low: int, rhs_low: int) -> None:
        """Tell schedules in which matrix products both factors may be -128.

        The sum of two such products is the only one of two int8 products that 16 bits do not hold.

        Parameters
        ----------
        product
            Name of its block.
        lhs_low, rhs_low
            Lower bounds of the factors.
        """
        if self.layout.lhs_dtype == "int8" and max(lhs_low, rhs_low) < _NEGATED_MAXIMUM:
            self._both_minimum.append(product)
            self.attributes["ibert.both_minimum"] = self._both_minimum
