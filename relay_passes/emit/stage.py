"""One step of a kernel: a TE tensor and the interval of its entries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import te, tirx

from ..spec.values import VECTORS, Arithmetic, Ranged, trace


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
    """

    tensor: te.Tensor
    low: int
    high: int
    arithmetic: Arithmetic = VECTORS

    @property
    def shape(self) -> tuple[int, ...]:
        """Static shape."""
        return tuple(int(size) for size in self.tensor.shape)

    def __getitem__(self, index: Any) -> Ranged:
        """Read one entry as a value of the specification."""
        index = index if isinstance(index, tuple) else (index,)
        return self.value(self.low, self.high, self.tensor(*index))

    def value(self, low: int, high: int, expr: tirx.Expr) -> Ranged:
        """A value that is computed of entries without the specification."""
        return Ranged(low, high, expr, arithmetic=self.arithmetic)


def expression(value: Ranged, dtype: str) -> tirx.Expr:
    """TIR expression of a traced value, in the given type.

    A value without one is a known number, for example a bound that a clamp proved.
    """
    return tirx.const(value.low, dtype) if value.expr is None else value.expr.astype(dtype)


def define(
    name: str,
    shape: Sequence[int],
    body: Callable[..., Ranged],
    dtype: str | None = None,
) -> Stage:
    """Define a stage elementwise from a function of the specification.

    Parameters
    ----------
    name
        Block name; schedules find it by this name.
    shape
        Static shape.
    body
        Takes the index variables, returns a value of the specification.
    dtype
        Storage type; int32 or int64, by the proven interval, where not given.

    Returns
    -------
    Stage
    """
    bounds: list[Ranged] = []

    def compute(*index: Any) -> Any:
        value = trace(body, *index)
        bounds.append(value)
        return expression(value, dtype or value.dtype)

    tensor = te.compute(tuple(shape), compute, name=name)
    return Stage(tensor, bounds[0].low, bounds[0].high, bounds[0].arithmetic)
