"""One step of a kernel: a TE tensor and the interval of its entries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import te, tirx

from ..spec.values import Ranged


@dataclass(frozen=True)
class Stage:
    """A TE tensor of integers, with proven bounds.

    Attributes
    ----------
    tensor
        The tensor; its dtype is how the values are stored.
    low, high
        Every entry lies in [low, high].
    """

    tensor: te.Tensor
    low: int
    high: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Static shape."""
        return tuple(int(size) for size in self.tensor.shape)

    @property
    def dtype(self) -> str:
        """Storage type."""
        return str(self.tensor.dtype)

    def __getitem__(self, index: Any) -> Ranged:
        """Read one entry as a value of the specification."""
        index = index if isinstance(index, tuple) else (index,)
        return Ranged(self.low, self.high, self.tensor(*index))


def expression(value: Ranged, dtype: str) -> tirx.Expr:
    """TIR expression of a traced value, in the given type.

    A value without one is a known number, for example a bound that a clamp proved.
    """
    if value.expr is None:
        return tirx.const(value.low, dtype)
    if isinstance(value.expr, tirx.Cast) and str(value.expr.value.ty) == dtype:
        return value.expr.value  # an entry that is only moved
    return value.expr.astype(dtype)
