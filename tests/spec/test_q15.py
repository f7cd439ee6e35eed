"""The 16-bit product, and values that are computed in int16: edges, widths, refusals, targets."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibert_tvm.relay_passes.errors import RangeError
from ibert_tvm.relay_passes.spec import values
from ibert_tvm.relay_passes.spec.values import Ranged, q15_multiply, saturate_short, short
from tests.snapshots import Messages

TARGETS = ["x86-avx512-vnni", "x86-64-v3", "x86-64"]
LOW, HIGH = -(2**15), 2**15 - 1
EDGES = sorted(
    {edge + step for edge in (LOW, -(2**14), 0, 2**14, HIGH) for step in range(-40, 41)}
    & set(range(LOW, HIGH + 1))
)
SHORT = Ranged(LOW, HIGH, is_short=True)


def by_definition(a: int, b: int) -> int:
    """Round half up, in unbounded integers."""
    return (2 * a * b + 2**15) // 2**16


def pairs(first: list[int], second: list[int]) -> tuple[np.ndarray, np.ndarray]:
    a, b = np.array(list(itertools.product(first, second)), np.int64).T
    return a, b


def test_every_pair_of_edges_is_the_definition() -> None:
    a, b = pairs(EDGES, [edge for edge in EDGES if edge != LOW])
    expected = [by_definition(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    got = q15_multiply(a, b)
    assert got.tolist() == expected
    assert got.min() >= LOW and got.max() <= HIGH


@pytest.mark.representatives(2)
@pytest.mark.parametrize("target", [None, *TARGETS])
def test_every_pair_of_edges_agrees_in_both_domains(both_domains, target: str | None) -> None:
    a, b = pairs(EDGES, [edge for edge in EDGES if edge != LOW])
    both_domains(q15_multiply, (a, LOW, HIGH), (b, LOW + 1, HIGH), target=target)


@pytest.mark.parametrize("factor", [-32767, -1, 0, 1, 2**14, 23170, 32767])
def test_all_of_16_bits_by_a_constant(factor: int) -> None:
    a = np.arange(LOW, HIGH + 1)
    expected = [by_definition(x, factor) for x in a.tolist()]
    assert q15_multiply(a, factor).tolist() == expected


@given(
    st.tuples(st.integers(LOW, HIGH), st.integers(LOW, HIGH)).map(sorted),
    st.tuples(st.integers(LOW + 1, HIGH), st.integers(LOW + 1, HIGH)).map(sorted),
    st.data(),
)
def test_the_interval_of_a_product_holds_it_and_is_tight(a, b, data) -> None:
    x, y = data.draw(st.integers(*a)), data.draw(st.integers(*b))
    product = q15_multiply(Ranged(*a), Ranged(*b))
    assert product.is_short
    assert product.low <= by_definition(x, y) <= product.high
    corners = [by_definition(p, q) for p in a for q in b]
    assert (product.low, product.high) == (min(corners), max(corners))


def test_a_square_is_not_negative() -> None:
    x = Ranged(-100, 32767)
    assert (q15_multiply(x, x).low, q15_multiply(x, x).high) == (0, 32766)


def test_both_factors_at_their_end_are_refused(messages: Messages) -> None:
    with messages.raises(RangeError):
        q15_multiply(SHORT, SHORT)


@pytest.mark.parametrize("make", [short, lambda x: q15_multiply(x, 5)])
def test_a_value_of_17_bits_is_refused(make, messages: Messages) -> None:
    with messages.raises(RangeError):
        make(Ranged(-5, 2**15))


def test_short_values_stay_short_exactly_while_they_fit() -> None:
    x = short(Ranged(-20000, 12767))
    assert (x + 20000).dtype == "int16"
    assert (x + 20001).dtype == "int32"
    assert (x - x).dtype == "int16" or (x - x).high > HIGH
    assert (x >> 3).dtype == "int16"
    assert (x * 2).dtype == "int32"
    assert (x + Ranged(0, 1)).dtype == "int32", "only short values and constants keep it short"
    assert values.minimum(x, 5).dtype == values.maximum(x, -5).dtype == "int16"


def test_saturation_is_the_clamp_to_16_bits(both_domains) -> None:
    x = np.array([-(2**31), LOW - 1, LOW, -1, 0, HIGH, HIGH + 1, 2**31 - 1])
    got = both_domains(saturate_short, (x, -(2**31), 2**31 - 1))
    assert got.tolist() == [LOW, LOW, LOW, -1, 0, HIGH, HIGH, HIGH]
    assert saturate_short(Ranged(-(2**31), 2**31 - 1)).dtype == "int16"


@pytest.mark.parametrize("target", TARGETS)
def test_rounding_shifts_do_not_carry_out_of_16_bits(both_domains, target: str) -> None:
    x = np.arange(LOW, HIGH + 1)
    for n in (1, 3, 14):
        got = both_domains(
            lambda v, n=n: values.shift_right_round(short(v), n), (x, LOW, HIGH), target=target
        )
        np.testing.assert_array_equal(got, (2 * x + (1 << n)) >> (n + 1))


@pytest.mark.parametrize("target", TARGETS)
def test_shifts_by_a_short_amount_agree_in_both_domains(both_domains, target: str) -> None:
    x = np.arange(LOW, HIGH + 1)
    amount = np.resize(np.arange(16), x.size)
    both_domains(lambda v, n: short(v) >> short(n), (x, LOW, HIGH), (amount, 0, 15), target=target)
