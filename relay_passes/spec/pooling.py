"""Masked means over the sequence, in integers."""

from __future__ import annotations

from .square_root import half_bits, i_sqrt
from .values import (
    Ranged,
    Value,
    absolute,
    bind,
    clamp,
    floor_divide,
    known,
    maximum,
    shift_right_round,
)

_BITS = 30
_ROOT_FRACTION_BITS = 14
_ROOT_BITS = 62


def reciprocal_of_count(count: Value) -> Value:
    """``round(2^30 / max(count, 1))``: one division per sequence.

    Parameters
    ----------
    count
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
    total
        Sum over the unmasked tokens, int32.
    reciprocal
        `reciprocal_of_count`.
    fraction_bits
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


def _quotient(total: Value, divisor: Value, fraction_bits: int) -> Value:
    """``round(total 2^fraction_bits / divisor)``, halves away from 0; the divisor is positive."""
    total, divisor = bind(total), bind(divisor)
    size = (absolute(total) << fraction_bits) + (divisor >> 1)
    sign = (clamp(total, -1, 0) << 1) + 1
    return sign * floor_divide(size, divisor)


def quotient_within(
    total: Value, weights: Value, fraction_bits: int, entry: tuple[int, int]
) -> Value:
    """Mean by weights that are not negative.

    Parameters
    ----------
    total
        Sum of the weighted entries.
    weights
        Sum of the weights.
    fraction_bits
        The result's scale is the entries' times 2^-fraction_bits.
    entry
        The interval of the entries: a mean lies in it, which the interval of the total, made for
        the longest sequence, does not tell.

    Returns
    -------
    Value
        Rounded to nearest; 0 where all weights are.
    """
    mean = _quotient(total, maximum(weights, 1), fraction_bits)
    return known(mean, min(entry[0], 0) << fraction_bits, max(entry[1], 0) << fraction_bits)


def root_half_bits(count: Value) -> Value:
    """Half the bits of the radicand of `root_of_count`: a stage of its own."""
    return half_bits(count << (2 * _ROOT_FRACTION_BITS), _ROOT_BITS)


def root_of_count(count: Value, half: Value) -> Value:
    """``floor(sqrt(max(count, 1)) 2^14)``: one root per sequence.

    Parameters
    ----------
    count
        Number of tokens, up to 2^33.
    half
        `root_half_bits` of it.

    Returns
    -------
    Value
        At least 2^14.
    """
    root = i_sqrt(count << (2 * _ROOT_FRACTION_BITS), _ROOT_BITS, half)
    return maximum(root, 1 << _ROOT_FRACTION_BITS)


def over_root(total: Value, root: Value, fraction_bits: int) -> Value:
    """Sum of n entries over the root of n.

    Parameters
    ----------
    total
        The sum, int32.
    root
        `root_of_count` of n.
    fraction_bits
        The result's scale is the entries' times 2^-fraction_bits.

    Returns
    -------
    Value
        Rounded to nearest, halves away from 0.
    """
    return _quotient(total, root, fraction_bits + _ROOT_FRACTION_BITS)
