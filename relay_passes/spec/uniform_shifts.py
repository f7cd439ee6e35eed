"""Expressions for vectors whose shifts take one amount for all lanes.

On WebAssembly a shift by an amount of each lane moves every lane to a register of its own and back.
Where the bounds prove that nothing is lost, ``x >> n = (x 2^(most - n)) >> most``: the power of two
comes of a few minima, and does not change from row to row where n is a channel's.
"""

from __future__ import annotations

from dataclasses import dataclass

from .arithmetic import Arithmetic
from .binding import bind_amount
from .q15 import lane_shift
from .ranged import Ranged
from .widths import INT16, INT32, fits

_BITS = {"int16": 16, "int32": 32}


@dataclass
class UniformShifts(Arithmetic):
    """See the module's text."""

    def shift_right_by(self, x: Ranged, amount: Ranged) -> Ranged | None:
        """``x >> amount``; only lowering sees whether lanes have amounts of their own."""
        least, most = amount.low, amount.high
        if x.expr is None or amount.expr is None or not 0 <= least < most < _BITS["int32"]:
            return None
        corners = [edge >> n for edge in (x.low, x.high) for n in (least, most)]
        low, high = min(corners), max(corners)
        short = x.is_short and fits(low, high, INT16) and most < _BITS["int16"]
        dtype = "int16" if short else "int32"
        # Wider bounds, where they fit, are those of more layers, which then have one kernel.
        bounds = [(0, most | 1), (least, most)]
        fitting = [pair for pair in bounds if _fits(x, *pair, _BITS[dtype])]
        if not fitting:
            return None
        n = bind_amount(amount).expr.astype(dtype)
        return Ranged(low, high, lane_shift(x.expr.astype(dtype), n, *fitting[0]), short, self)


def _fits(x: Ranged, least: int, most: int, bits: int) -> bool:
    """Whether the power of two fits so many bits, and its product with `x` 32."""
    up = most - least
    return up < bits - 1 and fits(x.low << up, x.high << up, INT32)
