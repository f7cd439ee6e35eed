"""Shifts by an amount of each lane where all lanes shift by one: products, the same integers."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.relay_passes.spec.q15 import LANE_SHIFT
from ibert_tvm.relay_passes.spec.short_requantise import requantise_short
from ibert_tvm.relay_passes.spec.short_softmax import ShortExponential, exponential_of
from ibert_tvm.relay_passes.spec.uniform_shifts import UniformShifts
from ibert_tvm.relay_passes.spec.values import Ranged, short, trace

NAME = LANE_SHIFT.removeprefix("tirx.")
TARGET = "x86-64-v3"  # any with vectors: selection is the same for all
EXPONENTIAL = ShortExponential.from_scale(1e-3)

# Bits of a value, and the least and largest amount. Of bounds that fit with an amount of 0 those
# are used; 2^31 is reached exactly.
FITTING = [(24, 0, 7), (24, 2, 7), (26, 3, 9), (31, 5, 6), (32, 1, 1), (17, 0, 15), (3, 28, 31)]
SHORT = [(16, 1, 9), (16, 6, 15), (8, 0, 3), (16, 2, 2)]


def operands(bits: int, least: int, most: int) -> list[tuple[np.ndarray, int, int]]:
    """Ends, middles and random values of so many bits, each by every amount."""
    limit = 1 << bits - 1
    ends = [edge + step for edge in (-limit, -1, 0) for step in (0, 1)] + [limit - 1]
    drawn = np.random.default_rng(bits).integers(-limit, limit, 57)
    values = np.concatenate([np.clip(ends, -limit, limit - 1), drawn])
    amounts = np.arange(least, most + 1)
    return [
        (np.repeat(values, len(amounts)), -limit, limit - 1),
        (np.tile(amounts, len(values)), least, most),
    ]


@pytest.mark.representatives(2)
@pytest.mark.parametrize("case", FITTING, ids=str)
def test_the_integers_are_those_of_the_shift(both_domains, case: tuple[int, int, int]) -> None:
    given = operands(*case)
    both_domains(lambda x, n: x >> n, *given, target=TARGET, arithmetic=UniformShifts())


@pytest.mark.representatives(2)
@pytest.mark.parametrize("case", SHORT, ids=str)
def test_short_values_stay_short(both_domains, case: tuple[int, int, int]) -> None:
    def function(x, n):
        return short(x) >> short(n)

    given = operands(*case)
    both_domains(function, *given, target=TARGET, arithmetic=UniformShifts())
    assert traced(function, given).is_short


def test_requantisation_and_exponentials_have_the_bits_of_other_targets(both_domains) -> None:
    x, amounts = operands(25, 1, 6)
    multipliers = np.random.default_rng(0).integers(1 << 14, 1 << 15, len(x[0]))
    both_domains(
        lambda x, m, n: requantise_short(x, m, n, 5, -3, -128, 127),
        *(x, (multipliers, 1 << 14, (1 << 15) - 1), amounts),
        target=TARGET,
        arithmetic=UniformShifts(),
    )
    scores = np.arange(-40_000, 1)
    both_domains(
        lambda score: exponential_of(score, 0, EXPONENTIAL),
        (scores, -40_000, 0),
        target=TARGET,
        arithmetic=UniformShifts(),
    )


def traced(function, given) -> Ranged:
    from tvm import tirx

    arithmetic = UniformShifts()
    values = [
        Ranged(low, high, tirx.Var(name, "int32"), arithmetic=arithmetic)
        for name, (_, low, high) in zip("xn", given, strict=True)
    ]
    return trace(function, *values)


@pytest.mark.parametrize(
    ("case", "used"),
    [
        ((24, 0, 7), True),
        ((25, 3, 10), True),
        ((26, 3, 10), False),  # a product of 33 bits
        ((32, 5, 6), False),
        ((24, 4, 4), False),  # one amount
    ],
    ids=str,
)
def test_only_products_that_fit_replace_shifts(case: tuple[int, int, int], used: bool) -> None:
    assert (NAME in str(traced(lambda x, n: x >> n, operands(*case)).expr)) == used
