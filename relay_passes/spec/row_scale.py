"""A scale per row: entries divided by the largest of their row, and products multiplied by it.

With m the largest magnitude of a row, its entries become ``127 x / m`` in 8 bits, and whatever is
computed of them linearly is multiplied by m again. Every row uses the whole range of 8 bits,
however small it is beside others. A row is treated by itself, so its integers depend neither on the
batch nor on padding.
"""

from __future__ import annotations

from .values import (
    Value,
    bind,
    clamp,
    floor_divide,
    floor_log2,
    known,
    q15_multiply,
    shift_left_within,
    shift_right_round,
    short,
)

LIMIT = 2**15 - 1
"""Largest magnitude of an entry."""
LARGEST = 127
"""Magnitude that the largest entry of a row becomes."""
_BITS = 14  # of the leading one of a normalised magnitude
_FRACTION = 7  # of an entry times the reciprocal, in Q15


def bounded(x: Value) -> Value:
    """Clamp an entry to 15 bits and a sign; costs nothing where it is known to have them."""
    return short(clamp(x, -LIMIT, LIMIT))


def bounded_magnitude(m: Value) -> Value:
    """Clamp a magnitude to [1, `LIMIT`]; costs nothing where it is known to lie there."""
    return short(clamp(m, 1, LIMIT))


def normalising_shift(m: Value) -> Value:
    """``14 - floor(log2 m)``: what brings a magnitude to [2^14, 2^15).

    Parameters
    ----------
    m
        Largest magnitude of a row, in [1, `LIMIT`].

    Returns
    -------
    Value
        In [0, 14].
    """
    return _BITS - floor_log2(m, 0, _BITS)


def reciprocal(m: Value, shift: Value) -> Value:
    """``floor(127 2^22 / (m << shift))``: one division per row.

    Parameters
    ----------
    m
        Largest magnitude of a row.
    shift
        `normalising_shift` of it.

    Returns
    -------
    Value
        In [16256, 32512].
    """
    normalised = known(m << shift, 1 << _BITS, LIMIT)
    return floor_divide(LARGEST << (15 + _FRACTION), normalised)


def quantise(
    x: Value, m: Value, shift: Value, factor: Value, zero_point: int, low: int, high: int
) -> Value:
    """``clamp(round(127 x / m) + zero_point, low, high)``, in 16-bit arithmetic.

    The result differs from exact rounding only where ``127 x / m`` is within 1/80 of the middle
    between two integers: x is multiplied by a reciprocal of 15 bits, and rounded to 7 fraction bits
    first.

    Parameters
    ----------
    x
        Entry of a row; beyond m it is taken for m.
    m, shift, factor
        Largest magnitude of the row, its `normalising_shift` and its `reciprocal`.
    zero_point, low, high
        Of the result.

    Returns
    -------
    Value
        In [low, high], short.
    """
    m = bind(short(m))
    inside = clamp(bounded(x), -m, m)
    # |x| <= m, and m << shift has 15 bits.
    normalised = shift_left_within(inside, short(shift), LIMIT)
    largest = LARGEST << _FRACTION
    product = known(q15_multiply(normalised, short(factor)), -largest, largest)
    rounded = shift_right_round(product, _FRACTION)
    return clamp(rounded + zero_point if zero_point else rounded, low, high)


def restored(accumulator: Value, m: Value, shift: int, bias: Value) -> Value:
    """``floor(accumulator m / 2^shift) + bias``, without a product of more than 32 bits.

    Parameters
    ----------
    accumulator
        Of a product with a row's 8-bit integers.
    m
        The row's largest magnitude.
    shift
        Such that the result has 32 bits; 0..16.
    bias
        In units of the result.
    """
    if shift == 0:
        return accumulator * m + bias
    # With a = h 2^n + l: floor(a m / 2^n) = h m + floor(l m / 2^n).
    accumulator, m = bind(accumulator), bind(m)
    low = accumulator & ((1 << shift) - 1)
    return (accumulator >> shift) * m + ((low * m) >> shift) + bias
