"""i-layer-norm: integer layer normalisation with an exact integer square root."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LayerNormConstants:
    """Scalar constants of i-layer-norm.

    Parameters
    ----------
    input_limit : int
        Inputs are clamped to [-input_limit, input_limit].
    epsilon : int
        ``round(C eps / S^2)``, at least 1: added to the sum of squared deviations.
    reciprocal_bits : int
        ``r = floor(2^reciprocal_bits / s)``, s the square root; 40 (accurate) or 31 (released).
    normalised_bits : int
        Fraction bits of ``n = d / s``, |n| <= 2^normalised_bits.
    """

    input_limit: int
    epsilon: int
    reciprocal_bits: int
    normalised_bits: int
