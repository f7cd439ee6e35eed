"""Lowering of functions of one value that no golden model has, or with scales it does not have."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.relay_passes.canonical import build
from ibert_tvm.relay_passes.integer.operators.functions import Clip, Gelu, Log1pRelu, Silu
from ibert_tvm.relay_passes.quantization_table import ActivationQuant
from ibert_tvm.relay_passes.spec.clipped import ClippedPolynomial, clipped_scale
from ibert_tvm.relay_passes.spec.gelu import GELU
from ibert_tvm.relay_passes.spec.logarithm import Logarithm
from ibert_tvm.relay_passes.spec.logistic import SIGMOID, SILU
from tests.lower.lowering import (
    LINEAR,
    SHORT_SUM,
    STREAM,
    kinds,
    linear,
    lower_linear,
    native_scale,
    needed,
    records,
)


def test_gelu_of_another_scale_is_requantised_once_more() -> None:
    # The polynomial ends at 32640 / 2^k units, which 2^-14 does not give.
    stream = {"up": ActivationQuant(2.0**-14, -32767, 32767), "y": STREAM}
    lowered = lower_linear(lambda up: build.gelu(up, name="y", form="erf"), stream=stream)
    scale = clipped_scale(GELU.limit, 32767 * 2.0**-14)
    term = records(lowered)["up.for.y"]
    assert (term.low, term.high, term.dtype) == (1 - 2**14, 2**14 - 1, "int16")
    assert records(lowered)["y"] == Gelu("y", ClippedPolynomial.from_scale(scale, GELU))
    assert native_scale(lowered, "y") == scale


@pytest.mark.parametrize("beta", [1.0, 1.702])
@pytest.mark.parametrize("preset", ["accurate", "paper"])
def test_silu_takes_a_stream_at_its_own_scale(preset: str, beta: float) -> None:
    function = SILU.of_multiple(beta)
    own = ActivationQuant(clipped_scale(function.limit, 4.0), -(2**14 - 1), 2**14 - 1)
    for stream, extra in ((own, []), (STREAM, ["up.for.y"])):
        lowered = lower_linear(
            lambda up: build.silu(up, name="y", beta=beta),
            preset=preset,
            stream={"up": stream, "y": STREAM},
        )
        assert [name for _, name in kinds(lowered, "up")] == ["up.stream", *extra, "y"]
        constants = ClippedPolynomial.from_scale(native_scale(lowered, "y"), function)
        assert records(lowered)["y"] == Silu("y", constants)


@pytest.mark.parametrize(
    ("make", "limit"),
    [
        (lambda x: build.silu(x, name="y"), SILU.limit),
        (lambda x: build.silu(x, name="y", beta=1.702), SILU.limit / 1.702),
        (lambda x: build.sigmoid(x, name="y"), SIGMOID.limit),
    ],
)
def test_the_stream_is_asked_for_at_the_scale_of_the_polynomial(make, limit: float) -> None:
    wish = needed(lambda emit, x, mask, w: emit(make(linear(emit, x, w))), LINEAR)["up"].stream_for
    assert wish is not None
    assert (wish(7.0).scale, wish(7.0).high) == (clipped_scale(limit, 7.0), 2**14 - 1)


def test_bounds_are_rounded_to_steps_of_the_stream_and_stay_inside_of_it() -> None:
    step = STREAM.scale
    for low, high, expected in (
        (0.0, 6.0, (0, round(6.0 / step))),
        (-3.49 * step, 2.5 * step, (-3, 3)),
        (-1e30, 1e30, (-STREAM.high, STREAM.high)),
    ):
        lowered = lower_linear(
            lambda up, low=low, high=high: build.clip(up, name="y", low=low, high=high),
            stream={"up": STREAM},
        )
        assert records(lowered)["y"] == Clip("y", *expected)


def test_the_slope_of_a_leaky_relu_has_15_bits() -> None:
    lowered = lower_linear(
        lambda up: build.leaky_relu(up, name="y", slope=0.1), stream={"up": STREAM}
    )
    assert records(lowered)["y"].slope == 3277
    assert native_scale(lowered, "y") == STREAM.scale


def test_a_logarithm_of_the_stream() -> None:
    lowered = lower_linear(lambda up: build.log1p_relu(up, name="y"), stream={"up": SHORT_SUM})
    assert records(lowered)["y"] == Log1pRelu("y", Logarithm.from_scale(SHORT_SUM.scale, 2**14 - 1))
    assert lowered.scales["outputs"][0]["scale"] == pytest.approx(np.log(2) / 2**15)
