"""i-layer-norm of a 15-bit input, in 32-bit arithmetic: preset ``accurate``.

As `ibert_tvm.relay_passes.spec.layer_norm`, with an input of 15 bits and a reciprocal that is
normalised to 15 bits per token, so that no entry needs a 64-bit product. Over the C channels of a
token:

1. ``mean = layer_norm.mean_of(sum of x, C)``, ``d = deviation(x, mean)``, 16 bits;
2. ``V = sum of d^2`` (int64), ``s = root(V)``, the exact square root with `root_fraction_bits`;
3. ``b = root_bits(s)``, ``r = reciprocal(s, b)``: one division per token;
4. ``out = normalise(d, b, r, gain, offset)``.
"""

from __future__ import annotations

from dataclasses import dataclass

from .layer_norm import LayerNormConstants, radicand
from .square_root import half_bits, i_sqrt
from .values import (
    Value,
    bind,
    clamp,
    floor_log2,
    known,
    maximum,
    normalised_reciprocal,
    shift_right_round,
    short,
)

INPUT_LIMIT = 2**14 - 1
NORMALISED_BITS = 16
"""Fraction bits of ``n = d / s``."""

_ROOT_BITS = 62
_LEAST_EPSILON = 4


@dataclass(frozen=True)
class ShortLayerNorm:
    """Scalar constants.

    Parameters
    ----------
    epsilon
        ``round(C eps / S^2)``, at least 4: added to the sum of squared deviations.
    root_fraction_bits
        Fraction bits of the root: it is taken of ``(V + E) 4^root_fraction_bits``.
    """

    epsilon: int
    root_fraction_bits: int

    @staticmethod
    def from_scale(scale: float, epsilon: float, channels: int) -> ShortLayerNorm:
        """Constants for an input at the given scale.

        Parameters
        ----------
        scale
            S of the input.
        epsilon
            The layer's epsilon, added to the variance.
        channels
            C.

        Raises
        ------
        RangeError
            If the epsilon exceeds 40 bits (the scale is too fine) or is negative.
        """
        units = LayerNormConstants.from_scale(scale, epsilon, channels).epsilon
        units = max(units, _LEAST_EPSILON)
        largest = channels * (2 * INPUT_LIMIT) ** 2 + units
        return ShortLayerNorm(units, (_ROOT_BITS - largest.bit_length()) // 2)


def bounded(x: Value) -> Value:
    """Clamp the input to 15 bits; costs nothing where it is known to have them."""
    return short(clamp(x, -INPUT_LIMIT, INPUT_LIMIT))


def deviation(y: Value, mean: Value) -> Value:
    """``y - mean``: 16 bits."""
    return y - short(mean)


def square(d: Value) -> Value:
    """``d^2``: 31 bits; to be summed over the channels in int64."""
    d = bind(d)
    return d * d


def sum_about_mean(squares: Value, total: Value, mean: Value, channels: int) -> Value:
    """``sum of (x - m)^2`` from the sums of ``x^2`` and of ``x``, which need one pass over a row.

    Parameters
    ----------
    squares, total
        Sums of ``x^2`` (int64) and of ``x`` over the channels.
    mean
        m, `layer_norm.mean_of` the total.
    channels
        C.

    Returns
    -------
    Value
        ``squares - m (2 total - C m)``: the same integer, for any m.
    """
    mean = bind(mean)
    value = squares - mean * (2 * total - channels * mean)
    return known(value, 0, channels * (2 * INPUT_LIMIT) ** 2)


def root_half_bits(total: Value, constants: ShortLayerNorm) -> Value:
    """Half the bits of the radicand, where the root starts; a stage of its own."""
    return half_bits(radicand(total, constants), _ROOT_BITS)


def root(total: Value, half: Value, constants: ShortLayerNorm) -> Value:
    """``s = floor(sqrt((V + E) 4^F))``, at least ``2^(F + 1)``: once per token."""
    exact = i_sqrt(radicand(total, constants), _ROOT_BITS, half)
    return maximum(exact, 2 << constants.root_fraction_bits)


def root_bits(s: Value, constants: ShortLayerNorm) -> Value:
    """``floor(log2 s)``: a sum of comparisons with powers of two, on every target the same.

    Parameters
    ----------
    s
        `root`.
    constants

    Returns
    -------
    Value
        In [F + 1, 30], int32.
    """
    return floor_log2(s, constants.root_fraction_bits + 1, _ROOT_BITS // 2 - 1)


def reciprocal(s: Value, bits: Value) -> Value:
    """``floor(2^(15 + b) / s)``: one division per token.

    Parameters
    ----------
    s
        `root`.
    bits
        `root_bits` of it.

    Returns
    -------
    Value
        In [2^14, 2^15 - 1], int32.
    """
    return normalised_reciprocal(s, bits + 15)  # 2^b <= s < 2^(b + 1)


def normalise(
    d: Value,
    bits: Value,
    factor: Value,
    gain: Value,
    offset: Value,
    constants: ShortLayerNorm,
    shift: int,
    low: int,
    high: int,
) -> Value:
    """Normalise a deviation, apply gain and offset, requantise.

    Parameters
    ----------
    d
        `deviation`.
    bits, factor
        `root_bits` and `reciprocal` of the token.
    gain, offset
        Arrays of ``layer_norm.LayerNormAffine``, with half a gain added to every offset: n is
        rounded down.
    constants
    shift, low, high
        ``clamp((n gain + offset + half) >> shift, low, high)``.

    Returns
    -------
    Value
        In [low, high]; every intermediate is int32.
    """
    one = 1 << NORMALISED_BITS
    # |d| 2^F <= s, since V holds d^2, so |n| <= 1.
    n = known((d * factor) >> (bits - (constants.root_fraction_bits + 1)), -one, one)
    return clamp(shift_right_round(n * gain + offset, shift), low, high)
