"""i-softmax in 16 bits: exponential, sums, reciprocals, context; masks; both domains; refusals."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibert_tvm.relay_passes.errors import RangeError
from ibert_tvm.relay_passes.spec import parts
from ibert_tvm.relay_passes.spec import short_softmax as softmax
from ibert_tvm.relay_passes.spec.short_softmax import ShortExponential
from ibert_tvm.relay_passes.spec.values import Condition, Ranged, not_equal, trace
from tests.snapshots import Messages

TARGETS = [None, "x86-avx512-vnni", "x86-64-v3", "x86-64"]
# The finest and the coarsest that are served, and between them.
SCALES = [8.4e-8, 1e-6, 1e-5, 2e-4, 1e-3, 7.7e-3, 0.05, 0.3, 0.69]
SCALE = 2e-4
TOTALS = np.arange(255, 2**17 + 1)


def distances(scale: float) -> np.ndarray:
    """Every distance until the exponential is 0 for long, or 300,000 of them."""
    last = math.ceil(1.3 * 10 * math.log(2) / scale)
    return np.unique(np.linspace(0, last, min(last + 1, 300_000)).astype(np.int64))


def exponential(distance: np.ndarray, k: ShortExponential) -> np.ndarray:
    return softmax.exponential_of(-distance, np.zeros(1, np.int64), k)


def context(
    scores: np.ndarray, v: np.ndarray, mask: np.ndarray, constants: ShortExponential | None = None
) -> np.ndarray:
    """Context [rows, D] with 7 fraction bits from scores [rows, keys], v [keys, D], mask [keys]."""
    constants = constants or ShortExponential.from_scale(SCALE)
    masked = softmax.score_of(scores, softmax.key_offset(not_equal(mask, 0)))
    row_max = softmax.row_floor(masked.max(-1, keepdims=True))
    e = softmax.exponential_of(masked, row_max, constants)
    total = e.sum(-1, keepdims=True)
    bits = softmax.sum_bits(total, constants.maximum * scores.shape[-1])
    return softmax.context_of(e @ v, bits, softmax.reciprocal(total, bits))


def example(rows: int = 64, keys: int = 128, sigma: float = 2.0, seed: int = 0):
    random = np.random.default_rng(seed)
    scores = np.round(random.normal(0, sigma, (rows, keys)) / SCALE).astype(np.int64)
    return scores, random.integers(-127, 128, (keys, 16)), np.ones(keys, np.int64)


@pytest.mark.representatives(3)
@pytest.mark.parametrize("scale", SCALES)
def test_exponential_reaches_its_error(scale: float) -> None:
    d = distances(scale)
    error = np.abs(exponential(d, ShortExponential.from_scale(scale)) / 255 - np.exp(-scale * d))
    # 1.54e-3 of the quadratic, 1.96e-3 of rounding to 8 bits, the rest from 10 fraction bits of
    # the exponent and 16-bit products.
    assert error.max() < 4.3e-3
    assert math.sqrt((error**2).mean()) < 1.35e-3


@pytest.mark.representatives(3)
@pytest.mark.parametrize("scale", SCALES)
def test_exponential_falls_from_255_to_0(scale: float) -> None:
    d = distances(scale)
    e = exponential(d, ShortExponential.from_scale(scale))
    assert e[0] == 255 and e.min() == 0
    assert (np.diff(e) <= 0).all(), "monotone, over the edges of the segments too"
    assert (e[d > 10 * math.log(2) / scale] == 0).all()


@pytest.mark.parametrize("scale", SCALES)
def test_a_masked_key_weighs_nothing_whatever_is_added(scale: float) -> None:
    k = ShortExponential.from_scale(scale)
    random = np.random.default_rng(0)
    edge = softmax.LARGEST_SCORE
    added = np.concatenate([[-edge, -1, 0, 1, edge], random.integers(-edge, edge + 1, 4000)])
    masked = softmax.score_of(added, softmax.key_offset(np.zeros(added.size, bool)))
    for top in (-edge, 0, edge, softmax.ROW_FLOOR):
        largest = softmax.row_floor(np.maximum(masked, top))
        np.testing.assert_array_equal(softmax.exponential_of(masked, largest, k), 0)


def test_real_scores_are_above_the_floor_and_masked_ones_below() -> None:
    edge = softmax.LARGEST_SCORE
    assert softmax.MASKED + edge < softmax.ROW_FLOOR < -edge
    assert softmax.row_floor(np.array([-edge, edge])).tolist() == [-edge, edge]
    # Masked keys stay apart at the largest shift of a distance.
    assert (softmax.ROW_FLOOR - softmax.MASKED - edge) >> 12 > 2**15 - 1


@pytest.mark.parametrize("scale", [8.4e-8, SCALE, 0.69])
def test_masked_keys_change_nothing(scale: float) -> None:
    scores, v, mask = example(rows=8, keys=40)
    scores = np.clip(scores, -(2**23), 2**23)
    k = ShortExponential.from_scale(scale)
    mask[25:] = 0
    expected = context(scores[:, :25], v[:25], mask[:25], k)
    for padding in (softmax.LARGEST_SCORE, -softmax.LARGEST_SCORE, 0):
        scores[:, 25:] = padding  # even where padding has the largest score
        np.testing.assert_array_equal(context(scores, v, mask, k), expected)


def test_a_fully_masked_row_has_no_context() -> None:
    scores, v, mask = example(rows=4, keys=9)
    scores[0, 0], scores[1, 1] = softmax.LARGEST_SCORE, -softmax.LARGEST_SCORE
    np.testing.assert_array_equal(context(scores, v, mask * 0), 0)


def test_a_single_key_passes_v_through() -> None:
    v = np.arange(-128, 128)[None, :]
    rows = context(np.array([[77]]), v, np.array([1]))
    # A factor of 2^15 - 1 stands for 1, so the largest loses half a fraction bit.
    assert np.abs(rows[0] / 128 - v[0]).max() <= 1 / 128


def test_bits_of_a_sum_are_its_bits() -> None:
    got = softmax.sum_bits(TOTALS, 2**17)
    assert got.tolist() == [total.bit_length() for total in TOTALS.tolist()]
    assert softmax.sum_bits(np.array([0, 254]), 2**17).tolist() == [8, 8]


@given(st.integers(255, 2**24), st.integers(0, 2**10))
def test_bits_of_a_sum_need_no_more_room_than_it(total: int, more: int) -> None:
    got = softmax.sum_bits(np.array([[total]]), total + more)
    assert np.asarray(got).item() == total.bit_length()


def test_reciprocal_is_the_floor_of_the_quotient() -> None:
    bits = softmax.sum_bits(TOTALS, 2**17)
    expected = [
        min(2 ** (14 + int(b)) // t, 2**15 - 1) for t, b in zip(TOTALS.tolist(), bits, strict=True)
    ]
    got = softmax.reciprocal(TOTALS, bits)
    assert got.tolist() == expected
    assert got.min() == 2**14 and got.max() == 2**15 - 1
    assert np.abs(got * TOTALS / 2.0 ** (bits + 14) - 1).max() < 2.0**-14
    assert softmax.reciprocal(np.array([0]), np.array([8])).tolist() == [2**22 // 255]


@pytest.mark.parametrize("keys", [1, 2, 7, 64, 128, 512])
def test_context_is_the_mean_of_v_to_a_64th(keys: int) -> None:
    random = np.random.default_rng(keys)
    worst = 0.0
    for sharpness in np.geomspace(0.05, 6, 40):
        logits = random.exponential(sharpness, (32, keys))
        e = np.round(255 * np.exp(-logits)).astype(np.int64)
        e[:, 0] = 255  # of the largest score
        for v in (
            random.integers(-128, 128, (keys, 16)),
            random.choice([-128, 127], (keys, 16)),
            np.full((keys, 1), -128),
            np.full((keys, 1), 127),
        ):
            total = e.sum(-1, keepdims=True)
            bits = softmax.sum_bits(total, 255 * keys)
            got = softmax.context_of(e @ v, bits, softmax.reciprocal(total, bits))
            assert got.min() >= -(2**14) - 1 and got.max() <= 2**14
            worst = max(worst, float(np.abs(got / 128 - (e @ v) / total).max()))
    assert worst < 1 / 64


def test_context_is_the_mean_of_v_for_every_sum() -> None:
    bits = softmax.sum_bits(TOTALS, 2**17)
    factor = softmax.reciprocal(TOTALS, bits)
    for value in (-128, -127, -1, 1, 127):
        got = softmax.context_of(value * TOTALS, bits, factor)
        assert np.abs(got / 128 - value).max() <= 1 / 128
        assert got.min() >= -(2**14) - 1
    # -128 times the sum is rounded down once more where the sum has more than 8 bits.
    assert softmax.context_of(-128 * TOTALS, bits, factor).min() == -(2**14) - 1


def test_wide_values_are_their_parts() -> None:
    v = np.arange(-softmax.VALUE_LIMIT, softmax.VALUE_LIMIT + 1)
    high, low = (part(v, softmax.VALUE_BITS) for part in (parts.high_part, parts.low_part))
    assert (high.min(), high.max(), low.min(), low.max()) == (-127, 127, 0, 7)
    np.testing.assert_array_equal(parts.joined(high, low, softmax.VALUE_BITS), v)


@pytest.mark.parametrize("keys", [1, 2, 7, 64, 128, 512])
def test_the_context_of_wide_values_is_their_mean(keys: int) -> None:
    """In units of 8 bits, to the same 64th."""
    random = np.random.default_rng(keys)
    e = np.round(255 * np.exp(-random.exponential(1.0, (32, keys)))).astype(np.int64)
    e[:, 0] = 255
    limit = softmax.VALUE_LIMIT
    total = e.sum(-1, keepdims=True)
    bits = softmax.sum_bits(total, 255 * keys)
    for v in (
        random.integers(-limit, limit + 1, (keys, 16)),
        random.choice([-limit, limit], (keys, 16)),
        np.full((keys, 1), -limit),
    ):
        got = softmax.context_of(e @ v, bits, softmax.reciprocal(total, bits), wide=True)
        assert got.min() >= -(2**14) and got.max() <= 2**14
        assert np.abs(got / 128 - (e @ v) / total / 8).max() < 1 / 64


def test_values_that_are_too_wide_are_refused(messages: Messages) -> None:
    softmax.check_values(-1016, 1016)
    with messages.raises(RangeError):
        softmax.check_values(-1017, 5)


def test_attention_is_close_to_the_float_one() -> None:
    scores, v, mask = example()
    weights = np.exp((scores - scores.max(-1, keepdims=True)) * SCALE)
    reference = weights @ v / weights.sum(-1, keepdims=True)
    # In units of V (which spans +-127), at length 128 and sigma 2.
    error = np.abs(context(scores, v, mask) / 128 - reference)
    assert 1.0 < error.max() < 2.0
    assert math.sqrt((error**2).mean()) < 0.35


@pytest.mark.representatives(2)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("scale", [8.4e-8, SCALE, 1e-3, 0.69])
def test_exponentials_agree_in_both_domains(both_domains, scale: float, target) -> None:
    k = ShortExponential.from_scale(scale)
    random = np.random.default_rng(3)
    edge = softmax.LARGEST_SCORE
    reach = min(int(12 / scale) + 2, edge)
    acc = random.integers(-reach, reach, 4096)
    acc[:4] = [-edge, edge, 0, -1]
    top = np.minimum(np.maximum(acc, 0) + random.integers(0, reach, 4096), edge)
    keep = random.integers(0, 4, 4096) > 0
    top[-8:], keep[-8:] = softmax.MASKED, False  # rows without a key

    def stage(score, largest, mask):
        masked = softmax.score_of(score, softmax.key_offset(not_equal(mask, 0)))
        return softmax.exponential_of(masked, softmax.row_floor(largest), k)

    got = both_domains(
        stage, (acc, -edge, edge), (top, softmax.MASKED - edge, edge), (keep, 0, 1), target=target
    )
    assert (got[~keep] == 0).all()


@pytest.mark.representatives(1)
@pytest.mark.parametrize("target", TARGETS)
def test_sums_and_contexts_agree_in_both_domains(both_domains, target) -> None:
    random = np.random.default_rng(4)
    total = np.concatenate([[0, 255, 256, 511, 512, 2**17], random.integers(255, 2**17, 4090)])
    bits = both_domains(lambda s: softmax.sum_bits(s, 2**17), (total, 0, 2**17), target=target)
    factor = both_domains(
        softmax.reciprocal, (total, 0, 2**17), (bits, 8, 18), vectorise=False, target=target
    )
    for wide, limit in ((False, 128), (True, softmax.VALUE_LIMIT)):
        acc = total * random.choice([-limit, 1 - limit, -3, 0, 1, 77, limit - 1], total.size)
        got = both_domains(
            partial(softmax.context_of, wide=wide),
            (acc, -limit * 2**17, limit * 2**17),
            (bits, 8, 18),
            (factor, 2**14, 2**15 - 1),
            target=target,
        )
        assert got[0] == 0


@pytest.mark.parametrize("scale", SCALES)
def test_no_number_of_64_bits_occurs_in_an_exponential(scale: float) -> None:
    from tvm import tirx

    edge = softmax.LARGEST_SCORE
    score = Ranged(softmax.MASKED - edge, edge, tirx.Var("score", "int32"))
    largest = Ranged(softmax.ROW_FLOOR, edge, tirx.Var("largest", "int32"))
    k = ShortExponential.from_scale(scale)
    traced = trace(softmax.exponential_of, score, largest, k)
    assert "int64" not in str(traced.expr)
    assert 'T.Cast("int32"' not in str(traced.expr), "once in 16 bits, it stays there"
    assert (traced.low, traced.high) == (0, 255) and traced.is_short


def test_intervals_of_masked_scores_hold_the_mask() -> None:
    score = softmax.score_of(Ranged(-5, 9), softmax.key_offset(Condition()))
    assert (score.low, score.high) == (softmax.MASKED - 5, 9)
    assert softmax.row_floor(score).low == softmax.ROW_FLOOR


@pytest.mark.parametrize(("scale", "shifts"), [(0.69, (0, 10)), (1e-3, (0, 1)), (8.4e-8, (12, 0))])
def test_distances_are_shifted_into_16_bits(scale: float, shifts: tuple[int, int]) -> None:
    k = ShortExponential.from_scale(scale)
    assert (k.down_shift, k.up_shift) == shifts
    assert 2**14 <= k.multiplier < 2**15 and k.maximum == 255


def refused(scale: float) -> str:
    with pytest.raises(RangeError) as caught:
        ShortExponential.from_scale(scale)
    return str(caught.value)


def test_a_coarse_scale_is_refused(messages: Messages) -> None:
    messages.check(refused(0.8))
    assert "by a factor of 2^1.44e+06\n" in refused(1e6)  # e^1e6 is no float


def test_a_fine_scale_is_refused(messages: Messages) -> None:
    messages.check(refused(8e-8))


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf])
def test_a_scale_that_is_none_is_refused(scale: float, messages: Messages) -> None:
    messages.check(refused(scale))
