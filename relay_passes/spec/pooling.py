"""Masked mean over the sequence, in integers."""

from __future__ import annotations

from .values import Ranged, Value, floor_divide, known, maximum, shift_right_round

_BITS = 30


def reciprocal_of_count(count: Value) -> Value:
    """``round(2^30 / max(count, 1))``: one division per sequence.

    Parameters
    ----------
    count : Value
        Number of unmasked tokens.

    Returns
    -------
    Value
        int32.
    """
    count = maximum(count, 1)
    return floor_divide((count >> 1) + (1 << _BITS), count)


def mean_of_tokens(
    total: Value, reciprocal: Value, fraction_bits: int, entry: Value = None
) -> Value:
    """Mean over the unmasked tokens.

    Parameters
    ----------
    total : Value
        Sum over the unmasked tokens, int32.
    reciprocal : Value
        `reciprocal_of_count`.
    fraction_bits : int
        The result's scale is the input's times 2^-fraction_bits.
    entry : Ranged, optional
        The interval of the tokens' values. A mean lies between the smallest and the largest, which
        the interval of the total, made for the longest sequence, does not tell.

    Returns
    -------
    Value
        0 for a sequence without tokens; the product is int64.
    """
    mean = shift_right_round(total * reciprocal, _BITS - fraction_bits)
    if not isinstance(entry, Ranged) or not isinstance(total, Ranged):
        return mean
    # The reciprocal is off by half a unit at most, so the mean by |total| / 2^31 of one unit.
    slack = (max(total.high, -total.low) >> (_BITS + 1 - fraction_bits)) + 2
    low, high = min(entry.low, 0) << fraction_bits, max(entry.high, 0) << fraction_bits
    return known(mean, low - slack, high + slack)
