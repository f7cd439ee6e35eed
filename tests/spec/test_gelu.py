"""i-GELU: the published errors, the accurate form's own, widths, two domains, refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from relay_passes.errors import RangeError
from relay_passes.spec.gelu import (
    GELU_BUMP,
    GELU_LIMIT,
    PRINTED_ERF,
    RELEASED_ERF,
    RELEASED_ERF_SHIFT,
    AccurateGelu,
    PaperGelu,
    gelu_accurate,
    gelu_paper,
)
from relay_passes.spec.polynomial import IntegerPolynomial, i_poly
from relay_passes.spec.values import Ranged, trace

ERF = np.vectorize(math.erf, otypes=[float])
INT16 = np.arange(-32768, 32768)
SCALES = [1e-5, 2e-5, 3.7e-5, 1e-4, 3e-4, 1e-3, 5e-3, 2e-2, 6e-2]


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1.0 + ERF(x / math.sqrt(2.0)))


def clipped_polynomial(x: np.ndarray) -> np.ndarray:
    t = np.minimum(np.abs(x), GELU_LIMIT)
    return np.maximum(x, 0) - GELU_BUMP * t * (GELU_LIMIT - t) ** 4


def paper_error(scale: float, **options) -> np.ndarray:
    k = PaperGelu.from_scales(np.array([scale]), **options)
    q = np.unique(np.round(np.linspace(-4, 4, 40_001) / scale).astype(np.int64))
    constants = (a.astype(np.int64) for a in (k.q_b, k.q_c, k.q_1, k.erf_shift))
    return gelu_paper(q, *constants) * k.scales - gelu(q * scale)


@pytest.mark.parametrize("scale", [1e-6, 1e-5, 1e-4, 1e-3])
@pytest.mark.parametrize("coefficients", [PRINTED_ERF, RELEASED_ERF])
def test_published_form_reaches_the_published_error(scale: float, coefficients) -> None:
    e = paper_error(scale, coefficients=coefficients)
    assert round(np.abs(e).max(), 3) == 0.018
    assert round(math.sqrt((e**2).mean()), 4) == 0.0082


def test_released_shift_is_right_for_fine_scales_only() -> None:
    e = paper_error(1e-4, erf_shift=RELEASED_ERF_SHIFT)
    assert round(np.abs(e).max(), 3) == 0.018
    with pytest.raises(RangeError) as caught:
        paper_error(5e-3, erf_shift=RELEASED_ERF_SHIFT)
    assert str(caught.value) == (
        "scale 0.005 of i-GELU, channel 0 cannot serve the published i-GELU\n"
        "  why: with a shift of 14, q_b = -501 and 1 is -17 units\n"
        "  what to do: use a finer or coarser scale, no fixed shift, or the accurate form"
    )


def test_polynomial_of_the_accurate_form() -> None:
    x = np.linspace(-4, 4, 80_001)
    e = clipped_polynomial(x) - gelu(x)
    assert np.abs(e).max() < 0.0039 and math.sqrt((e**2).mean()) < 0.00235


@pytest.mark.parametrize("scale", SCALES)
def test_accurate_form_reaches_its_error(scale: float) -> None:
    q = INT16[np.abs(INT16 * scale) <= 8]
    got = gelu_accurate(q, AccurateGelu.from_scale(scale)) * scale
    # 6e-5 from the 15-bit arithmetic, and the rounding of the result and of T to units of S.
    assert np.abs(got - clipped_polynomial(q * scale)).max() < 6e-5 + 0.7 * scale
    assert np.abs(got - gelu(q * scale)).max() < 0.0039 + 6e-5 + 0.7 * scale


@pytest.mark.parametrize("scale", SCALES)
def test_accurate_form_is_the_identity_and_zero_beyond_its_limit(scale: float) -> None:
    k = AccurateGelu.from_scale(scale)
    q = np.array([k.limit, k.limit + 1, 2 * k.limit + 5])
    np.testing.assert_array_equal(gelu_accurate(q, k), q)
    np.testing.assert_array_equal(gelu_accurate(-q, k), 0)
    assert gelu_accurate(np.array([0]), k)[0] == 0


@pytest.mark.parametrize("scale", [*SCALES, 1e-6, 0.2])
def test_bound_of_the_product_never_acts(scale: float) -> None:
    from relay_passes.spec.values import shift_right_round

    k = AccurateGelu.from_scale(scale)
    t = np.unique(np.linspace(0, k.limit, 300_000).astype(np.int64))
    t = t << k.up_shift if k.up_shift else shift_right_round(t, k.down_shift)
    square = shift_right_round((t.max() - t) ** 2, k.square_shift)
    product = t * shift_right_round(square * square, k.fourth_shift)
    assert 0.98 * k.product_limit < product.max() <= k.product_limit


@pytest.mark.parametrize("scale", [*SCALES, 1e-6, 0.2, 0.4])
def test_accurate_form_is_int32_throughout(scale: float) -> None:
    from tvm import tirx

    k = AccurateGelu.from_scale(scale)
    for bound in (2**15, 2**31 - 1):
        traced = trace(gelu_accurate, Ranged(-bound, bound, tirx.Var("q", "int32")), k)
        assert "int64" not in str(traced.expr) and traced.high == bound


@pytest.mark.parametrize("scale", [1e-5, 3e-4, 6e-2])
def test_accurate_form_agrees_in_both_domains_on_all_int16(both_domains, scale: float) -> None:
    k = AccurateGelu.from_scale(scale)
    both_domains(lambda q: gelu_accurate(q, k), (INT16, -32768, 32767))


def test_accurate_form_takes_any_int32(both_domains) -> None:
    k = AccurateGelu.from_scale(1e-4)
    edge = 2**31 - 1
    q = np.array([-edge, -edge + 1, -36965, -36964, 0, 36965, edge - 1, edge])
    both_domains(lambda v: gelu_accurate(v, k), (q, -edge, edge))


@pytest.mark.parametrize("scale", [1e-6, 1e-5, 1e-3, 0.05])
def test_published_form_agrees_in_both_domains(both_domains, scale: float) -> None:
    k = PaperGelu.from_scales(np.array([scale]))
    random = np.random.default_rng(0)
    q = random.integers(-(2**24), 2**24, 4096)
    q[:7] = [0, 1, -1, -int(k.q_b[0]), int(k.q_b[0]), 2**24, -(2**24)]
    constants = [int(a[0]) for a in (k.q_b, k.q_c, k.q_1, k.erf_shift)]
    both_domains(lambda v: gelu_paper(v, *constants), (q, -(2**24), 2**24), vectorise=False)


def test_published_form_takes_constants_per_channel(both_domains) -> None:
    scales = np.array([1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 2e-5, 3e-4, 7e-3])
    k = PaperGelu.from_scales(scales)
    x = np.linspace(-3, 3, 512)
    q = np.round(x / np.resize(scales, x.size)).astype(np.int64)
    operands = [
        (np.resize(a, x.size), int(a.min()), int(a.max()))
        for a in (k.q_b, k.q_c, k.q_1, k.erf_shift)
    ]
    got = both_domains(gelu_paper, (q, -(2**23), 2**23), *operands, vectorise=False)
    assert np.abs(got * np.resize(k.scales, x.size) - gelu(x)).max() < 0.022


def test_shift_leaves_twenty_bits() -> None:
    k = PaperGelu.from_scales(np.geomspace(1e-6, 1e-3, 20))
    assert (np.abs(k.q_1) < 2**20).all() and (np.abs(k.q_1[k.erf_shift > 0]) >= 2**19).all()
    assert k.q_b.dtype == k.q_1.dtype == k.erf_shift.dtype == np.int32 and k.q_c.dtype == np.int64
    assert (k.scales < 0).all()


def test_i_poly() -> None:
    poly = IntegerPolynomial.from_scale(-0.2888, -1.769, 1.0, 0.01)
    assert (poly.q_b, poly.q_c) == (-177, -34627)
    assert poly.scale == pytest.approx(-0.2888e-4)
    q = np.arange(0, 178)
    np.testing.assert_array_equal(i_poly(q, poly.q_b, poly.q_c), (q - 177) ** 2 - 34627)


def test_i_poly_refuses_a_scale_too_fine() -> None:
    with pytest.raises(RangeError) as caught:
        IntegerPolynomial.from_scale(-0.2888, -1.769, 1.0, 1e-10)
    assert str(caught.value) == (
        "scale 1e-10 is too fine for i-poly\n"
        "  why: q_b = -17690000000, q_c = -346260387811634315264; their squares and sums must fit "
        "int64\n"
        "  what to do: requantise the input to a coarser scale first"
    )


@pytest.mark.parametrize(("scale", "units"), [(1.0, 4), (1e-9, 3696520000)])
def test_a_scale_the_accurate_form_cannot_serve_is_refused(scale: float, units: int) -> None:
    with pytest.raises(RangeError) as caught:
        AccurateGelu.from_scale(scale)
    assert str(caught.value) == (
        f"scale {scale:.3g} cannot serve i-GELU\n"
        f"  why: its polynomial ends at 3.69652, which is {units} units; 8 to 2^26 serve\n"
        "  what to do: requantise the input of GELU to a scale between 1e-5 and 6e-2"
    )
