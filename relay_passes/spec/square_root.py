"""i-sqrt: the exact integer square root, by Newton's iteration with a fixed number of steps.

The start is a power of two, ``x0 = 2^ceil(bits/2) >= sqrt(n)``, so the first division is a shift.
The published iteration stops when x no longer falls and claims at most four rounds; the worst
32-bit inputs need five. A fixed number of steps with ``min`` needs no loop condition and is exact.
"""

from __future__ import annotations

import math

from .values import (
    Ranged,
    Value,
    bind,
    bit_length,
    floor_divide,
    known,
    maximum,
    minimum,
    power_of_two,
)


def newton_divisions(bits: int) -> int:
    """Divisions needed, after the shift step, for an exact root of any n < 2^bits.

    With relative error e before a step, Newton's step leaves ``e^2 / (2 (1 + e))``; x0 has e <= 1.
    Flooring only brings x closer to the root and never below its floor, so once the error is below
    one unit, one more step reaches the floor exactly.

    Parameters
    ----------
    bits : int
        1..62.

    Returns
    -------
    int
        4 for 32 bits, 5 for 62.
    """
    error, steps = 1.0, 0
    while error * 2.0 ** (bits / 2) >= 1.0:
        error = error * error / (2.0 * (1.0 + error))
        steps += 1
    return max(steps, 1)  # steps includes the shift, and one step more follows


def i_sqrt(n: Value, bits: int) -> Value:
    """``floor(sqrt(n))``, exactly.

    Parameters
    ----------
    n : Value
        0 <= n < 2^bits.
    bits : int
        1..62; decides the number of steps, not the result.

    Returns
    -------
    Value
        ``ceil(bits / 2)`` bits.
    """
    n = bind(n)
    half = bind((bit_length(n, bits) + 1) >> 1)
    x = bind(known((power_of_two(half) + (n >> half)) >> 1, 0, 1 << ((bits + 1) // 2)))
    for _ in range(newton_divisions(bits)):
        # n = 0 passes through x = 0; every other n keeps x >= 1.
        x = bind(minimum(x, (x + floor_divide(n, maximum(x, 1))) >> 1))
    low, high = (n.low, n.high) if isinstance(n, Ranged) else (0, (1 << bits) - 1)
    return known(x, math.isqrt(low), math.isqrt(high))
