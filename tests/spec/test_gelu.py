"""i-GELU: the published errors, the accurate form's own, widths, two domains, refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ibert_tvm.relay_passes.errors import RangeError
from ibert_tvm.relay_passes.spec.clipped import ClippedPolynomial
from ibert_tvm.relay_passes.spec.gelu import GELU, PaperGelu, gelu_accurate, gelu_paper
from ibert_tvm.relay_passes.spec.polynomial import IntegerPolynomial, i_poly
from tests.snapshots import Messages

ERF = np.vectorize(math.erf, otypes=[float])
INT15 = np.arange(-32767, 32768)
SCALES = [GELU.limit / 32640 * 2**k for k in range(11)]


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1.0 + ERF(x / math.sqrt(2.0)))


def clipped_polynomial(x: np.ndarray) -> np.ndarray:
    t, (a, b, c) = np.abs(x), GELU.coefficients
    w = np.maximum(1 - t / GELU.limit, 0) ** GELU.power
    return np.maximum(x, 0) - t * w * (a + w * (b + w * c))


def paper_error(scale: float) -> np.ndarray:
    k = PaperGelu.from_scales(np.array([scale]))
    q = np.unique(np.round(np.linspace(-4, 4, 40_001) / scale).astype(np.int64))
    constants = (a.astype(np.int64) for a in (k.q_b, k.q_c, k.q_1, k.erf_shift))
    return gelu_paper(q, *constants) * k.scales - gelu(q * scale)


@pytest.mark.parametrize("scale", [1e-6, 1e-5, 1e-4, 1e-3])
def test_published_form_reaches_the_published_error(scale: float) -> None:
    e = paper_error(scale)
    assert round(np.abs(e).max(), 3) == 0.018
    assert round(math.sqrt((e**2).mean()), 4) == 0.0082


def test_published_form_refuses_a_scale_too_coarse(messages: Messages) -> None:
    with messages.raises(RangeError):
        PaperGelu.from_scales(np.array([1e-4, 1.0]))


def test_polynomial_of_the_accurate_form() -> None:
    x = np.linspace(-4, 4, 80_001)
    e = clipped_polynomial(x) - gelu(x)
    assert np.abs(e).max() < 0.00042 and math.sqrt((e**2).mean()) < 0.0003


def errors_of_accurate(scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Over all inputs: distance from erf-GELU, and from the polynomial in real numbers."""
    got, x = gelu_accurate(INT15, ClippedPolynomial.from_scale(scale, GELU)) * scale, INT15 * scale
    return np.abs(got - gelu(x)), np.abs(got - clipped_polynomial(x))


@pytest.mark.parametrize("scale", SCALES)
def test_accurate_form_reaches_its_error(scale: float) -> None:
    erf_error, polynomial_error = errors_of_accurate(scale)
    # The rounding of the result is half a unit; 16-bit products take the rest.
    assert polynomial_error.max() < 6e-5 + 0.6 * scale
    assert erf_error.max() < 0.00042 + 5e-5 + 0.6 * scale
    inner = np.abs(INT15 * scale) <= 4
    assert math.sqrt((erf_error[inner] ** 2).mean()) < 0.0003 + 0.3 * scale


@pytest.mark.representatives(2)
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


def test_i_poly_refuses_a_scale_too_fine(messages: Messages) -> None:
    with messages.raises(RangeError):
        IntegerPolynomial.from_scale(-0.2888, -1.769, 1.0, 1e-10)
