"""i-cap: attention scores that a hyperbolic tangent keeps below a bound (softcap).

``c tanh(s / c)`` of a score ``s = S q`` leaves as ``2^14 tanh(s / c)``, whatever S was: from there
on, scores have the scale ``c / 2^14``. With ``t = |s / c|`` cut at T, ``u = 1 - t / T`` and
``w = u^6``

    (1 - tanh(t)) / 2 ~ w (a1 + w (a2 + w (a3 + w (a4 + w a5)))),

which is 1/2 at 0, exactly, and falls to 0 with its slopes at T. There is one such number for each
pair of query and key: no exponential, no table and no division, nine products of 16 bits. The
coefficients are a minimax fit (linear programming over a grid, the best T), in the family of the
logistic function's (`ibert_tvm.relay_passes.spec.logistic`), with two terms more: what a cap errs
by is multiplied with c.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import RangeError
from .fixed_point import shift_right_round
from .polynomial import check_scale
from .values import Value, absolute, bind, clamp, maximum, minimum, q15_multiply, short

CAP_BITS = 14
"""Capped scores are numbers of this many bits and the sign: their scale is ``c / 2^14``."""
CAP_LIMIT = 6.6
"""T: beyond, the tangent is taken as 1."""
CAP_COEFFICIENTS = (0.07689232, 0.69783793, 0.04293631, -0.53922139, 0.22155482)
"""a1 to a5: maximal error of ``tanh`` 8.9e-5."""
LARGEST_CAP = 128.0
"""Scores err by up to 3.8e-4 of the cap: by a twentieth there."""

_TOP = 2**15 - 1
_MAX_SHIFT = 24
_LEAST_SHIFT = -8
# u is _TOP at 0, not 2^15, and w its sixth power as products round it.
_W_AT_0 = 32762
_Q15 = tuple(
    round(value * 2 ** (15 * power) / _W_AT_0**power * 2**15)
    for power, value in enumerate(CAP_COEFFICIENTS, start=1)
)


@dataclass(frozen=True)
class ScoreCap:
    """Constants that bring a score to ``t / T`` in Q15.

    Parameters
    ----------
    down_shift, up_shift
        Of the score, rounding; one of them is 0.
    multiplier
        Q15, in [2^14, 2^15).
    """

    down_shift: int
    up_shift: int
    multiplier: int

    @staticmethod
    def from_scale(scale: float, cap: float) -> ScoreCap:
        """Constants for scores of a scale.

        Parameters
        ----------
        scale
            S, of the int32 accumulator of Q K^T, 1/sqrt(d) included.
        cap
            c, up to `LARGEST_CAP`.

        Raises
        ------
        RangeError
            If the cap is too large for its precision, or a unit of the scores too coarse or too
            fine for it.
        """
        check_scale(scale, "attention scores")
        check_scale(cap, "the cap of attention scores")
        if cap > LARGEST_CAP:
            raise RangeError(
                f"scores are capped at {cap:.4g}",
                why="scores err by up to 3.8e-4 of their cap: more than a twentieth beyond "
                f"{LARGEST_CAP:.0f}",
                todo="use a model with a smaller cap, or without one",
            )
        mantissa, exponent = math.frexp(math.ldexp(scale / (cap * CAP_LIMIT), 15))
        if not _LEAST_SHIFT <= -exponent <= _MAX_SHIFT:
            fine = "fine" if exponent < 0 else "coarse"
            raise RangeError(
                f"scale {scale:.3g} is too {fine} for scores that are capped at {cap:.4g}",
                why=f"a unit is {scale / cap:.3g} of the cap",
                todo="calibrate again, with data that reaches the usual range of queries and keys",
            )
        multiplier = min(round(math.ldexp(mantissa, 15)), _TOP)
        return ScoreCap(max(-exponent, 0), max(exponent, 0), multiplier)


def capped_scale(cap: float) -> float:
    """Scale of scores behind a cap."""
    return math.ldexp(cap, -CAP_BITS)


def cap_score(score: Value, constants: ScoreCap) -> Value:
    """``2^14 tanh(S q / c)``.

    Parameters
    ----------
    score
        q, int32.
    constants
        From ``ScoreCap.from_scale(S, c)``.

    Returns
    -------
    Value
        In [-2^14, 2^14], short; odd, 0 at 0.
    """
    k = constants
    score = bind(score)
    kept = minimum(shift_right_round(absolute(score), k.down_shift), (2**16 - 1) >> k.up_shift)
    # Just below 2^31: 16 bits of a score reach 15 whatever the multiplier is.
    scaled = ((kept << k.up_shift) * k.multiplier + (1 << 14)) >> 15
    u = bind(short(_TOP - minimum(scaled, _TOP)))
    square = bind(q15_multiply(u, u))
    w = bind(q15_multiply(square, q15_multiply(square, square)))
    inner: Value = _Q15[-1]
    for coefficient in reversed(_Q15[:-1]):
        inner = coefficient + q15_multiply(w, inner)
    size = maximum((1 << CAP_BITS) - q15_multiply(w, inner), 0)
    # Of the sign of the score: no comparison, which would leave 16 bits.
    sign = (short(clamp(score, -1, 0)) << 1) + 1
    return short(sign * minimum(size, 1 << CAP_BITS))
