"""i-sigmoid, i-SiLU and what i-GELU has in common with them: errors, widths, both domains."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.relay_passes.errors import RangeError
from ibert_tvm.relay_passes.spec.clipped import ClippedFunction, ClippedPolynomial, clipped_scale
from ibert_tvm.relay_passes.spec.gelu import GELU, gelu_accurate
from ibert_tvm.relay_passes.spec.logistic import SIGMOID, SILU, sigmoid, silu
from ibert_tvm.relay_passes.spec.values import Ranged, trace
from tests.snapshots import Messages

INT15 = np.arange(-32767, 32768)
SHIFTS = range(11)
BETAS = [1.0, 1.702, 0.25]


def logistic(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def silu_constants(shift: int, beta: float = 1.0) -> tuple[float, ClippedPolynomial]:
    function = SILU.of_multiple(beta)
    scale = function.limit / 32640 * 2**shift
    return scale, ClippedPolynomial.from_scale(scale, function)


def sigmoid_constants(shift: int) -> tuple[float, ClippedPolynomial]:
    scale = SIGMOID.limit / 32640 * 2**shift
    return scale, ClippedPolynomial.from_scale(scale, SIGMOID)


def gelu_constants(shift: int) -> tuple[float, ClippedPolynomial]:
    scale = GELU.limit / 32640 * 2**shift
    return scale, ClippedPolynomial.from_scale(scale, GELU)


FUNCTIONS = [(silu, silu_constants), (sigmoid, sigmoid_constants), (gelu_accurate, gelu_constants)]


def test_polynomials_in_real_numbers() -> None:
    t = np.linspace(0, 20, 200_001)
    for function, weight, bound in ((SILU, t, 0.00322), (SIGMOID, np.ones_like(t), 0.00117)):
        a, b, c = function.coefficients
        w = np.maximum(1 - t / function.limit, 0) ** function.power
        error = np.abs(w * (a + w * (b + w * c)) - logistic(-t)) * weight
        assert error.max() < bound
    assert sum(SIGMOID.coefficients) == pytest.approx(0.5, abs=1e-7)


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("shift", SHIFTS)
def test_silu_errs_by_half_a_unit_and_the_polynomial(shift: int, beta: float) -> None:
    scale, k = silu_constants(shift, beta)
    x = INT15 * scale
    error = np.abs(silu(INT15, k) * scale - x * logistic(beta * x))
    assert error.max() <= 0.0033 / beta + 0.5 * scale
    if shift == 0:
        assert error.max() < 0.0035 / beta


@pytest.mark.parametrize(("function", "constants"), [FUNCTIONS[0], FUNCTIONS[2]])
@pytest.mark.parametrize("shift", SHIFTS)
def test_silu_and_gelu_are_the_identity_and_zero_beyond_their_limit(
    function, constants, shift: int
) -> None:
    _, k = constants(shift)
    q = np.arange(k.limit, 32768)
    np.testing.assert_array_equal(function(q, k), q)
    np.testing.assert_array_equal(function(-q, k), 0)
    assert function(np.array([0]), k)[0] == 0


@pytest.mark.parametrize("shift", SHIFTS)
def test_silu_stays_above_its_lobe(shift: int) -> None:
    scale, k = silu_constants(shift)
    assert silu(INT15, k).min() >= -np.ceil(0.29 / scale)


@pytest.mark.parametrize("shift", SHIFTS)
def test_sigmoid_is_close_symmetric_and_monotone(shift: int) -> None:
    scale, k = sigmoid_constants(shift)
    got = sigmoid(INT15, k)
    error = np.abs(got / 2**15 - logistic(INT15 * scale))
    # Where T is no whole number of units, the polynomial ends a little early.
    assert error.max() < (0.00123 if shift < 8 else 0.0131)
    assert got.min() == 1 and got.max() == 32767
    np.testing.assert_array_equal(got + got[::-1], 2**15)
    assert np.diff(got).min() >= -1


@pytest.mark.parametrize(("function", "constants"), FUNCTIONS)
@pytest.mark.parametrize("shift", SHIFTS)
def test_16_bits_throughout(function, constants, shift: int) -> None:
    from tvm import tirx

    _, k = constants(shift)
    q = Ranged(-32767, 32767, tirx.Var("q", "int16"), is_short=True)
    traced = trace(function, q, k)
    assert traced.is_short and traced.high == 32767
    assert "int32" not in str(traced.expr) and "int64" not in str(traced.expr)


@pytest.mark.representatives(2)
@pytest.mark.parametrize("target", [None, "x86-avx512-vnni", "x86-64-v3", "x86-64"])
@pytest.mark.parametrize(("function", "constants"), FUNCTIONS)
@pytest.mark.parametrize("shift", [0, 1, 3, 9])
def test_both_domains_agree_on_all_inputs(
    both_domains, function, constants, shift: int, target: str | None
) -> None:
    _, k = constants(shift)
    both_domains(lambda q: function(q, k), (INT15, -32767, 32767), target=target)


@pytest.mark.parametrize(
    ("function", "largest", "doublings"),
    [
        *((SILU, 4.8, 0), (SILU, 4.9, 1), (SILU.of_multiple(1.702), 4.8, 1), (SIGMOID, 100.0, 5)),
        *((GELU, 0.1, 0), (GELU, 2.1, 0), (GELU, 2.2, 1), (GELU, 60.0, 5)),
    ],
)
def test_the_chosen_scale_holds_its_range_in_14_bits(
    function: ClippedFunction, largest: float, doublings: int
) -> None:
    scale = clipped_scale(function.limit, largest)
    assert scale == function.limit / 32640 * 2**doublings
    assert function.up_shift(scale) == doublings
    assert largest / scale < 2**14 and (doublings == 0 or largest / (scale / 2) >= 2**14)


@pytest.mark.parametrize("scale", [2e-4, 1e-3, 5.0])
def test_other_scales_are_refused(scale: float, messages: Messages) -> None:
    with messages.raises(RangeError):
        ClippedPolynomial.from_scale(scale, SILU)
