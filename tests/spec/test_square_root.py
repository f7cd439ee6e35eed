"""i-sqrt is the exact floor of the root, over every boundary of 32 bits and many of 62."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibert_tvm.relay_passes.errors import RangeError
from ibert_tvm.relay_passes.spec.square_root import half_bits, i_sqrt, newton_divisions
from ibert_tvm.relay_passes.spec.values import Ranged
from tests.snapshots import Messages


def exact(n: np.ndarray) -> np.ndarray:
    return np.array([math.isqrt(int(value)) for value in n], np.int64)


def test_every_perfect_square_boundary_of_32_bits() -> None:
    k = np.arange(65536, dtype=np.int64)
    square = k * k
    np.testing.assert_array_equal(i_sqrt(square, 32), k)
    np.testing.assert_array_equal(i_sqrt(square[1:] - 1, 32), k[1:] - 1)
    np.testing.assert_array_equal(i_sqrt(square[1:] + 1, 32), k[1:])
    top = np.array([2**32 - 1])
    assert i_sqrt(top, 32)[0] == 65535


def published_rounds(n: int) -> int:
    """Updates of the published iteration, which stops when x no longer falls."""
    x = 1 << ((n.bit_length() + 1) // 2)
    rounds = 0
    while True:
        following = (x + n // x) >> 1
        if following >= x:
            return rounds
        x, rounds = following, rounds + 1


def test_known_worst_cases() -> None:
    # The published claim of at most four rounds fails first at this input.
    assert published_rounds(16_785_408) == 5
    assert max(published_rounds(n) for n in range(16_785_000, 16_785_408)) <= 4
    worst = np.array([16_785_408, 16_785_409, 2**31 - 1, 2**31, 2**32 - 1], np.int64)
    np.testing.assert_array_equal(i_sqrt(worst, 32), exact(worst))


@pytest.mark.parametrize("bits", [1, 2, 3, 7, 16, 31, 32, 40, 51, 61, 62])
def test_boundaries_of_every_width(bits: int) -> None:
    random = np.random.default_rng(bits)
    roots = math.isqrt((1 << bits) - 1)
    k = np.unique(np.concatenate([random.integers(0, roots + 1, 20000), [0, 1, roots]]))
    for offset in (-1, 0, 1):
        n = k * k + offset
        n = n[(n >= 0) & (n < 1 << bits)]
        np.testing.assert_array_equal(i_sqrt(n, bits), exact(n))
    last = np.array([(1 << bits) - 1])
    np.testing.assert_array_equal(i_sqrt(last, bits), exact(last))


def test_small_numbers_exhaustively_with_the_widest_setting() -> None:
    n = np.arange(1 << 17)
    np.testing.assert_array_equal(i_sqrt(n, 62), np.floor(np.sqrt(n)).astype(np.int64))


@given(st.integers(0, 2**62 - 1))
def test_any_62_bit_number(n: int) -> None:
    assert int(i_sqrt(np.array([n]), 62)[0]) == math.isqrt(n)


def test_number_of_divisions() -> None:
    assert (newton_divisions(32), newton_divisions(62)) == (4, 5)


def test_half_bits() -> None:
    n = np.array([1, 2, 3, 4, 15, 16, 2**61, 2**62 - 1])
    expected = [(int(value).bit_length() + 1) // 2 for value in n]
    assert half_bits(n, 62).tolist() == expected


def test_both_domains_agree(both_domains) -> None:
    random = np.random.default_rng(0)
    n = random.integers(0, 2**62, 2048) >> random.integers(0, 62, 2048)
    n[:8] = [0, 1, 2, 3, 4, 2**62 - 1, 2**61, 16_785_408]
    half = both_domains(lambda v: half_bits(v, 62), (n, 0, 2**62 - 1))
    root = both_domains(
        lambda v, h: i_sqrt(v, 62, h), (n, 0, 2**62 - 1), (half, 1, 31), vectorise=False
    )
    np.testing.assert_array_equal(root, exact(n))


def test_the_interval_of_a_root_is_that_of_its_argument() -> None:
    root = i_sqrt(Ranged(17, 2**40), 62)
    assert (root.low, root.high) == (4, 2**20)


def test_a_value_that_may_be_negative_is_refused(messages: Messages) -> None:
    with messages.raises(RangeError):
        i_sqrt(Ranged(-1, 100), 32)
