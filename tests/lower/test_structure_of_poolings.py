"""Before and Expected: poolings, joined channels, unit length and the logarithm."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.relay_passes.canonical import build
from ibert_tvm.relay_passes.quantization_table import ActivationQuant
from ibert_tvm.relay_passes.spec.layer_norm import INPUT_LIMIT, LayerNormAffine, LayerNormConstants
from ibert_tvm.relay_passes.spec.logarithm import Logarithm
from ibert_tvm.relay_passes.spec.short_layer_norm import ShortLayerNorm
from tests.lower.expected import (
    LINEAR,
    LINEAR_TABLE,
    STREAM,
    SUM,
    linear,
    lower,
)
from tests.lower.test_structure_of_gates import operators, records

GAIN = LayerNormAffine.from_scale(np.full(2, 0.5**0.5), np.zeros(2), 2.0**-15)
SHORT = ActivationQuant(2.0**-10, -(2**14 - 1), 2**14 - 1)
UNIT = {"shift": GAIN.shift, "low": -32767, "high": 32767, "dtype": "int16"}


@pytest.mark.parametrize("make", ["max_pool", "last_token"])
def test_a_maximum_and_a_last_token_keep_accumulators_and_their_scales(make: str) -> None:
    lowered = lower(
        lambda emit, x, mask, w: emit(getattr(build, make)(linear(emit, x, w), mask, name="y")),
        LINEAR,
        **LINEAR_TABLE,
        stream={"y": STREAM},
    )
    kinds = [kind for kind, _ in operators(lowered)]
    assert kinds == [{"max_pool": "MaxPool", "last_token": "LastToken"}[make], "Requantise"]
    forms = {form["form"]: form for form in lowered.scales["values"]["y"]}
    assert forms["native"]["scale"] == lowered.scales["values"]["up"][0]["scale"]
    assert len(set(forms["native"]["scale"])) == 3


def test_a_weighted_mean_takes_as_many_fraction_bits_as_there_are() -> None:
    for make, bits in ((build.weighted_mean_pool, 8), (build.sqrt_mean_pool, 0)):
        lowered = lower(lambda emit, x, mask, w, make=make: emit(make(x, mask, name="y")))
        pool = records(lowered)[-1]
        assert pool.fraction_bits == bits
        assert lowered.scales["outputs"][0]["scale"] == SUM.scale / 2**bits


def test_unit_length_is_a_norm_at_a_fixed_scale() -> None:
    lowered = lower(lambda emit, x, mask, w: emit(build.l2_norm(x, name="y")))
    operand, y = records(lowered)[-2:]
    # The sum has more bits than a norm takes: it is made once more, at a coarser scale.
    assert operand.name == "x.for.y"
    scale = SUM.scale * SUM.high / INPUT_LIMIT
    assert y.constants == LayerNormConstants.from_scale(scale, 0.0, 2)
    assert {name: getattr(y, name) for name in UNIT} == UNIT
    np.testing.assert_array_equal(lowered.parameters["y.gain"], GAIN.gain)
    assert lowered.scales["outputs"][0]["scale"] == 2.0**-15


def test_an_input_of_15_bits_takes_the_short_form_and_a_wide_one_is_not_clipped() -> None:
    lowered = lower(
        lambda emit, x, mask, w: emit(
            build.l2_norm(
                emit(build.l2_norm(emit(build.mean_pool(x, mask, name="m")), name="u")), name="y"
            )
        )
    )
    found = {record.name: record for record in records(lowered)}
    assert found["m.for.u"].high == INPUT_LIMIT == -found["m.for.u"].low
    assert type(found["u"]).__name__ == "RmsNorm"
    assert type(found["y"]).__name__ == "RmsNorm"  # 2^15 - 1 is one bit more than the short form
    short = lower(
        lambda emit, x, mask, w: emit(build.l2_norm(linear(emit, x, w), name="y")),
        LINEAR,
        **LINEAR_TABLE,
        stream={"up": SHORT},
    )
    y = next(record for record in records(short) if record.name == "y")
    assert y.constants == ShortLayerNorm.from_scale(SHORT.scale, 0.0, 3)


def test_joined_channels_have_scales_of_their_own() -> None:
    lowered = lower(
        lambda emit, x, mask, w: emit(build.concatenate(linear(emit, x, w), x, name="y")),
        LINEAR,
        **LINEAR_TABLE,
        stream={"y": STREAM},
    )
    first = lowered.scales["values"]["up"][0]["scale"]
    native = next(f for f in lowered.scales["values"]["y"] if f["form"] == "native")
    assert native["scale"] == [*first, SUM.scale, SUM.scale]


def test_a_logarithm_of_the_stream() -> None:
    lowered = lower(
        lambda emit, x, mask, w: emit(build.log1p_relu(linear(emit, x, w), name="y")),
        LINEAR,
        **LINEAR_TABLE,
        stream={"up": SHORT},
    )
    y = next(record for record in records(lowered) if record.name == "y")
    assert y.constants == Logarithm.from_scale(SHORT.scale, 2**14 - 1)
    assert lowered.scales["outputs"][0]["scale"] == pytest.approx(np.log(2) / 2**15)
