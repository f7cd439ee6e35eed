"""Before and Expected: factors and rows by channel, bounds, runs and shifts of tokens, masks."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.relay_passes.canonical import build
from ibert_tvm.relay_passes.errors import RangeError
from ibert_tvm.relay_passes.integer.relax_ops import is_integer_op, operator_of
from ibert_tvm.relay_passes.lower import requirements
from ibert_tvm.relay_passes.passes.program import bindings
from ibert_tvm.relay_passes.spec.presets import ACCURATE, PAPER
from tests.lower.expected import LINEAR, LINEAR_TABLE, STREAM, SUM, linear, lower
from tests.lower.modules import function, tensor, token_inputs

NUMBERS = {"factor": np.array([2.0, -0.5], np.float32), "row": np.array([1.0, -2.0], np.float32)}


def records(lowered) -> list:
    """The integer operators behind the embedding, in order."""
    calls = [binding.value for binding in bindings(lowered.module["main"])]
    return [operator_of(call) for call in calls if is_integer_op(call)][1:]


def kinds(lowered) -> list[tuple[str, str]]:
    return [(type(record).__name__, record.name) for record in records(lowered)]


@pytest.mark.parametrize("preset", [ACCURATE, PAPER])
def test_factors_by_channel_are_scales_of_the_same_integers(preset) -> None:
    lowered = lower(
        lambda emit, x, mask, w: emit(build.scale_channels(x, w["factor"], name="y")),
        NUMBERS,
        preset=preset.name,
        stream={"y": STREAM},
    )
    assert [name for _, name in kinds(lowered)] == ["x.stream", "y.stream"]
    forms = {form["form"]: form for form in lowered.scales["values"]["y"]}
    assert forms["native"]["value"] == "x.stream"
    np.testing.assert_array_equal(forms["native"]["scale"], SUM.scale * NUMBERS["factor"])


def test_a_row_is_rounded_to_the_scale_of_the_sum() -> None:
    lowered = lower(
        lambda emit, x, mask, w: emit(build.add_row(x, w["row"], name="y")),
        NUMBERS,
        stream={"y": SUM},
    )
    assert kinds(lowered) == [("AddRow", "y")]
    np.testing.assert_array_equal(lowered.parameters["row"], NUMBERS["row"] / SUM.scale)


def test_factors_and_a_row_are_one_requantisation_and_one_sum() -> None:
    def body(emit, x, mask, w):
        y = emit(build.scale_channels(x, w["factor"], name="y"))
        return emit(build.add_row(y, w["row"], name="z"))

    lowered = lower(body, NUMBERS, stream={"z": SUM})
    assert [name for _, name in kinds(lowered)] == ["x.stream", "y.for.z", "z"]


def test_bounds_are_rounded_to_steps_of_the_stream_and_stay_inside_of_it() -> None:
    def clipped(low: float, high: float) -> tuple[int, int]:
        lowered = lower(
            lambda emit, x, mask, w: emit(
                build.clip(linear(emit, x, w), name="y", low=low, high=high)
            ),
            LINEAR,
            **LINEAR_TABLE,
            stream={"up": STREAM},
        )
        clip = records(lowered)[-1]
        assert type(clip).__name__ == "Clip"
        return clip.low, clip.high

    step = STREAM.scale
    assert clipped(0.0, 6.0) == (0, round(6.0 / step))
    assert clipped(-3.49 * step, 2.5 * step) == (-3, 3)
    assert clipped(-1e30, 1e30) == (-STREAM.high, STREAM.high)


def test_the_slope_of_a_leaky_relu_has_15_bits() -> None:
    lowered = lower(
        lambda emit, x, mask, w: emit(build.leaky_relu(linear(emit, x, w), name="y", slope=0.1)),
        LINEAR,
        **LINEAR_TABLE,
        stream={"up": STREAM},
    )
    assert records(lowered)[-1].slope == 3277
    assert lowered.scales["values"]["y"][0]["scale"] == STREAM.scale


def test_what_moves_tokens_keeps_type_and_scale() -> None:
    def body(emit, x, mask, w):
        y = emit(build.mask_tokens(x, mask, name="masked"))
        return emit(build.shift_tokens(y, name="shifted", distance=-1))

    lowered = lower(body)
    assert kinds(lowered) == [("MaskTokens", "masked"), ("ShiftTokens", "shifted")]
    (output,) = lowered.scales["outputs"]
    assert output["scale"] == SUM.scale


def test_what_cannot_be_read_as_it_is_needs_a_stream() -> None:
    ids, _ = token_inputs()
    arrays = {"words.weight": np.zeros((3, 2), np.float32), **NUMBERS}
    w = {name: tensor(name, array.shape) for name, array in arrays.items()}

    def body(emit):
        x = emit(build.embedding(w["words.weight"], ids, name="x"))
        y = emit(build.scale_channels(x, w["factor"], name="y"))
        return emit(build.select_token(y, name="first"))

    needed = requirements(function([ids], list(w.values()), body), ACCURATE.name)
    assert {name: value.stream for name, value in needed.items()} == {
        "x": True,
        "y": True,
        "first": True,
    }


def test_a_row_that_does_not_fit_is_refused() -> None:
    far = {"row": np.array([0.0, 2.0**20], np.float32)}
    with pytest.raises(RangeError) as error:
        lower(
            lambda emit, x, mask, w: emit(build.add_row(x, w["row"], name="y")),
            far,
            stream={"y": SUM},
        )
    assert str(error.value).startswith("a learned row reaches 17179869184 steps\n  where: y\n")
