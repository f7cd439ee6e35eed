"""Lowering of RMSNorm, of norms of heads and of rows scaled to length 1."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ibert_tvm.relay_passes.canonical import build
from ibert_tvm.relay_passes.integer.operators.norms import RmsNorm, RmsNormShort
from ibert_tvm.relay_passes.lower.forms import Form
from ibert_tvm.relay_passes.lower.rules.norms import fits_short
from ibert_tvm.relay_passes.quantization_table import ActivationQuant
from ibert_tvm.relay_passes.spec.layer_norm import INPUT_LIMIT, LayerNormAffine, LayerNormConstants
from ibert_tvm.relay_passes.spec.presets import preset as preset_of
from ibert_tvm.relay_passes.spec.short_layer_norm import ShortLayerNorm
from tests.lower.lowering import (
    LINEAR,
    LINEAR_TABLE,
    SHORT_SUM,
    STREAM,
    SUM,
    linear,
    lower,
    lower_linear,
    needed,
    records,
)
from tests.lower.modules import tensor

GAIN = LayerNormAffine.from_scale(np.full(2, 0.5**0.5), np.zeros(2), 2.0**-15)


@pytest.mark.parametrize(
    ("preset", "quant"), [("accurate", SUM), ("paper", SUM), ("accurate", SHORT_SUM)]
)
def test_rms_norm_reads_a_sum_as_it_is(preset: str, quant: ActivationQuant) -> None:
    gamma = np.array([1.0, -0.5], np.float32)
    lowered = lower(
        lambda emit, x, mask, w: emit(
            build.rms_norm(emit(build.add(x, x, name="sum")), w["gamma"], name="y", epsilon=1e-5)
        ),
        {"gamma": gamma},
        preset=preset,
        stream={"sum": quant, "y": STREAM},
    )
    affine = LayerNormAffine.from_scale(gamma, np.zeros(2), STREAM.scale)
    if quant is SHORT_SUM:
        norm, constants = RmsNormShort, ShortLayerNorm.from_scale(quant.scale, 1e-5, 2)
    else:
        norm, bits = RmsNorm, preset_of(preset).reciprocal_bits
        constants = LayerNormConstants.from_scale(quant.scale, 1e-5, 2, reciprocal_bits=bits)
    assert [*records(lowered)] == ["x.for.sum", "sum", "y"]
    assert records(lowered)["y"] == norm("y", constants, affine.shift, -32767, 32767, "int16")
    np.testing.assert_array_equal(lowered.parameters["gamma"], affine.gain)


def test_unit_length_is_a_norm_at_a_fixed_scale() -> None:
    lowered = lower(lambda emit, x, mask, w: emit(build.l2_norm(x, name="y")))
    # The sum has more bits than a norm takes: it is made once more, at a coarser scale.
    assert [*records(lowered)] == ["x", "x.for.y", "y"]
    constants = LayerNormConstants.from_scale(SUM.scale * SUM.high / INPUT_LIMIT, 0.0, 2)
    y = records(lowered)["y"]
    assert y == RmsNorm("y", constants, GAIN.shift, -32767, 32767, "int16")
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
    found = records(lowered)
    assert found["m.for.u"].high == INPUT_LIMIT == -found["m.for.u"].low
    assert isinstance(found["u"], RmsNorm)
    assert isinstance(found["y"], RmsNorm)  # 2^15 - 1 is one bit more than the short form
    short = lower_linear(lambda up: build.l2_norm(up, name="y"), stream={"up": SHORT_SUM})
    constants = ShortLayerNorm.from_scale(SHORT_SUM.scale, 0.0, 3)
    assert records(short)["y"].constants == constants


def test_rows_of_15_bits_are_taken_as_such_where_a_requantisation_leaves_the_clamp() -> None:
    rows = ActivationQuant(2.0**-9, -(2**14 - 1), 2**14 - 1)
    unclamped = Form(tensor("x", (1,)), "x", np.array([2.0**-9]), 0, 2**15 - 1)
    assert fits_short(unclamped, rows)
    assert not fits_short(unclamped, None)
    assert not fits_short(replace(unclamped, scale=np.array([2.0**-10])), rows)
    assert fits_short(replace(unclamped, magnitude=2**14 - 1), None)


@pytest.mark.parametrize("kind", ["rms_norm", "layer_norm"])
def test_weights_of_heads_keep_their_shape(kind: str) -> None:
    names = ("n.weight", "n.bias")[: 1 + (kind == "layer_norm")]
    lowered = lower(
        lambda emit, x, mask, w: emit(
            getattr(build, kind)(linear(emit, x, w), *map(w.get, names), name="y", epsilon=1e-5)
        ),
        {**LINEAR, **{name: np.ones((1, 3), np.float32) for name in names}},
        **LINEAR_TABLE,
        stream={"up": ActivationQuant(2.0**-9, -(2**14 - 1), 2**14 - 1), "y": STREAM},
    )
    assert f"integer.{kind}_short" == records(lowered)["y"].OP
    assert [lowered.parameters[name].shape for name in names] == [(1, 3)] * len(names)


def needed_of_rows(shape: tuple[int, ...], preset: str = "accurate"):
    return needed(
        lambda emit, x, mask, w: emit(
            build.rms_norm(linear(emit, x, w), w["n.weight"], name="y", epsilon=1e-5)
        ),
        {**LINEAR, "n.weight": np.ones(shape, np.float32)},
        preset,
    )


def test_norms_of_heads_ask_for_rows_of_15_bits() -> None:
    wish = needed_of_rows((1, 3))["up"].stream_for
    assert wish is not None
    assert (wish(8.0).scale, wish(8.0).high) == (8.0 / (2**14 - 1), 2**14 - 1)
    assert wish(0.0).scale == 2.0**-6 / (2**14 - 1)
    assert needed_of_rows((3,))["up"].stream_for is None
    assert needed_of_rows((1, 3), "paper")["up"].stream_for is None


def test_rows_of_a_table_that_only_matrix_products_read_have_a_stream_form() -> None:
    """Their integers are made at its scale: there was none, and lowering refused the model."""
    assert needed_of_rows((3,))["x"].stream
