"""i-GELU in two forms: a clipped polynomial in int32, and the published i-erf."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AccurateGelu:
    """Constants of ``gelu(x) ~ relu(x) - c t (T - t)^4`` with ``t = min(|x|, T)``.

    Parameters
    ----------
    limit : int
        ``round(T / S)``.
    up_shift, down_shift : int
        Brings t to 15 bits: ``t' = round((t << up_shift) >> down_shift)``; one of them is 0.
    square_shift, fourth_shift, product_shift : int
        Right shifts (rounding) after ``u'^2``, ``(u'^2)^2`` and ``t' u'^4``; ``u' = T' - t'``.
    product_limit : int
        Proven maximum of ``t' u'^4`` before its shift; keeps the interval analysis tight.
    multiplier, shift : int
        Dyadic factor that brings the product to the scale S.
    """

    limit: int
    up_shift: int
    down_shift: int
    square_shift: int
    fourth_shift: int
    product_limit: int
    product_shift: int
    multiplier: int
    shift: int


@dataclass(frozen=True)
class PaperGelu:
    """Scalar constant of the published form; q_b, q_c and q_1 are arrays, one entry per channel.

    Parameters
    ----------
    erf_shift : int
        Right shift (floor) of the i-erf polynomial; 14 in the released code.
    """

    erf_shift: int
