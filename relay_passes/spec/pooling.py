"""Masked mean over the sequence, in integers."""

from __future__ import annotations

from .values import Value, floor_divide, maximum, shift_right_round

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


def mean_of_tokens(total: Value, reciprocal: Value, fraction_bits: int) -> Value:
    """Mean over the unmasked tokens.

    Parameters
    ----------
    total : Value
        Sum over the unmasked tokens, int32.
    reciprocal : Value
        `reciprocal_of_count`.
    fraction_bits : int
        The result's scale is the input's times 2^-fraction_bits.

    Returns
    -------
    Value
        0 for a sequence without tokens; the product is int64.
    """
    return shift_right_round(total * reciprocal, _BITS - fraction_bits)
