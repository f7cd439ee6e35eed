"""i-log1p: ``log2(1 + max(x, 0))`` by the highest bit and a polynomial, in integers.

With ``v = 2^g (q + 1/S)``, which is ``2^g / S`` times ``1 + S q``, and its highest bit b,

    log2 v = b + log2(1 + f),    f = v / 2^b - 1,
    log2(1 + f) ~ f + f (1 - f) r(f),

and log2 of ``2^g / S`` is taken off. r is a cubic polynomial, its coefficients a minimax fit
(linear programming on a grid). The approximation is exact at f = 0 and at f = 1, so it is
continuous where b changes. Factors have 16 bits. ln 2 is a part of the result's scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import RangeError
from .polynomial import check_scale
from .values import Value, bind, clamp, known, maximum, minimum, shift_right_round

LOG_BITS = 15
"""Fraction bits of the result, a logarithm to base 2."""
LOG_COEFFICIENTS = (0.44191568, -0.2671713, 0.14841211, -0.04514043)
"""Of r, from the constant one: maximal error of log2(1 + f) 1.6e-5."""

_ARGUMENT_BITS = 30
_LARGEST = 2**15 - 1
_COEFFICIENTS = tuple(round(c * 2**15) for c in LOG_COEFFICIENTS)


@dataclass(frozen=True)
class Logarithm:
    """Constants of i-log1p.

    Parameters
    ----------
    limit
        Inputs are clamped to [0, limit].
    fraction_bits
        g.
    one
        ``round(2^g / S)``, v for q = 0; at least 2^15.
    base
        The approximation of ``log2(one)``, less its integer part, in units of 2^-15.

    Raises
    ------
    RangeError
        If v does not lie between 2^15 and 2^30.
    """

    limit: int
    fraction_bits: int
    one: int
    base: int

    def __post_init__(self) -> None:
        fits = 0 <= self.limit <= _LARGEST and 0 <= self.fraction_bits < _ARGUMENT_BITS
        if not (fits and self.one >= 1 << LOG_BITS and self.largest < 1 << _ARGUMENT_BITS):
            raise RangeError(
                f"the constants {self.limit}, {self.fraction_bits} and {self.one} of a logarithm",
                why=f"its argument has {LOG_BITS + 1} to {_ARGUMENT_BITS} bits",
                todo="quantise the model again",
            )

    @property
    def largest(self) -> int:
        """Largest v."""
        return (self.limit << self.fraction_bits) + self.one

    @staticmethod
    def from_scale(scale: float, limit: int) -> Logarithm:
        """Constants for an input at the given scale.

        Parameters
        ----------
        scale
            S.
        limit
            Largest input, 15 bits.

        Raises
        ------
        RangeError
            If 1 is less than a unit of the largest input in 15 bits, or more than 2^29 units.
        """
        check_scale(scale, "i-log1p")
        bits = next(
            (
                g
                for g in reversed(range(_ARGUMENT_BITS - 1))
                if (limit << g) + round(math.ldexp(1 / scale, g)) < 1 << _ARGUMENT_BITS
            ),
            None,
        )
        one = 0 if bits is None else round(math.ldexp(1 / scale, bits))
        if bits is None or one < 1 << LOG_BITS:
            raise RangeError(
                f"scale {scale:.3g} cannot serve i-log1p",
                why=f"with inputs up to {limit}, 1 and 1 + x do not both have {LOG_BITS + 1} to "
                f"{_ARGUMENT_BITS} bits",
                todo="requantise its input to a scale between 1e-8 and 1",
            )
        start = Logarithm(limit, bits, one, 0)
        return Logarithm(limit, bits, one, int(log1p_relu(0, start)))


def log1p_relu(q: Value, constants: Logarithm) -> Value:
    """``log2(1 + max(S q, 0))``.

    Parameters
    ----------
    q
        Input at scale S, cut at the constants' limit.
    constants

    Returns
    -------
    Value
        In units of 2^-15; 0 for q <= 0, and it never falls. Intermediates have 31 bits.
    """
    k = constants
    first, last = k.one.bit_length() - 1, k.largest.bit_length() - 1
    v: Value = (clamp(q, 0, k.limit) << k.fraction_bits) + k.one
    bit: Value = last
    # Doublings bring v to [2^last, 2^(last + 1)). A shift by a variable, a choice by comparing one,
    # and 16-bit types of what follows make TVM's analysis of bounds contradict itself.
    for log_step in reversed(range((last - first).bit_length())):
        step = 1 << log_step
        top = last + 1 - step
        v = bind(v)
        below = bind(1 - minimum(v >> top, 1))
        v = maximum(v, (minimum(v, (1 << top) - 1) * below) << step)
        bit = bit - (below << log_step)
    normalised = known(v >> (last - LOG_BITS), 1 << LOG_BITS, (2 << LOG_BITS) - 1)
    f = bind(normalised - (1 << LOG_BITS))
    c0, c1, c2, c3 = _COEFFICIENTS
    bend = _product(f, _LARGEST - f)
    r = c0 + _product(f, c1 + _product(f, c2 + _product(f, c3)))
    return ((bit - first) << LOG_BITS) + (f + _product(bend, r)) - k.base


def _product(a: Value, b: Value) -> Value:
    """``round(a b / 2^15)`` of factors of 16 bits."""
    return shift_right_round(a * b, LOG_BITS)
