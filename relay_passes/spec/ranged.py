"""The second domain of the specification: intervals of integers, with the expressions they bound.

`ibert_tvm.relay_passes.spec.values` has the functions on them and says how they are meant; this
module has the type, its operators, and how an operation gets its width and its expression.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ..errors import RangeError
from .arithmetic import ANY, VECTORS, Arithmetic, shared
from .binding import Value, bind_amount, tirx_module
from .widths import AUDIT, INT16, INT32, INT64, bits_of, fits

if TYPE_CHECKING:
    from tvm import tirx


class Ranged:
    """A closed interval of integers and, optionally, the TIR expression it bounds.

    Parameters
    ----------
    low, high
        Every value the expression takes lies in [low, high].
    expr : tvm.tirx.PrimExpr, optional
        An integer expression of any width; it is cast to `dtype`. None for pure interval analysis.
    is_short
        Whether to compute in int16, where the arithmetic does; the interval must fit it.
    arithmetic
        How operations on the expression are written. Results have that of their operands.

    Attributes
    ----------
    dtype : str
        The type of `expr`: "int16" if short, else "int32" if the interval fits it, else "int64".
    form : object
        What the arithmetic remembers of the expression.

    Raises
    ------
    RangeError
        If the interval does not fit int64.
    """

    __slots__ = ("arithmetic", "dtype", "expr", "form", "high", "low")
    __array_ufunc__ = None  # a NumPy array on the left must leave the operator to this class

    def __init__(
        self,
        low: int,
        high: int,
        expr: tirx.Expr | None = None,
        is_short: bool = False,
        arithmetic: Arithmetic = VECTORS,
    ) -> None:
        if low > high:
            raise ValueError(f"empty interval [{low}, {high}]")
        self.low = int(low)
        self.high = int(high)
        if not fits(self.low, self.high, INT64):
            raise _overflow("a value", self.low, self.high)
        self.dtype = "int32" if fits(self.low, self.high, INT32) else "int64"
        self.form: object = None
        self.arithmetic = ANY if expr is None else arithmetic
        if is_short and self.arithmetic.keeps_short:
            self.dtype = "int16"
        watch = AUDIT.get()
        if watch is not None:
            watch.bits = max(watch.bits, bits_of(self.low, self.high))
        self.expr: tirx.Expr = None if expr is None else _cast(expr, self.dtype)

    @property
    def is_short(self) -> bool:
        """Whether the expression is int16."""
        return self.dtype == "int16"

    def with_expr(self, expr: tirx.Expr) -> Ranged:
        """The same value, written as another expression."""
        return Ranged(self.low, self.high, expr, self.is_short, self.arithmetic)

    @property
    def bits(self) -> int:
        """Bits of the smallest signed type that holds the interval."""
        return bits_of(self.low, self.high)

    def __repr__(self) -> str:
        expr = "" if self.expr is None else f", {self.expr}"
        return f"Ranged({self.low}, {self.high}{expr})"

    def __add__(self, other: Value) -> Ranged:
        b = ranged(other)
        spelled = respelled("add", self, b)
        if spelled is not None:
            return spelled
        return combined("sum", self.low + b.low, self.high + b.high, lambda x, y: x + y, self, b)

    def __radd__(self, other: Value) -> Ranged:
        return ranged(other) + self

    def __sub__(self, other: Value) -> Ranged:
        b = ranged(other)
        spelled = _spelled_difference(self, b)
        if spelled is not None:
            return spelled
        low, high = self.low - b.high, self.high - b.low
        return combined("difference", low, high, lambda x, y: x - y, self, b)

    def __rsub__(self, other: Value) -> Ranged:
        return ranged(other) - self

    def __neg__(self) -> Ranged:
        return ranged(0) - self

    def __mul__(self, other: Value) -> Ranged:
        b = ranged(other)
        spelled = shared(self, b).multiply(self, b)
        if spelled is not None:
            return spelled
        bounds = product_bounds(self, b, square=b is self)
        return combined("product", *bounds, lambda x, y: x * y, self, b)

    def __rmul__(self, other: Value) -> Ranged:
        return ranged(other) * self

    def __rshift__(self, other: Value) -> Ranged:
        amount = ranged(other)
        merged = shared(self, amount).shift_right_by(self, amount)
        if merged is not None:
            return merged
        n = _shift_amount(other)
        if n.high == 0:
            return self
        spelled = respelled("shift_right", self, n)
        if spelled is not None:
            return spelled
        corners = [x >> s for x in (self.low, self.high) for s in (n.low, n.high)]
        return combined("right shift", min(corners), max(corners), lambda x, s: x >> s, self, n, n)

    def __rrshift__(self, other: Value) -> Ranged:
        return ranged(other) >> self

    def __lshift__(self, other: Value) -> Ranged:
        n = _shift_amount(other)
        if n.high == 0:
            return self
        spelled = respelled("shift_left", self, n)
        if spelled is not None:
            return spelled
        corners = [x << s for x in (self.low, self.high) for s in (n.low, n.high)]
        return combined("left shift", min(corners), max(corners), lambda x, s: x << s, self, n, n)

    def __rlshift__(self, other: Value) -> Ranged:
        return ranged(other) << self

    def __and__(self, other: Value) -> Ranged:
        b = ranged(other)
        tops = [x.high for x in (self, b) if x.low >= 0]
        if not tops:
            raise RangeError(
                "bit mask of two values that may both be negative",
                why=f"[{self.low}, {self.high}] & [{b.low}, {b.high}]",
                todo="mask with a non-negative constant",
            )
        known = isinstance(self, Constant) and isinstance(b, Constant)
        low, high = (self.low & b.low,) * 2 if known else (0, min(tops))
        return combined("mask", low, high, lambda x, y: x & y, self, b)

    def __rand__(self, other: Value) -> Ranged:
        return ranged(other) & self

    def __bool__(self) -> bool:
        raise TypeError(
            "a Ranged has no truth value; use ibert_tvm.relay_passes.spec.values.select"
        )


class Condition:
    """A comparison of `Ranged` values, to be used in `select`.

    Parameters
    ----------
    expr : tvm.tirx.PrimExpr, optional
        A boolean expression; None for pure interval analysis.
    arithmetic
        That of the values compared.
    """

    __slots__ = ("arithmetic", "expr")
    __array_ufunc__ = None

    def __init__(self, expr: tirx.Expr | None = None, arithmetic: Arithmetic = VECTORS) -> None:
        self.expr = expr
        self.arithmetic = ANY if expr is None else arithmetic

    def __and__(self, other: Condition) -> Condition:
        if self.expr is None or other.expr is None:
            return Condition()
        return Condition(tirx_module().And(self.expr, other.expr), shared(self, other))

    def __bool__(self) -> bool:
        raise TypeError(
            "a Condition has no truth value; use ibert_tvm.relay_passes.spec.values.select"
        )


def ranged(value: Value) -> Ranged:
    """Turn a Python int or an array of constants into a `Ranged`; leave a `Ranged` alone.

    Parameters
    ----------
    value : int, numpy.ndarray or Ranged
        An array becomes the interval from its smallest to its largest entry.
    """
    if isinstance(value, Ranged):
        return value
    if isinstance(value, np.ndarray):
        return Ranged(int(value.min()), int(value.max()))
    return Constant(int(value))


class Constant(Ranged):
    """A known integer: it has a TIR expression in every width."""

    __slots__ = ()

    def __init__(self, value: int) -> None:
        super().__init__(value, value)


def product_bounds(a: Ranged, b: Ranged, square: bool = False) -> tuple[int, int]:
    """Bounds of ``a b``, or of a square, which is not negative."""
    if square:
        corners = [a.low**2, a.high**2] + ([0] if a.low <= 0 <= a.high else [])
    else:
        corners = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    return min(corners), max(corners)


def is_ranged(*values: Value) -> bool:
    """Tell whether any of the values belongs to the second domain."""
    return any(isinstance(value, (Ranged, Condition)) for value in values)


def _overflow(what: str, low: int, high: int, why: str = "") -> RangeError:
    return RangeError(
        f"{what} of {bits_of(low, high)} bits does not fit 64",
        why=why or f"its interval is [{low}, {high}]",
        todo="use coarser scales, shorter multipliers or tighter clamps",
    )


def _cast(expr: tirx.Expr, dtype: str) -> tirx.Expr:
    if not hasattr(expr, "ty"):  # an element of a TE tensor
        expr = expr.asobject()
    if str(expr.ty) == dtype:
        return expr
    return expr.astype(dtype)


def expr_in(value: Ranged, dtype: str) -> tirx.Expr | None:
    """Return the expression of `value` in the given width, or None."""
    if isinstance(value, Constant):
        return tirx_module().const(value.low, dtype)
    return None if value.expr is None else _cast(value.expr, dtype)


def exprs_in(a: Ranged, b: Ranged, dtype: str) -> tuple[tirx.Expr, tirx.Expr] | None:
    """Return the expressions of two values in one width; None where one is an interval only."""
    if any(value.expr is None and not isinstance(value, Constant) for value in (a, b)):
        return None
    return expr_in(a, dtype), expr_in(b, dtype)


def _shift_amount(value: Value) -> Ranged:
    n = ranged(value)
    if n.low == n.high and 0 <= n.low <= 63:
        return Constant(n.low)
    if not 0 <= n.low <= n.high <= 63:
        raise RangeError(
            "shift amount outside [0, 63]",
            why=f"its interval is [{n.low}, {n.high}]",
            todo="clamp it",
        )
    # A variable, because the prover in TVM's simplifier believes anything of a shift by a
    # difference, and then drops clamps: it takes x >> (n - 1) <= 3 for true.
    return ranged(bind_amount(n))


def respelled(operation: str, x: Ranged, y: Ranged) -> Ranged | None:
    """Another spelling of an operation with a constant; None leaves it as it is."""
    if isinstance(x, Constant) and operation in ("add", "minimum", "maximum"):
        x, y = y, x
    if isinstance(x, Constant) or not isinstance(y, Constant):
        return None
    return getattr(x.arithmetic, operation)(x, y.low)


def _spelled_difference(x: Ranged, y: Ranged) -> Ranged | None:
    """Another spelling of ``x - y``; None leaves it as it is."""
    if isinstance(y, Constant):
        return respelled("add", x, Constant(-y.low))
    result: Ranged | None
    if isinstance(x, Constant):
        result = y.arithmetic.subtract_from(x.low, y)
    else:
        result = shared(x, y).subtract(x, y)
    return result


def _is_short_constant(value: Ranged) -> bool:
    return isinstance(value, Constant) and fits(value.low, value.high, INT16)


def combined(
    what: str,
    low: int,
    high: int,
    build: Callable[[tirx.Expr, tirx.Expr], tirx.Expr],
    a: Ranged,
    b: Ranged,
    shift: Ranged | None = None,
) -> Ranged:
    """Combine two values: pick the width, build the expression, narrow the result.

    Of two constants the bounds must be the exact result.
    """
    if not fits(low, high, INT64):
        given = f"[{a.low}, {a.high}] with [{b.low}, {b.high}]"
        raise _overflow(what, low, high, f"{given} gives [{low}, {high}]")
    if isinstance(a, Constant) and isinstance(b, Constant):
        assert low == high, (what, low, high)
        return Constant(low)
    wide = not all(
        fits(x, y, INT32) for x, y in ((low, high), (a.low, a.high), (b.low, b.high))
    ) or (shift is not None and shift.high > 31)
    narrow = (
        fits(low, high, INT16)
        and (a.is_short or b.is_short)
        and all(x.is_short or _is_short_constant(x) for x in (a, b))
        and (shift is None or shift.high <= 15)
    )
    dtype = "int16" if narrow else "int64" if wide else "int32"
    sides = exprs_in(a, b, dtype)
    expr = None if sides is None else build(*sides)
    return Ranged(low, high, expr, narrow, shared(a, b))
