"""i-sqrt: the exact integer square root, by Newton's iteration with a fixed number of steps.

The start is a power of two, ``x0 = 2^ceil(bits/2) >= sqrt(n)``, so the first division is a shift.
The published iteration stops when x no longer falls and claims at most four rounds; the worst
32-bit inputs need five. A fixed number of steps, the last with ``min``, needs no loop condition
and is exact.
"""

from __future__ import annotations

import math

from ..errors import RangeError
from .values import (
    Ranged,
    Value,
    bind,
    floor_divide,
    greater_equal,
    known,
    maximum,
    minimum,
    power_of_two,
    select,
    spelled_as,
)


def newton_divisions(bits: int) -> int:
    """Divisions needed, after the shift step, for an exact root of any n < 2^bits.

    With relative error e before a step, Newton's step leaves ``e^2 / (2 (1 + e))``; x0 has e <= 1.
    Flooring only brings x closer to the root and never below its floor. So once the error is below
    one unit, x is the floor or one more, and the smaller of x and its successor is the floor.

    Parameters
    ----------
    bits
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
    return max(steps, 1)  # the first of them is the shift; one more division takes the smaller


def half_bits(n: Value, bits: int) -> Value:
    """``ceil(b / 2)`` for n of b bits, 1 <= n < 2^bits; 1 for n = 0.

    A flat sum of comparisons with powers of four: no intrinsic, so the same on every target.
    When tracing, make this a stage of its own (a tensor with one entry per root): TVM's analysis
    walks an expression once per use, and Newton's steps use it 2^steps times.

    Parameters
    ----------
    n
        0 <= n < 2^bits.
    bits
        1..62.

    Returns
    -------
    Value
        In [1, 31], int32.
    """
    count: Value = 1
    for j in range(1, (bits + 1) // 2):
        count = select(greater_equal(n, 1 << (2 * j)), 1, 0) + count
    return known(count, 1, (bits + 1) // 2)


def i_sqrt(n: Value, bits: int, half: Value = None) -> Value:
    """``floor(sqrt(n))``, exactly.

    Parameters
    ----------
    n
        0 <= n < 2^bits.
    bits
        1..62; decides the number of steps, not the result.
    half
        `half_bits` of n, when it was computed as a stage of its own.

    Returns
    -------
    Value
        ``ceil(bits / 2)`` bits.

    Raises
    ------
    RangeError
        If the interval of n does not lie in [0, 2^bits).
    """
    low, high = (n.low, n.high) if isinstance(n, Ranged) else (0, (1 << bits) - 1)
    if not (1 <= bits <= 62 and low >= 0 and high < 1 << bits):
        raise RangeError(
            f"square root of a value outside [0, 2^{min(bits, 62)})",
            why=f"its interval is [{low}, {high}]",
            todo="clamp it, or raise the number of bits, up to 62",
        )
    function = spelled_as("square_root", n)
    if function is not None:
        return function
    n = bind(n)
    positive = bind(maximum(n, 1))
    if half is None:
        half = half_bits(n, bits)
    half = bind(known(half, 1, (bits + 1) // 2))
    largest = 1 << ((bits + 1) // 2)
    x = (power_of_two(half) + (positive >> half)) >> 1  # x0 is a power of two: no division
    divisions = newton_divisions(bits)
    for step in range(divisions):
        x = bind(known(x, 1, largest))
        following = (x + floor_divide(positive, x)) >> 1
        # Once at the floor of the root, a step may go one up again; only the last must not.
        x = minimum(x, following) if step == divisions - 1 else following
    return known(minimum(x, n), math.isqrt(low), math.isqrt(high))
