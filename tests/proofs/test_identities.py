"""Identities of whole numbers that the specification, and the compiler for GPUs, rest on."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from ibert_tvm.relay_passes.spec.fixed_point import exact_reciprocal
from ibert_tvm.targets.cuda.constant_moves import _write_anew
from tests.examples import examples

from .exact import z3
from .roots import wrong_roots
from .solver import prove

DIVISORS = sorted({*range(1, 2049), *(2**k + d for k in range(11, 31) for d in (-1, 0, 1))})


@pytest.mark.slow_cases(1)
@pytest.mark.parametrize("largest", examples([2**16, 2**24, 2**31], 2**31))
def test_a_reciprocal_divides(largest: int) -> None:
    """Of d = q D + r the product with the multiplier is linear in q and r.

    It is right of real numbers already, with r up to D - 1, which is decided at once.
    """
    q, r = z3.Reals("q r")
    for divisor in DIVISORS[:: 1 if largest < 2**31 else 8]:
        multiplier, shift = exact_reciprocal(divisor, largest)
        product = (q * divisor + r) * multiplier
        given = [q >= 0, r >= 0, r <= divisor - 1, q * divisor + r <= largest]
        right = z3.And(q * 2**shift <= product, product < (q + 1) * 2**shift)
        prove(f"division by {divisor}", right, given)
        assert largest * multiplier < 2**63


def test_a_reciprocal_that_is_too_short_is_found() -> None:
    q, r = z3.Ints("q r")
    multiplier, shift = exact_reciprocal(7, 1000)
    product = (q * 7 + r) * multiplier
    given = [q >= 0, r >= 0, r < 7, q * 7 + r <= 100_000]
    with pytest.raises(AssertionError, match=r"^beyond its range: not for \["):
        prove("beyond its range", product < (q + 1) * 2**shift, given)


def test_an_offset_of_bytes_is_taken_back_by_the_bias() -> None:
    """``(x + 128) w + (b - 128 w) = x w + b``, of bytes stored unsigned, though 32 bits wrap."""
    byte = z3.BitVec("byte", 8)
    signed, unsigned = z3.SignExt(24, byte), z3.ZeroExt(24, byte ^ 0x80)
    prove("the unsigned byte is 128 more", unsigned == signed + 128, [])
    with pytest.raises(AssertionError, match=r"^another offset: not for \["):
        prove("another offset", unsigned == signed + 127, [])
    # One term more, of a sum of so many: from none on, it holds of every sum of integers, and so
    # of what is left of them modulo 2^32.
    x, w, total, bias, weights = z3.Ints("x w total bias weights")
    before = total + 128 * weights + (bias - 128 * weights)
    after = total + 128 * weights + (x + 128) * w + (bias - 128 * (weights + w))
    prove("a sum so far", before == total + bias, [])
    prove("one term more", after == total + x * w + bias, [])


def test_newtons_step_stays_at_the_root_or_above() -> None:
    """``((x + n // x) >> 1) + 1`` is above the root of n: no step goes below its floor."""
    n, x, q, rest, half, odd = z3.Ints("n x q rest half odd")
    given = [x >= 1, n == q * x + rest, rest >= 0, rest < x, q >= 0]
    given += [x + q == 2 * half + odd, odd >= 0, odd <= 1]
    # From these, (half + 1)^2 >= (x + q + 1)^2 / 4 >= x (q + 1) > n.
    prove("halves are rounded down by one half at most", 2 * half + 2 >= x + q + 1, given)
    a, b = z3.Ints("a b")
    prove("squares grow", z3.Implies(z3.And(a >= b, b >= 0), a * a >= b * b), [])
    square = (x + q + 1) * (x + q + 1) - 4 * x * (q + 1)
    prove("a difference of squares", square == (x - q - 1) * (x - q - 1), [])
    prove("the rest is below the divisor", x * (q + 1) > n, given)


@pytest.mark.slow
def test_square_roots_of_24_bits() -> None:
    assert wrong_roots(0, 2**24) == []


def test_every_square_root_of_32_bits_was_checked() -> None:
    """`python -m tests.proofs` did: four minutes. What it checks is the function of today."""
    found = json.loads(Path(__file__).with_name("record.json").read_text())["square_roots"]
    assert (found["next"], found["wrong"]) == (2**32, [])
    assert wrong_roots(2**32 - 2**12, 2**32) == []


def test_a_wrong_square_root_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from . import roots

    right = roots.i_sqrt
    monkeypatch.setattr(roots, "i_sqrt", lambda n, bits: right(n, bits) + (n == 77))
    assert wrong_roots(0, 100) == [77]


def test_a_constant_that_passes_the_unit_for_floats_is_itself() -> None:
    """``-0 * 0 + c`` in 16 bits is c, bit by bit, of every c that is a number."""
    c = z3.BitVec("c", 16)
    number = z3.fpBVToFP(c, z3.Float16())
    zero = z3.fpPlusZero(z3.Float16())
    moved = z3.fpFMA(z3.RNE(), z3.fpNeg(zero), zero, number)
    prove("the constant", z3.fpToIEEEBV(moved) == c, [z3.Not(z3.fpIsNaN(number))])
    # With the other zero it would not be.
    moved = z3.fpFMA(z3.RNE(), zero, zero, number)
    with pytest.raises(AssertionError, match=r"not for \[c = 32768"):
        prove("the constant", z3.fpToIEEEBV(moved) == c, [z3.Not(z3.fpIsNaN(number))])


@pytest.mark.parametrize(
    ("constant", "moved"),
    [
        (0x3C003C00, True),
        (0x80000001, True),
        (0x7C00FC00, True),
        (0x7E000000, False),
        (0x0000FC01, False),
    ],
)
def test_moves_of_what_is_no_number_stay(constant: int, moved: bool) -> None:
    """The theorem does not hold of them, so the audit shall find them."""
    low = 0x435 | 0xFF << 24 | constant << 32
    code = bytearray(struct.pack("<QQ", low, 0x1FF))
    assert _write_anew(code, 0, False) == moved
    if moved:
        assert struct.unpack_from("<I", code, 4)[0] == constant
