"""i-softmax as published: against float attention, masks, sums, two domains.

The form of preset accurate is in `test_short_softmax`.
"""

from __future__ import annotations

import numpy as np

from ibert_tvm.relay_passes.spec import softmax
from ibert_tvm.relay_passes.spec.exponential import PolynomialExponential
from ibert_tvm.relay_passes.spec.values import Condition, Ranged, not_equal
from ibert_tvm.relay_passes.spec.widths import audit

SCALE = 2e-4
CONSTANTS = PolynomialExponential.from_scale(SCALE)


def context(scores: np.ndarray, v: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Context [rows, D] with 8 fraction bits from scores [rows, keys], v [keys, D], mask [keys]."""
    keep = not_equal(mask, 0)
    row_max = softmax.masked_score(scores, keep).max(-1, keepdims=True)
    e = softmax.exp_of(scores, row_max, keep, CONSTANTS)
    factor = softmax.factor_of_sum(e.sum(-1, keepdims=True))
    return softmax.context_of_probabilities(softmax.probability_of(e, factor) @ v)


def example(rows: int = 64, keys: int = 128, sigma: float = 2.0, seed: int = 0):
    random = np.random.default_rng(seed)
    scores = np.round(random.normal(0, sigma, (rows, keys)) / SCALE).astype(np.int64)
    return scores, random.integers(-127, 128, (keys, 16)), np.ones(keys, np.int64)


def reference(scores: np.ndarray, v: np.ndarray, mask: np.ndarray) -> np.ndarray:
    weights = np.exp((scores - scores.max(-1, keepdims=True)) * SCALE) * mask
    return weights @ v / weights.sum(-1, keepdims=True)


def test_context_is_as_close_as_floored_probabilities_allow() -> None:
    scores, v, mask = example()
    # In units of V (which spans +-127), at length 128 and sigma 2.
    error = np.abs(context(scores, v, mask) / 256 - reference(scores, v, mask))
    assert 2.5 < error.max() < 5.0
    assert np.sqrt((error**2).mean()) < 1.7


def test_floored_probabilities_lose_part_of_the_sum() -> None:
    scores, _, mask = example()
    keep = not_equal(mask, 0)
    e = softmax.exp_of(scores, scores.max(-1, keepdims=True), keep, CONSTANTS)
    p = softmax.probability_of(e, softmax.factor_of_sum(e.sum(-1, keepdims=True)))
    sums = p.sum(-1)
    assert sums.max() <= 256 and sums.min() < 0.85 * 256


def test_masked_keys_change_nothing() -> None:
    scores, v, mask = example(rows=8, keys=40)
    mask[25:] = 0
    expected = context(scores[:, :25], v[:25], mask[:25])
    scores[:, 25:] = 2**29  # even where padding has the largest score
    np.testing.assert_array_equal(context(scores, v, mask), expected)


def test_a_fully_masked_row_gives_the_zero_point() -> None:
    scores, v, mask = example(rows=4, keys=9)
    scores[0, 0], scores[1, 1] = 2**29, -(2**29)
    rows = context(scores, v, mask * 0)
    np.testing.assert_array_equal(rows, 0)
    np.testing.assert_array_equal(softmax.output_of(rows, 12345, 20, -3, -127, 127), -3)


def test_a_single_key_passes_v_through() -> None:
    v = np.arange(-128, 128)[None, :]
    rows = context(np.array([[77]]), v, np.array([1]))
    np.testing.assert_array_equal(rows[0], v[0] * 255)  # a probability of 1 is 255 / 256


def test_the_largest_key_has_the_largest_exponential() -> None:
    keep = np.array([True, False, True])
    e = softmax.exp_of(np.array([5, 5, -9]), np.array([5]), keep, CONSTANTS)
    assert e.tolist() == [32767, 0, int(e[2])] and 32000 < e[2] < 32767


def test_stages_agree_in_both_domains(both_domains) -> None:
    random = np.random.default_rng(3)
    keep = random.integers(0, 2, 2048)
    acc = random.integers(-(2**20), 2**20, 2048)
    row_max = np.maximum(acc, random.integers(-(2**20), 2**20, 2048))
    row_max[:4] = softmax.MASKED_SCORE
    bound = (-(2**20), 2**20)

    def stage(score, largest, mask):
        return softmax.exp_of(score, largest, not_equal(mask, 0), CONSTANTS)

    e = both_domains(stage, (acc, *bound), (row_max, softmax.MASKED_SCORE, 2**20), (keep, 0, 1))
    total = np.cumsum(e)
    total[:2] = [0, 1]
    top = 2048 * CONSTANTS.maximum
    factor = both_domains(softmax.factor_of_sum, (total, 0, top), vectorise=False)
    both_domains(softmax.probability_of, (e, 0, CONSTANTS.maximum), (factor, 0, 2**32))
    t = both_domains(
        softmax.context_of_probabilities, (random.integers(-40000, 40000, 512), -40000, 40000)
    )
    both_domains(lambda v: softmax.output_of(v, -29000, 21, 7, -128, 127), (t, -(2**15), 2**15))


def test_output_of_15_bit_multipliers_is_int32() -> None:
    context_range = Ranged(-softmax.CONTEXT_LIMIT, softmax.CONTEXT_LIMIT)
    with audit() as widest:
        softmax.output_of(context_range, 2**15 - 1, 22, 0, -127, 127)
    assert widest.bits <= 32


def test_interval_of_a_masked_score_holds_the_mask() -> None:
    masked = softmax.masked_score(Ranged(-5, 9), Condition())
    assert (masked.low, masked.high) == (softmax.MASKED_SCORE, 9)
