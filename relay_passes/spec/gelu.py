"""i-GELU in two forms: a clipped polynomial in 16 bits, and the published i-erf.

`gelu_accurate` (preset ``accurate``) is ``relu(x)`` minus a bump that vanishes beyond T, in 16-bit
arithmetic. The published form (preset ``paper``) works on the int32 accumulator with one scale per
channel and needs int64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from ..errors import RangeError
from .clipped import ClippedFunction, ClippedPolynomial, clipped_polynomial
from .polynomial import IntegerPolynomial, check_scale, i_poly
from .values import (
    Value,
    absolute,
    bind,
    clamp,
    less,
    maximum,
    minimum,
    q15_multiply,
    select,
    short,
)

GELU = ClippedFunction("i-GELU", 4.24, 3, (0.02473618, 0.95995002, -0.49422208))
"""``Phi(-t)``, Phi the normal distribution's: maximal error of ``t Phi(-t)`` 0.00042."""


def gelu_accurate(q: Value, constants: ClippedPolynomial) -> Value:
    """``x Phi(x)`` as ``relu(x)`` minus ``t Phi(-t)``, ``t = |x|``, in 16-bit arithmetic.

    Parameters
    ----------
    q
        ``x / S``, in [-32767, 32767], with S from ``clipped_scale(GELU.limit, ...)``.
    constants
        Of `GELU`.

    Returns
    -------
    Value
        At the same scale, between about ``-0.17 / S`` and ``max(q, 0)``; it and every intermediate
        have 16 bits.
    """
    q = bind(short(q))
    t = bind(minimum(absolute(q), constants.limit))
    return short(maximum(q, 0) - q15_multiply(clipped_polynomial(t, constants, GELU.power), t))


ERF = (-0.2888, -1.769, 1.0)
"""a, b and c of ``erf(y) ~ sgn(y) (a (min(|y|, -b) + b)^2 + c)``, ``y = x / sqrt(2)``."""
_FACTOR_BITS = 20


@dataclass(frozen=True, eq=False)
class PaperGelu:
    """Constants of the published form, one entry per channel: the operands of the operator.

    Parameters
    ----------
    q_b
        int32 [C], ``floor(b / S')``, negative; ``S' = S / sqrt(2)``.
    q_c
        int64 [C], ``floor(c / (a S'^2))``, negative.
    q_1
        int32 [C], ``floor(1 / S_erf)``, negative.
    erf_shift
        int32 [C], right shift (floor) of the i-erf polynomial.
    scales
        float64 [C], scale of the result, ``S S_erf / 2``: negative, since a is.
    """

    q_b: np.ndarray
    q_c: np.ndarray
    q_1: np.ndarray
    erf_shift: np.ndarray
    scales: np.ndarray

    @staticmethod
    def from_scales(scales: np.ndarray) -> PaperGelu:
        """Constants for an accumulator with one scale, or one per channel.

        The shift is the smallest that leaves the result of i-erf 20 bits, per channel.

        Parameters
        ----------
        scales
            S [C] (or [1]) of the input, positive.

        Raises
        ------
        RangeError
            If a scale is not positive, too coarse (the polynomial has fewer than 4 units) or too
            fine.
        """
        rows = []
        for channel, scale in enumerate(np.atleast_1d(np.asarray(scales, dtype=np.float64))):
            where = f"i-GELU, channel {channel}"
            check_scale(float(scale), where)
            poly = IntegerPolynomial.from_scale(*ERF, float(scale) / math.sqrt(2.0))
            one = math.floor(1.0 / poly.scale)
            shift = max(abs(one).bit_length() - _FACTOR_BITS, 0)
            erf_scale = math.ldexp(poly.scale, shift)
            one = math.floor(1.0 / erf_scale)
            if not (-(2**31) < poly.q_b <= -4 and -(2**31) < one <= -256):
                raise RangeError(
                    f"scale {scale:.3g} of {where} cannot serve the published i-GELU",
                    why=f"with a shift of {shift}, q_b = {poly.q_b} and 1 is {one} units",
                    todo="use a finer or coarser scale, or the accurate form",
                )
            rows.append((poly.q_b, poly.q_c, one, shift, float(scale) * erf_scale / 2.0))
        return PaperGelu.of(rows)

    @staticmethod
    def joined(parts: Sequence[PaperGelu]) -> PaperGelu:
        """Constants of the channels of several."""
        arrays = ([getattr(part, item.name) for part in parts] for item in fields(PaperGelu))
        return PaperGelu(*map(np.concatenate, arrays))

    @staticmethod
    def of(rows: Sequence[tuple[int, int, int, int, float]]) -> PaperGelu:
        """Constants of channels, a row for each."""
        kinds = (np.int32, np.int64, np.int32, np.int32, np.float64)
        columns = zip(*rows, strict=True)
        return PaperGelu(*(np.array(c, kind) for c, kind in zip(columns, kinds, strict=True)))


def i_erf(q: Value, q_b: Value, q_c: Value, erf_shift: Value) -> Value:
    """Published i-erf: ``sgn(q) ((min(|q|, -q_b) + q_b)^2 + q_c) >> erf_shift``.

    Parameters
    ----------
    q
        Input at scale S'.
    q_b, q_c, erf_shift
        Constants of `PaperGelu`, scalar or per channel.

    Returns
    -------
    Value
        int64 inside; below 2^20 after a shift chosen by ``PaperGelu.from_scales``.
    """
    q = bind(q)
    y = bind(i_poly(minimum(absolute(q), -q_b), q_b, q_c))
    signed = select(less(q, 0), -y, select(less(0, q), y, 0))
    return signed >> erf_shift


def gelu_paper(q: Value, q_b: Value, q_c: Value, q_1: Value, erf_shift: Value) -> Value:
    """Published i-GELU: ``q (i_erf(q) + q_1)``.

    Parameters
    ----------
    q
        int32 accumulator.
    q_b, q_c, q_1, erf_shift
        Constants of `PaperGelu`, scalar or per channel.

    Returns
    -------
    Value
        int64 at the (negative) scale ``PaperGelu.scales``.
    """
    q = bind(q)
    # |erf| <= 1: this holds for constants of `from_scales`, but the interval of a minimum and a sum
    # of per-channel arrays cannot know it, and without it the product would seem to leave int64.
    erf = clamp(i_erf(q, q_b, q_c, erf_shift), q_1, -q_1)
    return q * (erf + q_1)
