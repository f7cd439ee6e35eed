"""i-log1p: error over all inputs, monotony, widths, two domains, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.relay_passes.errors import RangeError
from ibert_tvm.relay_passes.spec.arithmetic import VECTORS
from ibert_tvm.relay_passes.spec.logarithm import LOG_BITS, LOG_COEFFICIENTS, Logarithm, log1p_relu
from ibert_tvm.relay_passes.spec.scalar import Scalar
from ibert_tvm.relay_passes.spec.values import Ranged
from ibert_tvm.relay_passes.spec.widths import audit
from tests.snapshots import Messages

INT16 = np.arange(-(2**15), 2**15)
LIMIT = 2**14 - 1
SCALES = [1e-7, 2.0**-14, 1e-4, 7.3e-4, 1e-3, 2e-3, 4.1e-3, 1e-2, 0.1, 0.49, 1.0]


def test_polynomial_in_real_numbers() -> None:
    f = np.linspace(0, 1, 100_001)
    bend = f * (1 - f) * np.polyval(LOG_COEFFICIENTS[::-1], f)
    assert np.abs(f + bend - np.log2(1 + f)).max() < 1.6e-5


@pytest.mark.parametrize("scale", SCALES)
def test_the_error_over_all_inputs(scale: float) -> None:
    k = Logarithm.from_scale(scale, LIMIT)
    got = log1p_relu(INT16, k)
    wanted = np.log1p(np.clip(INT16, 0, LIMIT) * scale)
    assert np.abs(got * np.log(2) / 2**LOG_BITS - wanted).max() < 4.5e-5
    assert not got[INT16 <= 0].any()
    assert np.diff(got).min() >= 0


@pytest.mark.representatives(2)
@pytest.mark.parametrize("arithmetic", [VECTORS, Scalar()])
@pytest.mark.parametrize("scale", [1e-3, 1.0])
def test_both_domains_agree_on_all_inputs(both_domains, scale: float, arithmetic) -> None:
    k = Logarithm.from_scale(scale, LIMIT)
    both_domains(lambda q: log1p_relu(q, k), (INT16, -(2**15), 2**15 - 1), arithmetic=arithmetic)


@pytest.mark.parametrize("scale", SCALES)
def test_every_intermediate_has_32_bits(scale: float) -> None:
    k = Logarithm.from_scale(scale, LIMIT)
    with audit() as watch:
        log1p_relu(Ranged(-(2**31), 2**31 - 1), k)
    assert watch.bits <= 32


@pytest.mark.parametrize("scale", [2.1, 100.0, 1e-10])
def test_other_scales_are_refused(scale: float, messages: Messages) -> None:
    with messages.raises(RangeError):
        Logarithm.from_scale(scale, LIMIT)


@pytest.mark.parametrize(
    "constants", [(LIMIT, 15, 5, 0), (2**15, 10, 2**20, 0), (LIMIT, 30, 2**20, 0), (0, 0, 2**30, 0)]
)
def test_constants_that_cannot_be_are_refused(constants: tuple[int, ...]) -> None:
    with pytest.raises(RangeError, match="its argument has 16 to 30 bits"):
        Logarithm(*constants)
