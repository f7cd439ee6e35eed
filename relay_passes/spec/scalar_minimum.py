"""Expressions for a processor without vectors that has minima, maxima and 32-bit multiply-adds.

That is a GPU, one of whose threads computes one number at a time. It has no instruction that
saturates, but one for a minimum and one for a maximum; it shifts by a register as fast as by a
constant. So, besides what `ibert_tvm.relay_passes.spec.scalar` does,

* a clamp is a minimum, a maximum or both, and nothing that the interval proves already;
* an absolute value is one instruction;
* a number less a shifted product is one shifted product of a negated factor,
  ``c - ((a b + k) >> n) = (a (-b) + (c << n) + 2^n - 1 - k) >> n``, where negating the factor
  costs nothing: it is a constant, or such a product itself;
* a shift by a computed amount takes up a constant one before it, ``(x >> n) >> m = x >> (n + m)``;
* a bound that need not be exact, of a shifted product with a constant, becomes a bound of the other
  factor, where it joins one that is there.
"""

from __future__ import annotations

from .binding import bind_amount
from .ranged import Constant, Ranged, combined
from .scalar import Scalar, _Clamped, _constant, _fits, _Product, _Shifted, _usable

_REGISTER_BITS = 32


class ScalarWithMinimum(Scalar):
    """See the module's text."""

    def clamped(self, x: Ranged, low: int, high: int) -> Ranged:
        """Clamp to an interval that has something of the value's."""
        from tvm import tirx

        expr = x.expr
        if x.high > high:
            expr = tirx.min(expr, _constant(high))
        if x.low < low:
            expr = tirx.max(expr, _constant(low))
        return self.value(max(x.low, low), min(x.high, high), expr, _Clamped(x, low, high))

    def cut(self, x: Ranged, least: int, most: int) -> Ranged | None:
        """Minimum with some bound from `least` to `most`."""
        form = x.form
        if isinstance(form, _Shifted) and isinstance(form.value.form, _Product):
            a, b, addend = form.value.form.a, form.value.form.b, form.value.form.addend
            if isinstance(b, Constant) and b.low > 0 and isinstance(a.form, _Clamped):
                # Products grow with the factor: that of the largest that stays below is the bound.
                largest = (((most + 1) << form.bits) - 1 - addend) // b.low
                reached = (largest * b.low + addend) >> form.bits
                bounded = self.minimum(a, largest) if largest >= a.low else None
                if bounded is not None and reached >= least:
                    product = self.product(bounded, b, addend)
                    return None if product is None else self.shifted(product, form.bits)
        return super().cut(x, least, most)

    def subtract_from(self, number: int, x: Ranged) -> Ranged | None:
        """``number - x``."""
        form = x.form
        if not _usable(x):
            return None
        if isinstance(form, _Shifted) and isinstance(form.value.form, _Product):
            product, bits = form.value.form, form.bits
            negated = self._negated(product.b)
            addend = (number << bits) + (1 << bits) - 1 - product.addend
            if negated is not None and _fits(addend, addend):
                difference = self.product(product.a, negated, addend)
                if difference is not None:
                    return self.shifted(difference, bits)
        return super().subtract_from(number, x)

    def absolute(self, x: Ranged) -> Ranged | None:
        """``|x|``, an instruction of its own."""
        from tvm import tirx

        if not _usable(x) or not _fits(-x.high, -x.low):
            return None
        return self.value(0, max(-x.low, x.high), tirx.abs(x.expr))

    def _negated(self, x: Ranged) -> Ranged | None:
        """``-x``, where it costs no instruction."""
        if isinstance(x, Constant):
            return Constant(-x.low)
        is_product = isinstance(x.form, _Shifted) and isinstance(x.form.value.form, _Product)
        return self.subtract_from(0, x) if is_product else None

    def shift_right_by(self, x: Ranged, amount: Ranged) -> Ranged | None:
        """``x >> amount`` of an amount that is computed."""
        form = x.form
        if isinstance(amount, Constant) or amount.expr is None or not _usable(x):
            return None
        if not isinstance(form, _Shifted) or amount.low < 0:
            return None
        if amount.high + form.bits >= _REGISTER_BITS:
            return None
        total = bind_amount(amount + form.bits)
        low, high = (end >> amount.low for end in (x.low, x.high))
        smallest, largest = min(low, x.low >> amount.high), max(high, x.high >> amount.high)
        shifted = combined(
            "right shift", smallest, largest, lambda a, n: a >> n, form.value, total, total
        )
        return shifted
