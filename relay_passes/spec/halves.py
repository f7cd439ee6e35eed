"""Expressions for vectors of 32-bit lanes without numbers of 64 bits.

Such a processor (Cortex-M55) has the upper and the lower half of a product as one instruction each.
A product of more than 32 bits that is rounded and shifted back to 32 is computed from its halves:
``(a b + 2^(n-1)) >> n = (v + 1) >> 1`` with ``v = (a b) >> (n - 1)``. The plain expression in 64
bits stays where a product is used in another way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .arithmetic import Arithmetic
from .q15 import high_product
from .ranged import Constant, Ranged, combined, expr_in, product_bounds
from .widths import INT32, fits

if TYPE_CHECKING:
    from tvm import tirx

_WORD = 32
# Of values that are clamped: far beyond every bound, and far below 2^31.
_LARGEST_BOUND = 1 << 28
_SHORTEST_SHIFT = 4


@dataclass(frozen=True, eq=False)
class _Product:
    """``a b + addend``, a of 32 bits."""

    a: Ranged
    b: Ranged
    addend: int = 0


@dataclass(frozen=True, eq=False)
class _Quotient:
    """``(a b + 2^(bits - 1)) >> bits``, at least `low`."""

    product: _Product
    bits: int
    low: int | None = None


@dataclass
class Halves(Arithmetic):
    """See the module's text."""

    def multiply(self, x: Ranged, y: Ranged) -> Ranged | None:
        """``x * y``."""
        if x is y or not (_written(x) and _written(y)):
            return None
        product = combined("product", *product_bounds(x, y), lambda p, q: p * q, x, y)
        a, b = (y, x) if x.dtype == "int64" else (x, y)
        upper = [_upper(b.low), _upper(b.high)]
        sums = [p * q for p in (a.low, a.high) for q in upper]
        # The reciprocal of a row is wide and not negative; wide numbers of lanes keep loops scalar.
        halved = a.dtype == "int32" and (b.dtype == "int32" or b.low >= 0)
        if product.dtype == "int64" and halved and fits(min(sums), max(sums), INT32):
            product.form = _Product(a, b)
        return product

    def add(self, x: Ranged, number: int) -> Ranged | None:
        """``x + number``."""
        form = x.form
        if not isinstance(form, _Product) or form.addend:
            return None
        bounds = x.low + number, x.high + number
        total = combined("sum", *bounds, lambda p, q: p + q, x, Constant(number))
        total.form = _Product(form.a, form.b, number)
        return total

    def shift_right(self, x: Ranged, bits: int) -> Ranged | None:
        """``x >> bits``."""
        form = x.form
        if not isinstance(form, _Product) or 2 * form.addend != 1 << bits:
            return None
        low, high = x.low >> bits, x.high >> bits
        if fits(2 * low, 2 * high + 1, INT32):
            return self._value(low, high, _rounded(form, bits))
        shift = Constant(bits)
        quotient = combined("right shift", low, high, lambda p, n: p >> n, x, shift, shift)
        if _SHORTEST_SHIFT <= bits < _WORD:
            quotient.form = _Quotient(form, bits)
        return quotient

    def maximum(self, x: Ranged, bound: int) -> Ranged | None:
        """``max(x, bound)``."""
        from tvm import tirx

        form = x.form
        if not isinstance(form, _Quotient) or abs(bound) > _LARGEST_BOUND:
            return None
        bounds = max(x.low, bound), max(x.high, bound)
        raised = combined("maximum", *bounds, lambda p, q: tirx.max(p, q), x, Constant(bound))
        raised.form = _Quotient(form.product, form.bits, bound)
        return raised

    def minimum(self, x: Ranged, bound: int) -> Ranged | None:
        """``min(x, bound)``."""
        from tvm import tirx

        form = x.form
        if not isinstance(form, _Quotient) or form.low is None or abs(bound) > _LARGEST_BOUND:
            return None
        expr = _rounded(form.product, form.bits, saturated=True)
        low, high = (tirx.const(one, "int32") for one in (form.low, bound))
        clamped = tirx.min(tirx.max(expr, low), high)
        return self._value(min(x.low, bound), min(x.high, bound), clamped)

    def _value(self, low: int, high: int, expr: tirx.Expr) -> Ranged:
        return Ranged(low, high, expr, arithmetic=self)


def _written(x: Ranged) -> bool:
    return x.expr is not None or isinstance(x, Constant)


def _upper(number: int) -> int:
    """Upper half of a number whose lower half is taken for a signed one."""
    return (number + (1 << (_WORD - 1))) >> _WORD


def _rounded(product: _Product, bits: int, saturated: bool = False) -> tirx.Expr:
    """``(a b + 2^(bits - 1)) >> bits`` of 31 bits, int32.

    Parameters
    ----------
    product
        Of which the factors are used.
    bits
        1..62.
    saturated
        Whether the result may have more bits: it is then beyond `_LARGEST_BOUND`, of its sign.
    """
    from tvm import tirx

    up = _WORD + 1 - bits
    a, b = product.a, product.b  # not bound: TVM's analyses refuse bindings of stages that bind
    left: tirx.Expr = expr_in(a, "int32")
    right: tirx.Expr = expr_in(b, "int32")
    wide = b.dtype == "int64"
    if up > 0 and not wide and not saturated and fits(a.low << up, a.high << up, INT32):
        return (high_product(left << up, right) + 1) >> 1
    high = high_product(left, right)
    if wide:
        half = tirx.const(1 << (_WORD - 1), "int64")
        high = high + left * ((b.expr + half) >> tirx.const(_WORD, "int64")).astype("int32")
    if up <= 0:
        return ((high >> -up) + 1) >> 1
    if saturated:
        limit = 1 << (bits - 3)
        least, most = (tirx.const(one, "int32") for one in (-limit, limit - 1))
        high = tirx.min(tirx.max(high, least), most)
    low = left.astype("uint32") * right.astype("uint32")
    kept = (low >> tirx.const(bits - 1, "uint32")).astype("int32")
    return (tirx.bitwise_or(high << up, kept) + 1) >> 1
