"""One step of a kernel: a TE tensor and the interval of its entries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tvm import te, tirx

from ..errors import LoweringError
from ..spec.arithmetic import Arithmetic
from ..spec.values import Ranged, ranged

Expr: TypeAlias = tirx.Expr
"""An expression of TIR."""


@dataclass(frozen=True)
class Stage:
    """A TE tensor of integers, with proven bounds.

    Attributes
    ----------
    tensor
        The tensor; its dtype is how the values are stored.
    low, high
        Every entry lies in [low, high].
    arithmetic
        How operations on its entries are written: what is computed of them inherits it.
    is_known
        Whether the tensor reads no operand, because all of its entries are one number.
    offset
        What was added to the entries so that they fit the type that an instruction takes.
    """

    tensor: te.Tensor
    low: int
    high: int
    arithmetic: Arithmetic
    is_known: bool = False
    offset: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Static shape."""
        return tuple(int(size) for size in self.tensor.shape)

    @property
    def dtype(self) -> str:
        """Storage type."""
        return str(self.tensor.dtype)

    def __getitem__(self, index: Expr | int | tuple[Expr | int, ...]) -> Ranged:
        """Read one entry as a value of the specification.

        A known number is read as itself. Inlined, it would stand in expressions that were traced
        for a variable, and TVM's analyses refuse a binding whose value they can still fold.
        """
        if self.is_known:
            return ranged(self.low)
        index = index if isinstance(index, tuple) else (index,)
        return self.value(self.low, self.high, self.tensor(*index))

    def value(self, low: int, high: int, expr: Expr) -> Ranged:
        """A value that is computed of entries without the specification."""
        return Ranged(low, high, expr, arithmetic=self.arithmetic)


def expression(value: Ranged, dtype: str) -> Expr:
    """TIR expression of a traced value, in the given type.

    A value without one is a known number, for example a bound that a clamp proved.

    Raises
    ------
    LoweringError
        If it is several numbers, and has no expression.
    """
    if value.expr is None:
        if value.low != value.high:
            raise LoweringError(
                f"a value of [{value.low}, {value.high}] without an expression",
                why="a function of the specification lost it",
                todo="report this model: a function of known numbers is no known number",
            )
        return tirx.const(value.low, dtype)
    if isinstance(value.expr, tirx.Cast) and str(value.expr.value.ty) == dtype:
        return value.expr.value  # an entry that is only moved
    return value.expr.astype(dtype)
