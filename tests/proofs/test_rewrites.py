"""Rewrites of the arithmetic are theorems: shown for every input of their intervals.

What is traced are the functions of the specification, once for machines with vectors, once for
scalar ones, and once for a GPU; what they evaluate to in NumPy is what the expressions are compared
with. `docs/proofs.md` lists the theorems.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ibert_tvm.relay_passes.spec import layer_norm, row_scale, short_softmax, values
from ibert_tvm.relay_passes.spec.fixed_point import requantise_clamped
from ibert_tvm.relay_passes.spec.ranged import Ranged
from ibert_tvm.relay_passes.spec.scalar import Scalar, _Shifted
from ibert_tvm.relay_passes.spec.short_requantise import requantise_short, saturating_sum
from ibert_tvm.relay_passes.spec.short_softmax import ShortExponential
from ibert_tvm.relay_passes.spec.square_root import half_bits
from ibert_tvm.relay_passes.spec.values import absolute, clamp, q15_multiply, shift_right_round
from tests.examples import examples

from .exact import Claims, Exact, claiming, exact
from .solver import ARITHMETICS, prove, prove_traced

INT16 = (-(2**15), 2**15 - 1)
INT32 = (-(2**31), 2**31 - 1)
ENTRY = (0, 255 * 512)
SCALES = (1e-5, 1e-4, 1e-3, 0.01, 0.05, 0.3)

Intervals = dict[str, tuple[int, int]]
Theorem = tuple[Callable[..., Any], Intervals]


def _short(multiplier: int, pre_shift: int, shift: int, zero: int, low: int, high: int) -> Theorem:
    function = lambda x: requantise_short(x, multiplier, pre_shift, shift, zero, low, high)  # noqa: E731
    return function, {"x": INT32 if pre_shift else INT16}


def _exponential(scale: float) -> Theorem:
    constants = ShortExponential.from_scale(scale)
    return lambda d: short_softmax.exponential_of(-d, 0, constants), {"d": (0, 2**25)}


# Of every arithmetic.
THEOREMS: dict[str, Theorem] = {
    "saturation behind a sum": (
        lambda a, b: saturating_sum(a, b, -127, 127),
        {"a": INT16, "b": INT16},
    ),
    "rounding by a computed shift": (shift_right_round, {"value": INT32, "n": (0, 31)}),
    "a Q15 product, rounded again": (
        lambda a, m: shift_right_round(q15_multiply(a, m), 7),
        {"a": INT16, "m": (0, 2**15 - 1)},
    ),
    "absolute values": (lambda x: absolute(x) + 1, {"x": (-(2**30), 2**30)}),
    "half of the bits": (lambda n: half_bits(n, 32), {"n": (0, 2**32 - 1)}),
    "normalising shift": (row_scale.normalising_shift, {"m": (1, 2**15 - 1)}),
    **{
        f"mean of {channels} channels": (
            lambda x, channels=channels: layer_norm.mean_of(x, channels),
            {"x": (-(2**20) * channels, 2**20 * channels)},
        )
        for channels in (1, 3, 384, 768, 1023)
    },
    **{
        f"requantisation, shift {shift}": (
            lambda x, m, shift=shift: requantise_clamped(x, m, shift, 3, -128, 127),
            {"x": INT32, "m": INT32},
        )
        for shift in (1, 20, 31, 40, 62)
    },
    **{
        f"short requantisation {constants}": _short(*constants)
        for constants in (
            (12345, 7, 4, 3, -128, 127),
            (32767, 0, 0, 0, -127, 127),
            (16384, 12, 6, -5, 0, 255),
            (128, 0, 3, 0, -128, 127),
            (30000, 20, 0, 0, -16383, 16383),
        )
    },
}
# Decided in time for these only; for GPUs the same functions are enumerated in tests/spec.
OTHERS: dict[str, Theorem] = {
    "short requantisation by any factor": (
        lambda x, m: requantise_short(x, m, 7, 4, 3, -128, 127),
        {"x": (-(2**24), 2**24), "m": (0, 2**15 - 1)},
    ),
    "short requantisation by any factor and shift": (
        lambda x, m, p: requantise_short(x, m, p, 4, 3, -128, 127),
        {"x": INT32, "m": (0, 2**15 - 1), "p": (0, 31)},
    ),
    "reciprocal of a sum of exponentials": (
        lambda s: short_softmax.reciprocal(s, short_softmax.sum_bits(s, ENTRY[1])),
        {"s": ENTRY},
    ),
    "reciprocal of a row's magnitude": (
        lambda m: row_scale.reciprocal(m, row_scale.normalising_shift(m)),
        {"m": (1, 2**15 - 1)},
    ),
    **{f"exponential at scale {scale}": _exponential(scale) for scale in SCALES},
}
CASES = [(name, arithmetic) for name in THEOREMS for arithmetic in ARITHMETICS]
CASES += [(name, arithmetic) for name in OTHERS for arithmetic in ("vectors", "scalar")]


@pytest.mark.parametrize(
    ("name", "arithmetic"),
    examples(
        CASES,
        ("rounding by a computed shift", "scalar"),
        ("short requantisation (12345, 7, 4, 3, -128, 127)", "vectors"),
        unpack=True,
    ),
)
def test_expressions_are_what_they_stand_for(name: str, arithmetic: str) -> None:
    function, intervals = {**THEOREMS, **OTHERS}[name]
    assert prove_traced(function, ARITHMETICS[arithmetic], **intervals) >= 2


@pytest.mark.slow
@pytest.mark.parametrize(("wide", "largest"), [(False, 128), (True, short_softmax.VALUE_LIMIT)])
def test_the_context_of_a_row_has_its_bits(wide: bool, largest: int) -> None:
    """What is known of it follows from ``|acc| <= largest s`` of the row's sum s."""
    s, acc = Exact.variable("s", 255, ENTRY[1]), Exact.variable("acc", *INT32)
    given = [s.inside(*ENTRY), s.inside(255, ENTRY[1])]
    bound = s * largest
    given += [
        acc.compared(bound, lambda x, y: x <= y).term,
        acc.compared(-bound, lambda x, y: x >= y).term,
    ]
    claims = Claims()
    bits = exact(short_softmax.sum_bits(s, ENTRY[1]))
    with claiming(claims):
        # Of the reciprocal only what the test above shows of it: r s <= 2^(14 + b).
        r = Exact.variable("r", 2**14, 2**15 - 1)
        given += [r.inside(2**14, 2**15 - 1)]
        given += [(r * s).compared(exact(1) << (bits + 14), lambda x, y: x <= y).term]
        short_softmax.context_of(acc, bits, r, wide)
    assert len(claims.of) == 2
    prove("16 bits are kept", claims.of[0][1], given)


def test_rounding_is_rounding() -> None:
    """``2^n r - 2^(n-1) <= x < 2^n r + 2^(n-1)``, whatever n is."""
    x, n = Exact.variable("x", *INT32), Exact.variable("n", 1, 31)
    given = [x.inside(*INT32), n.inside(1, 31)]
    twice = exact(shift_right_round(x, n)) * 2
    unit = exact(1) << n
    low, high = (twice - 1) * unit, (twice + 1) * unit
    inside = [
        low.compared(x * 2, lambda a, b: a <= b).term,
        high.compared(x * 2, lambda a, b: a > b).term,
    ]
    for condition in inside:
        prove("rounding half up", condition, given)


class _Merged(Scalar):
    """Merges shifts wrongly: one bit is lost."""

    def shift_right(self, x: Ranged, bits: int) -> Ranged | None:
        merged = super().shift_right(x, bits)
        if merged is not None and isinstance(x.form, _Shifted):
            return self.shifted(x.form.value, x.form.bits + bits - 1)
        return merged


def test_a_wrong_rewrite_is_found() -> None:
    function = lambda x: clamp((x >> 3) >> 2, -9, 9)  # noqa: E731
    assert prove_traced(function, Scalar(), x=INT16) == 2
    with pytest.raises(AssertionError, match=r"^the expression is the function: not for \[x = "):
        prove_traced(function, _Merged(), x=INT16)


def test_a_wrong_bound_is_found() -> None:
    with pytest.raises(AssertionError, match=r"^\[0, 99\] is known: not for \[x = "):
        prove_traced(lambda x: values.known(x >> 1, 0, 99), Scalar(), x=(0, 200))


def test_an_overflow_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interval that is too narrow, as one that a defect of `Ranged` would give."""
    monkeypatch.setattr(Ranged, "__neg__", lambda self: Ranged(0, 1, 0 - self.expr))
    with pytest.raises(AssertionError, match=r"^it fits int32: not for \[x = "):
        prove_traced(lambda x: -x, Scalar(), x=INT32)
