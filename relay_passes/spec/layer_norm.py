"""i-layer-norm: integer layer normalisation with an exact integer square root.

Over the C channels of a token, in stages:

1. ``y = bounded(x, constants)``, ``mean = mean_of(sum of y, C)``;
2. ``d = y - mean`` (`deviation`), ``V = sum of square(d)`` (int64);
3. ``h = root_half_bits(V, constants)``, ``r = inverse_std(V, h, constants)``: one square root and
   one division per token;
4. ``out = normalise(d, r, gain, offset, ...)``.

No scale of the input appears: the deviation is divided by the deviations' own root. ``sqrt(C)``,
gamma and the output's scale are folded in the gain, beta in the offset, so a gamma that is zero or
negative needs no care, and a constant row gives beta.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..errors import RangeError
from .polynomial import check_scale
from .square_root import half_bits, i_sqrt
from .values import Value, bind, clamp, floor_divide, maximum, shift_right_round

INPUT_LIMIT = 2**20 - 1
_MAX_EPSILON = 2**40
_ROOT_BITS = 62
_OFFSET_BITS = 29
_MIN_SHIFT = 2


@dataclass(frozen=True)
class LayerNormConstants:
    """Scalar constants of i-layer-norm.

    Parameters
    ----------
    input_limit
        Inputs are clamped to [-input_limit, input_limit].
    epsilon
        ``round(C eps / S^2)``, at least 1: added to the sum of squared deviations.
    reciprocal_bits
        ``r = floor(2^reciprocal_bits / s)``, s the square root; 40 (accurate) or 31 (released).
    normalised_bits
        Fraction bits of ``n = d / s``, |n| <= 2^normalised_bits.
    root_fraction_bits
        Fraction bits of s itself: the root is taken of ``(V + E) 4^root_fraction_bits``. Without
        them a row whose deviations are small loses accuracy to the floor of the root.
    """

    input_limit: int
    epsilon: int
    reciprocal_bits: int
    normalised_bits: int
    root_fraction_bits: int = 0

    @staticmethod
    def from_scale(
        scale: float,
        epsilon: float,
        channels: int,
        reciprocal_bits: int = 40,
        normalised_bits: int = 16,
        root_fraction_bits: int | None = None,
    ) -> LayerNormConstants:
        """Constants for an input at the given scale.

        Parameters
        ----------
        scale
            S of the input.
        epsilon
            The layer's epsilon, added to the variance.
        channels
            C.
        reciprocal_bits, normalised_bits
            See the class.
        root_fraction_bits
            See the class. By default as many as 62 bits allow, and none when `reciprocal_bits` is
            31 or fewer, as released.

        Raises
        ------
        RangeError
            If the epsilon exceeds 40 bits (the scale is too fine) or is negative.
        """
        check_scale(scale, "i-layer-norm")
        units = channels * epsilon / (scale * scale)
        if not 0 <= units <= _MAX_EPSILON:
            raise RangeError(
                f"an epsilon of {epsilon:.3g} is {units:.3g} squared units",
                why=f"with scale {scale:.3g} and {channels} channels; at most 2^40 is allowed",
                todo="use a coarser scale for the input of the layer norm",
            )
        rounded = max(1, round(units))
        if root_fraction_bits is None:
            largest = channels * (2 * INPUT_LIMIT) ** 2 + rounded
            spare = (_ROOT_BITS - largest.bit_length()) // 2
            root_fraction_bits = 0 if reciprocal_bits <= 31 else max(spare, 0)
        return LayerNormConstants(
            INPUT_LIMIT, rounded, reciprocal_bits, normalised_bits, root_fraction_bits
        )


@dataclass(frozen=True, eq=False)
class LayerNormAffine:
    """Gain and offset of i-layer-norm: the operands of the operator, and the final shift.

    Parameters
    ----------
    gain, offset
        int32, in the shape of gamma.
    shift
        ``out = (n gain + offset + half) >> shift``.
    """

    gain: np.ndarray
    offset: np.ndarray
    shift: int

    @staticmethod
    def from_scale(
        gamma: np.ndarray,
        beta: np.ndarray,
        output_scale: float,
        normalised_bits: int = 16,
        gain_bits: int = 14,
    ) -> LayerNormAffine:
        """Fold gamma, beta, sqrt(C) and the output's scale.

        Parameters
        ----------
        gamma, beta
            Float [C], or [heads, C] for rows of C channels that are heads of a token.
        output_scale
            S of the result.
        normalised_bits
            As in `LayerNormConstants`.
        gain_bits
            Bits of the largest gain: with 16 + 14 bits, ``n gain + offset`` stays in int32.

        Raises
        ------
        RangeError
            If gamma or beta is not finite, or too large beside the output's scale.
        """
        check_scale(output_scale, "a layer norm's output")
        gamma = np.asarray(gamma, np.float64)
        beta = np.asarray(beta, np.float64)
        if not (np.isfinite(gamma).all() and np.isfinite(beta).all()):
            raise RangeError(
                "gamma or beta is not finite",
                why="a weight of the layer norm is infinite or not a number",
                todo="check the checkpoint",
            )
        factors = gamma * math.sqrt(gamma.shape[-1]) / 2.0**normalised_bits / output_scale
        targets = beta / output_scale
        shift = min(_fitting_shift(factors, gain_bits), _fitting_shift(targets, _OFFSET_BITS))
        if shift < _MIN_SHIFT:
            channel = int(
                np.maximum(np.abs(factors) * 2**normalised_bits, np.abs(targets)).argmax()
            )
            raise RangeError(
                f"gamma {gamma.flat[channel]:.4g} or beta {beta.flat[channel]:.4g} of channel "
                f"{channel} is too large for the output's scale {output_scale:.3g}",
                why=f"with {gain_bits} and {_OFFSET_BITS} bits only {shift} fraction bits are "
                f"left, and {_MIN_SHIFT} are needed",
                todo="use a coarser scale for the output of the layer norm",
            )
        # A gain that rounds to zero beside the largest one is a channel that is beta alone.
        gain = np.floor(np.ldexp(factors, shift) + 0.5).astype(np.int32)
        offset = np.floor(np.ldexp(targets, shift) + 0.5).astype(np.int32)
        return LayerNormAffine(gain, offset, shift)


def _fitting_shift(reals: np.ndarray, bits: int) -> int:
    """Largest shift, 30 at most, with which every entry rounds to less than 2^bits."""
    largest = float(np.abs(reals).max())
    if largest == 0.0:
        return 30
    shift = bits - math.frexp(largest)[1]
    if math.floor(math.ldexp(largest, shift) + 0.5) >= 1 << bits:
        shift -= 1
    return min(shift, 30)


def bounded(x: Value, constants: LayerNormConstants) -> Value:
    """Clamp the input to 21 bits, which bounds every width below.

    Parameters
    ----------
    x
        int32.
    constants

    Returns
    -------
    Value
        In [-input_limit, input_limit].
    """
    return clamp(x, -constants.input_limit, constants.input_limit)


def mean_of(total: Value, channels: int) -> Value:
    """``round(sum / C)``, half up.

    Parameters
    ----------
    total
        Sum of the bounded inputs of a token.
    channels
        C.

    Returns
    -------
    Value
        int32, 21 bits.
    """
    return floor_divide(total + channels // 2, channels)


def deviation(y: Value, mean: Value) -> Value:
    """``y - mean``: 22 bits."""
    return y - mean


def square(d: Value) -> Value:
    """``d^2``: 43 bits, int64; to be summed over the channels."""
    d = bind(d)
    return d * d


class _Radicand(Protocol):
    """Constants of the radicand."""

    @property
    def epsilon(self) -> int: ...
    @property
    def root_fraction_bits(self) -> int: ...


def radicand(total: Value, constants: _Radicand) -> Value:
    """``(V + E) 4^root_fraction_bits``, by the constants of this form or of the short one."""
    return (total + constants.epsilon) << (2 * constants.root_fraction_bits)


def root_half_bits(total: Value, constants: LayerNormConstants) -> Value:
    """Half the bits of the radicand, where the root starts: once per token, its own stage.

    Parameters
    ----------
    total
        V, the sum of squared deviations, int64; ``(V + E) 4^root_fraction_bits < 2^62``.
    constants

    Returns
    -------
    Value
        int32 in [1, 31].
    """
    return half_bits(radicand(total, constants), _ROOT_BITS)


def inverse_std(total: Value, half: Value, constants: LayerNormConstants) -> Value:
    """``floor(2^reciprocal_bits / s)`` with ``s = sqrt(V + E)``: once per token.

    Parameters
    ----------
    total
        V, the sum of squared deviations, int64; ``(V + E) 4^root_fraction_bits < 2^62``.
    half
        `root_half_bits` of the same sum.
    constants

    Returns
    -------
    Value
        Positive, at most 2^reciprocal_bits.
    """
    root = maximum(i_sqrt(radicand(total, constants), _ROOT_BITS, half), 1)
    return floor_divide(1 << (constants.reciprocal_bits + constants.root_fraction_bits), root)


def normalise(
    d: Value,
    reciprocal: Value,
    gain: Value,
    offset: Value,
    constants: LayerNormConstants,
    shift: int,
    low: int,
    high: int,
) -> Value:
    """Normalise a deviation, apply gain and offset, requantise.

    Parameters
    ----------
    d
        `deviation`.
    reciprocal
        `inverse_std` of the token.
    gain, offset
        Arrays of `LayerNormAffine`.
    constants
    shift, low, high
        ``clamp((n gain + offset + half) >> shift, low, high)``.

    Returns
    -------
    Value
        In [low, high]; d r is int64, and n gain + offset is int32 for gains of 14 bits.
    """
    one = 1 << constants.normalised_bits
    drop = constants.reciprocal_bits - constants.normalised_bits
    # |d| <= s, so |n| <= 1 but for rounding: the clamp states what the interval cannot know.
    n = clamp(shift_right_round(d * reciprocal, drop), -one, one)
    return clamp(shift_right_round(n * gain + offset, shift), low, high)
