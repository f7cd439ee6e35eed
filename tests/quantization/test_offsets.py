"""What attention averages does without constants, which the layer behind adds again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ibert_tvm.quantization import CalibrationOptions, calibrate
from ibert_tvm.quantization.observers import Statistics
from ibert_tvm.relay_passes.errors import LoweringError
from ibert_tvm.relay_passes.integer.evaluate import evaluate_all
from ibert_tvm.relay_passes.integer.relax_ops import read_program
from ibert_tvm.relay_passes.lower import lower_to_integer
from ibert_tvm.relay_passes.quantization_table import QuantizationTable
from tests.quantization.models import random_batches, random_model
from tests.snapshots import Messages

VALUES = [f"encoder.layer.{layer}.attention.self.value" for layer in range(2)]
CONTEXT = "encoder.layer.0.attention.self"
# Little time, and symmetric ranges that offsets can make smaller.
QUICK = CalibrationOptions(observer="minmax", alphas=(0.5,), compensate=False, value_offsets=True)


def table() -> QuantizationTable:
    model = random_model("bert")
    return calibrate(model, random_batches(model, 4), None, QUICK)[0]


def test_only_what_attention_averages_has_them() -> None:
    assert sorted(table().offsets) == VALUES
    paper, _ = calibrate(random_model("bert"), random_batches(random_model("bert"), 1), "paper",
                         QUICK)  # fmt: skip
    assert not paper.offsets


def test_integers_are_those_of_the_float_model_with_other_biases() -> None:
    """The program and its scales stay; V's bias loses the offsets, the next one their product."""
    model, chosen = random_model("bert"), table()
    moved = dict(model.parameters)
    for value, offset in chosen.offsets.items():
        out = value.replace("self.value", "output.dense")
        moved[f"{value}.bias"] = moved[f"{value}.bias"] - offset
        moved[f"{out}.bias"] = moved[f"{out}.bias"] + moved[f"{out}.weight"] @ offset
    given = lower_to_integer(model.module, model.parameters, chosen)
    plain = lower_to_integer(model.module, moved, replace(chosen, offsets={}))
    assert read_program(given.module) == read_program(plain.module)
    for name, array in plain.parameters.items():
        np.testing.assert_array_equal(given.parameters[name], array)


def test_reports_say_what_integers_stand_for() -> None:
    model, chosen = random_model("bert"), table()
    lowered = lower_to_integer(model.module, model.parameters, chosen)
    program = read_program(lowered.module)
    inputs = random_batches(model, 1, seed=3)[0]
    _, made = evaluate_all(
        program, {name: inputs[name] for name in program.inputs}, lowered.parameters
    )
    form = {f["form"]: f for f in lowered.scales["values"][VALUES[0]]}
    wide, narrow = (
        (made[f["value"]] - np.asarray(f["zero_point"])) * np.asarray(f["scale"])
        for f in (form["native"], form["matmul"])
    )
    inside = np.abs(made[form["matmul"]["value"]]) < 127
    step = np.broadcast_to(form["matmul"]["scale"], wide.shape)
    assert (np.abs(wide - narrow) <= 0.6 * step)[inside].all()
    assert np.abs(np.asarray(form["matmul"]["zero_point"])).max() > 1
    context = lowered.scales["values"][CONTEXT][0]
    lost = -np.asarray(context["zero_point"]) * np.asarray(context["scale"])
    np.testing.assert_allclose(lost, chosen.offsets[VALUES[0]], rtol=1e-6)


def test_a_reader_that_does_not_make_up_for_them_is_refused(messages: Messages) -> None:
    model, chosen = random_model("bert"), table()
    key = VALUES[0].replace("value", "key")
    with messages.raises(LoweringError):
        lower_to_integer(
            model.module, model.parameters, replace(chosen, offsets={key: np.ones(48)})
        )


def test_statistics_move_with_them() -> None:
    seen = Statistics()
    values = np.array([[1.0, 4.0], [3.0, 2.0]], np.float32)
    seen.update(values, values.copy())
    seen.shift(np.array([2.0, 3.0]))
    assert seen.low.tolist() == [-1, -1]
    assert seen.high.tolist() == [1, 1]
    np.testing.assert_array_equal(seen.sample, [[-1, 1], [1, -1]])
    wider = seen.widened(1.5)
    assert (wider.low.tolist(), seen.low.tolist()) == ([-1.5, -1.5], [-1, -1])
