"""i-cap: its error over all inputs, symmetry, widths in two domains, refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ibert_tvm.relay_passes.errors import RangeError
from ibert_tvm.relay_passes.spec.score_cap import (
    CAP_COEFFICIENTS,
    CAP_LIMIT,
    LARGEST_CAP,
    ScoreCap,
    cap_score,
    capped_scale,
)
from ibert_tvm.relay_passes.spec.values import Ranged, trace

# Scales of the scores in units of the cap: 22 bits of them reach T, or a few units do.
SCALES = [10.0**-k for k in (6, 5, 4, 3, 2)] + [0.05, 3.1e-4, 2.02e-4]


def test_the_polynomial_in_real_numbers() -> None:
    t = np.linspace(0, 10, 200_001)
    w = np.maximum(1 - t / CAP_LIMIT, 0) ** 6
    got = sum(c * w**power for power, c in enumerate(CAP_COEFFICIENTS, start=1))
    assert np.abs(1 - 2 * got - np.tanh(t)).max() < 8.9e-5
    assert sum(CAP_COEFFICIENTS) == pytest.approx(0.5, abs=1e-7)


@pytest.mark.parametrize("unit", SCALES)
@pytest.mark.slow
def test_every_score_up_to_beyond_the_end(unit: float) -> None:
    cap = 50.0
    constants = ScoreCap.from_scale(unit * cap, cap)
    last = math.ceil(1.1 * CAP_LIMIT / unit)
    scores = np.arange(-last, last + 1)
    got = cap_score(scores, constants)
    assert np.abs(got * capped_scale(cap) / cap - np.tanh(scores * unit)).max() < 3.8e-4
    np.testing.assert_array_equal(got, -got[::-1])
    assert got[last] == 0 and got.max() == 2**14
    assert np.diff(got).min() >= -1


def test_any_accumulator_fits_its_widths() -> None:
    for unit in SCALES:
        constants = ScoreCap.from_scale(unit * 50.0, 50.0)
        result = trace(cap_score, Ranged(-(2**31) + 1, 2**31 - 1), constants)
        assert (result.low, result.high, result.dtype) == (-(2**14), 2**14, "int16")
        ends = cap_score(np.array([-(2**31) + 1, 2**31 - 1]), constants)
        np.testing.assert_array_equal(ends, [-(2**14), 2**14])


@pytest.mark.parametrize(
    ("scale", "cap", "what"),
    [
        (1e-3, LARGEST_CAP * 1.01, "scores are capped at 129.3"),
        (1e-3, -50.0, "scale -50.0 of the cap of attention scores"),
        (math.nan, 50.0, "scale nan of attention scores"),
        (20.0, 50.0, "scale 20 is too coarse for scores that are capped at 50"),
        (1e-10, 50.0, "scale 1e-10 is too fine for scores that are capped at 50"),
    ],
)
def test_what_is_refused(scale: float, cap: float, what: str) -> None:
    with pytest.raises(RangeError) as caught:
        ScoreCap.from_scale(scale, cap)
    assert str(caught.value).startswith(what)
