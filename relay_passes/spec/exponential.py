"""i-exp: the exponential of a non-positive number, in integers, in two forms."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BinaryExponential:
    """Constants of the base-2 form (preset ``accurate``).

    ``y = d S log2(e)`` in Q(fraction_bits), then ``2^-y = 2^-p >> z`` with ``2^-p`` a polynomial.
    The result for ``d = 0`` is ``c0 >> guard`` exactly.

    Parameters
    ----------
    limit : int
        D; larger distances from the maximum are cut here, where the result is 0.
    pre_shift, multiplier, shift : int
        ``y = ((d >> pre_shift) * multiplier + half) >> shift``.
    fraction_bits : int
        f.
    c0, c1, c2, c3 : int
        ``L(p) = c0 - p (c1 - p (c2 - p c3))``, p in Q(f), in units of c0; c3 = 0 leaves it
        quadratic.
    guard : int
        Bits of L below the result's last bit.
    """

    limit: int
    pre_shift: int
    multiplier: int
    shift: int
    fraction_bits: int
    c0: int
    c1: int
    c2: int
    c3: int
    guard: int

    @property
    def maximum(self) -> int:
        """The result at distance 0."""
        return self.c0 >> self.guard


@dataclass(frozen=True)
class PolynomialExponential:
    """Constants of the published form (preset ``paper``).

    ``d = z q_ln2 + r``, ``p = -r``, ``L = (p + q_b)(p + q_d) + q_c``, result ``L >> z`` brought to
    `maximum` by a dyadic multiplier.

    Parameters
    ----------
    q_ln2 : int
        ``floor(ln 2 / S)``, positive.
    q_b, q_d, q_c : int
        Released code: ``q_d = 0``; printed formula: ``q_d = q_b``.
    max_z : int
        Largest exponent (30 as published); the distance is cut at ``max_z * q_ln2``.
    reciprocal, reciprocal_shift : int
        ``z = (d * reciprocal) >> reciprocal_shift``, exactly ``floor(d / q_ln2)`` in that range.
    multiplier, shift : int
        ``E = (L * multiplier + half) >> (shift + z)``.
    maximum : int
        Upper clamp of the result, what distance 0 gives.
    """

    q_ln2: int
    q_b: int
    q_d: int
    q_c: int
    max_z: int
    reciprocal: int
    reciprocal_shift: int
    multiplier: int
    shift: int
    maximum: int
