"""`i_sqrt` is the floor of the root, of every number of 62 bits: how fast Newton's steps come near.

With r the floor of the root of n and x = r + d before a step, theorems over all numbers bound the
distance behind it by that before it. Bounds of each step, lines in r, then follow from one another,
and the last step but one ends at the floor or one above.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest

from ibert_tvm.relay_passes.spec.layer_norm import LayerNormConstants
from ibert_tvm.relay_passes.spec.square_root import half_bits, i_sqrt, newton_divisions
from ibert_tvm.relay_passes.spec.values import floor_divide

from .exact import z3
from .solver import ARITHMETICS, prove, prove_traced

LONGEST = 62
ROOT = (1, 2 ** (LONGEST // 2))
# Of lines that bound a distance; they are rounded up to it.
_GRID = 2**40

Line = tuple[Fraction, Fraction]
"""Slope and height: d <= slope r + height."""
START: Line = (Fraction(1), Fraction(1))


def _following(line: Line) -> Line:
    """A line above ``D^2 / (2 (r + D)) + 1``, with D on the given one and r at least 1."""
    a, b = line
    slope = a * a / (2 * (1 + a))
    height = 1 + b * (a - slope) / (1 + a) + b * b / (2 * (1 + a + b))
    return _up(slope), _up(height)


def _up(value: Fraction) -> Fraction:
    return Fraction(math.ceil(value * _GRID), _GRID)


def _lines(count: int) -> list[Line]:
    lines = [START]
    while len(lines) < count:
        lines.append(_following(lines[-1]))
    return lines


def _steps(bits: int) -> int:
    """Steps behind the start, the shift among them, without the last, of which the least counts."""
    return newton_divisions(bits)


def test_half_the_bits() -> None:
    """``4^(h - 1) <= n < 4^h``: a sum of comparisons only changes where one of them does."""
    for h in range(1, LONGEST // 2 + 1):
        assert half_bits(4 ** (h - 1), LONGEST) == half_bits(4**h - 1, LONGEST) == h


def test_the_start() -> None:
    """``x0 = 2^h`` is above the floor of the root, and at most one more than twice it."""
    n, r, x = z3.Ints("n r x")
    given = [r >= 1, r * r <= n, n <= r * r + 2 * r, x >= 1, n < x * x, x * x <= 4 * n]
    prove("above the floor", x > r, given)
    slope, height = START
    prove("near it", x - r <= int(slope) * r + int(height), given)


def test_one_step() -> None:
    """``2 x (x' - r) <= d^2 + 2 r`` of ``x' = (x + n // x) >> 1``."""
    n, r, d, q, after = z3.Ints("n r d q after")
    x = r + d
    given = [r >= 1, d >= 0, n <= r * r + 2 * r, q * x <= n, 2 * after <= x + q]
    # What an inequality is multiplied by has to be named to the solver.
    prove("times x", 2 * after * x <= (x + q) * x, given)
    bound = 2 * x * (after - r) <= d * d + 2 * r
    prove("one step", bound, [*given, 2 * after * x <= (x + q) * x])


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
def test_steps_are_what_is_compiled(arithmetic: str) -> None:
    def step(n: Any, x: Any) -> Any:
        return (x + floor_divide(n, x)) >> 1

    written = ARITHMETICS[arithmetic]
    assert prove_traced(step, written, n=(1, 2**LONGEST - 1), x=ROOT) >= 2


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
def test_reciprocals_of_a_root_are_what_is_compiled(arithmetic: str) -> None:
    """Of the norm of 22 bits."""
    constants = LayerNormConstants.from_scale(1e-3, 1e-12, 384)
    bits = constants.reciprocal_bits + constants.root_fraction_bits
    written = ARITHMETICS[arithmetic]
    assert prove_traced(lambda root: floor_divide(1 << bits, root), written, root=ROOT) >= 1


@pytest.mark.parametrize("step", range(_steps(LONGEST)))
def test_bounds_follow_from_one_another(step: int) -> None:
    (slope, height), (next_slope, next_height) = _lines(step + 2)[-2:]
    r, d, after = z3.Reals("r d after")
    given = [r >= 1, d >= 0, d <= _real(slope) * r + _real(height)]
    given.append(2 * (r + d) * after <= d * d + 2 * r)
    prove("the next bound", after <= _real(next_slope) * r + _real(next_height), given)


@pytest.mark.parametrize("bits", [32, LONGEST])  # those in use
def test_the_last_step_but_one_is_at_most_one_above(bits: int) -> None:
    slope, height = _lines(_steps(bits) + 1)[-1]
    assert math.floor(slope * math.isqrt(2**bits - 1) + height) <= 1


def test_the_last_step() -> None:
    """The smaller of a number one above the floor and its successor, neither below it, is it."""
    r, d, after = z3.Ints("r d after")
    given = [r >= 1, d >= 0, d <= 1, after >= 0, 2 * (r + d) * after <= d * d + 2 * r]
    prove("the floor", z3.If(d < after, d, after) == 0, given)


def test_a_step_less_is_found() -> None:
    """Two above the floor may stay one above; and bounds of fewer steps do allow that."""
    r, d, after = z3.Ints("r d after")
    given = [r >= 1, d >= 0, d <= 2, after >= 0, 2 * (r + d) * after <= d * d + 2 * r]
    with pytest.raises(AssertionError, match=r"^two above: not for"):
        prove("two above", z3.If(d < after, d, after) == 0, given)
    slope, height = _lines(_steps(LONGEST))[-1]
    assert math.floor(slope * math.isqrt(2**LONGEST - 1) + height) > 1


@pytest.mark.parametrize("h", range(2, LONGEST // 2 + 1))
def test_the_root_itself_does_what_was_shown(h: int) -> None:
    """Round powers of four and squares, where the start and the floor are farthest apart."""
    for root in (2 ** (h - 1), 2**h - 1, 2 ** (h - 1) + 1, 3 * 2 ** (h - 2)):
        for n in (root * root - 1, root * root, root * root + 2 * root):
            assert i_sqrt(n, LONGEST) == math.isqrt(n)


def _real(value: Fraction) -> z3.ArithRef:
    return z3.RealVal(str(value))
