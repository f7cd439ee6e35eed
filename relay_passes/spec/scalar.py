"""Expressions for a processor whose registers hold one number each, of 32 bits.

The specification is written for vectors: 16-bit values, their products in Q15, saturation after
each step. Traced with operands of this arithmetic the same functions become other expressions, with
the same integers as a result, because the intervals prove each step:

* short values are computed in int32, where a product in Q15 is a multiplication, an addition and a
  shift;
* a shift after a shift is one shift, and a constant that is added between them, or after a
  multiplication, joins the one that is added anyway: ``((x >> n) + c) >> m = (x + (c << n)) >> (n
  + m)``;
* a saturation before a shift, an addition or a tighter saturation moves behind it, and vanishes in
  the last one: both are monotonic;
* a factor ``x << n`` of a product in Q15 leaves its shift to the product's;
* the product of a difference, of which one part is the same all along a row, as is the factor,
  becomes one product of the other part, to which a constant of the row is added;
* minima, maxima and absolute values take the forms that become few instructions.

So a value remembers of which form it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from .arithmetic import Arithmetic
from .binding import bind, tirx_module
from .q15 import FLOOR_LOG2, NORMALISED_RECIPROCAL, SQUARE_ROOT, multiply_add, positive, saturate
from .ranged import Constant, Ranged, product_bounds
from .widths import INT16, INT32

if TYPE_CHECKING:
    from tvm import tirx

_Q15 = 15


@dataclass(frozen=True, eq=False)
class _Product:
    """``a * b + addend`` of two values of 16 bits."""

    a: Ranged
    b: Ranged
    addend: int


@dataclass(frozen=True, eq=False)
class _Shifted:
    """``value >> bits``."""

    value: Ranged
    bits: int


@dataclass(frozen=True, eq=False)
class _Raised:
    """``value << bits``."""

    value: Ranged
    bits: int


@dataclass(frozen=True, eq=False)
class _Clamped:
    """``min(max(value, low), high)``."""

    value: Ranged
    low: int
    high: int


@dataclass(frozen=True, eq=False)
class _Difference:
    """``a - b``."""

    a: Ranged
    b: Ranged


def _fits(low: int, high: int, bounds: tuple[int, int] = INT32) -> bool:
    return bounds[0] <= low and high <= bounds[1]


def _is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


def _constant(number: int) -> tirx.Expr:
    from tvm import tirx

    return tirx.const(number, "int32")


# Operator, type of the argument, and bounds of the result.
_FUNCTIONS: dict[str, tuple[str, str, Callable[[Ranged], tuple[int, int]]]] = {
    "square_root": (SQUARE_ROOT, "int64", lambda x: (math.isqrt(x.low), math.isqrt(x.high))),
    "floor_log2": (
        *(FLOOR_LOG2, "int32"),
        lambda x: (x.low.bit_length() - 1, x.high.bit_length() - 1),
    ),
    "normalised_reciprocal": (NORMALISED_RECIPROCAL, "int32", lambda _x: (2**14, 2**15)),
}


def _usable(x: Ranged) -> bool:
    """Whether a value is an expression of 32 bits."""
    return x.expr is not None and x.dtype == "int32"


def _is_short(x: Ranged) -> bool:
    return _usable(x) and _fits(x.low, x.high, INT16)


@dataclass
class Scalar(Arithmetic):
    """See the module's text.

    Parameters
    ----------
    functions
        Operators that the target has as functions of its own: "square_root", "floor_log2",
        "normalised_reciprocal", "positive".
    """

    functions: frozenset[str] = frozenset()
    keeps_short: ClassVar[bool] = False

    def value(self, low: int, high: int, expr: tirx.Expr, form: object = None) -> Ranged:
        """A value of this arithmetic."""
        value = Ranged(low, high, expr, arithmetic=self)
        value.form = form
        return value

    def product(self, a: Ranged, b: Ranged, addend: int) -> Ranged | None:
        """``a * b + addend``."""
        low, high = (bound + addend for bound in product_bounds(a, b))
        left, right = (_constant(x.low) if isinstance(x, Constant) else x.expr for x in (a, b))
        if not _fits(low, high) or left is None or right is None:
            return None
        expr = multiply_add(left, right, _constant(addend))
        return self.value(low, high, expr, _Product(a, b, addend))

    def shifted(self, x: Ranged, bits: int) -> Ranged:
        """``x >> bits``, of which it is known."""
        return self.value(x.low >> bits, x.high >> bits, x.expr >> bits, _Shifted(x, bits))

    def raised(self, x: Ranged, bits: int) -> Ranged:
        """``x << bits``, of which it is known."""
        return self.value(x.low << bits, x.high << bits, x.expr << bits, _Raised(x, bits))

    def clamped(self, x: Ranged, low: int, high: int) -> Ranged:
        """Clamp to an interval that has something of the value's."""
        from tvm import tirx

        cuts_low, cuts_high = x.low < low, x.high > high
        expr = x.expr
        if cuts_low and cuts_high and low == -high and _is_power_of_two(high + 1):
            expr = tirx.max(saturate(expr, (high + 1).bit_length()), _constant(low))
        elif cuts_low and cuts_high:
            expr = tirx.min(tirx.max(expr, _constant(low)), _constant(high))
        elif cuts_low:
            expr = tirx.max(expr, _constant(low))
        elif cuts_high and x.low >= 0 and _is_power_of_two(high + 1):
            # Between 0 and such a bound, compilers find the instruction that saturates.
            expr = tirx.min(tirx.max(expr, _constant(0)), _constant(high))
        elif cuts_high and x.low >= 0:
            # What is left of the bound is often what is wanted next; a maximum with 0 is cheap,
            # unless a compiler makes a minimum of it again: of an instruction it does not.
            left = self.value(high - x.high, high - x.low, _constant(high) - expr)
            if "positive" in self.functions:
                rest = positive(bind(left).expr, left.high.bit_length())
            else:
                rest = tirx.max(left.expr, _constant(0))
            expr = _constant(high) - rest
        elif cuts_high:
            expr = tirx.min(expr, _constant(high))
        return self.value(max(x.low, low), min(x.high, high), expr, _Clamped(x, low, high))

    def add(self, x: Ranged, number: int) -> Ranged | None:
        """``x + number``."""
        form = x.form
        if not _usable(x):
            return None
        if isinstance(form, _Product):
            return self.product(form.a, form.b, form.addend + number)
        if isinstance(form, _Shifted):
            raised = number << form.bits
            if not _fits(form.value.low + raised, form.value.high + raised):
                return None
            return self.shifted(form.value + raised, form.bits)
        if isinstance(form, _Clamped):
            low, high = form.low + number, form.high + number
            fits = _fits(form.value.low + number, form.value.high + number)
            return self.clamped(form.value + number, low, high) if fits else None
        return None

    def subtract(self, x: Ranged, y: Ranged) -> Ranged | None:
        """``x - y`` of two values of 16 bits."""
        low, high = x.low - y.high, x.high - y.low
        if not (_is_short(x) and _is_short(y) and _fits(low, high, INT16)):
            return None
        return self.value(low, high, x.expr - y.expr, _Difference(x, y))

    def multiply(self, x: Ranged, y: Ranged) -> Ranged | None:
        """``x * y`` of two values of 16 bits."""
        if not (_is_short(x) and _is_short(y)):
            return None
        low, high = product_bounds(x, y)
        if x.expr is y.expr:  # a square is not negative
            low = 0 if x.low <= 0 <= x.high else min(x.low**2, x.high**2)
        expr = x.expr * y.expr
        if isinstance(x.form, _Difference):
            a, b = x.form.a, x.form.b
            expr = multiply_add(a.expr, y.expr, _constant(0) - b.expr * y.expr)
        return self.value(low, high, expr)

    def subtract_from(self, number: int, x: Ranged) -> Ranged | None:
        """``number - x``."""
        form = x.form
        if not _usable(x) or not isinstance(form, _Raised) or number % (1 << form.bits):
            return None
        return self.raised((number >> form.bits) - form.value, form.bits)

    def shift_right(self, x: Ranged, bits: int) -> Ranged | None:
        """``x >> bits``."""
        form = x.form
        if not _usable(x) or bits > 31:
            return None
        if isinstance(form, _Shifted) and form.bits + bits <= 31:
            return self.shifted(form.value, form.bits + bits)
        if isinstance(form, _Clamped):
            return self.clamped(form.value >> bits, form.low >> bits, form.high >> bits)
        return self.shifted(x, bits)

    def shift_left(self, x: Ranged, bits: int) -> Ranged | None:
        """``x << bits``."""
        fits = _usable(x) and _fits(x.low << bits, x.high << bits)
        return self.raised(x, bits) if fits else None

    def minimum(self, x: Ranged, bound: int) -> Ranged | None:
        """``min(x, bound)``."""
        if not _usable(x):
            return None
        form = x.form
        if isinstance(form, _Clamped):
            return self.clamped(form.value, form.low, min(form.high, bound))
        return self.clamped(x, x.low, bound)

    def maximum(self, x: Ranged, bound: int) -> Ranged | None:
        """``max(x, bound)``."""
        if not _usable(x):
            return None
        form = x.form
        if isinstance(form, _Clamped):
            return self.clamped(form.value, max(form.low, bound), form.high)
        return self.clamped(x, bound, x.high)

    def cut(self, x: Ranged, least: int, most: int) -> Ranged | None:
        """Minimum with some bound from `least` to `most`."""
        bound = (1 << least.bit_length()) - 1
        return self.minimum(x, bound if bound <= most else least)

    def absolute(self, x: Ranged) -> Ranged | None:
        """``|x|``; its maximum with 0 is often needed as well."""
        from tvm import tirx

        if not _usable(x) or not _fits(2 * x.low, 2 * x.high):
            return None
        expr = (tirx.max(x.expr, _constant(0)) << 1) - x.expr
        return self.value(0, max(-x.low, x.high), expr)

    def q15_product(self, x: Ranged, y: Ranged) -> Ranged | None:
        """``(x y + 2^14) >> 15`` of values of 16 bits."""
        (a, up), (b, more) = _unraised(x), _unraised(y)
        up += more
        if up >= _Q15:
            return None
        product = self.product(a, b, 1 << (_Q15 - 1 - up))
        return None if product is None else self.shifted(product, _Q15 - up)

    def function(self, name: str, x: Ranged) -> Ranged | None:
        """A function that the processor has; see the base."""
        operator, dtype, bounds = _FUNCTIONS[name]
        if name not in self.functions or x.expr is None or (dtype, x.dtype) == ("int32", "int64"):
            return None
        argument = x.expr.astype(dtype) if dtype != x.dtype else x.expr
        return self.value(*bounds(x), tirx_module().call_intrin("int32", operator, argument))

    def bind(self, x: Ranged, bind: Callable[[Ranged], Ranged]) -> Ranged | None:
        """Bind what was shifted to the left instead of the result."""
        form = x.form
        return self.raised(bind(form.value), form.bits) if isinstance(form, _Raised) else None


def _unraised(x: Ranged) -> tuple[Ranged, int]:
    form = x.form
    if isinstance(form, _Raised) and _fits(x.low, x.high, INT16):
        return form.value, form.bits
    return x, 0
