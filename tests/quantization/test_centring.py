"""Biases make up for what rounding in two steps adds in the mean."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.model.artefact import QuantizedModel
from ibert_tvm.quantization import quantize
from ibert_tvm.quantization.options import CalibrationOptions
from ibert_tvm.relay_passes.integer.evaluate import evaluate_all
from tests.quantization.models import random_batches, random_model


def offsets(
    model: QuantizedModel, inputs: dict[str, np.ndarray], plain: QuantizedModel
) -> list[float]:
    """What rounding adds in the mean to accumulators of layers, where few fraction bits are left.

    Root of the mean square over the channels, for the biases of `model` instead of those of
    `plain`, which make up for nothing.
    """
    _, made = evaluate_all(model.program, inputs, model.parameters)
    forms = {f["value"]: f for known in model.quantization["values"].values() for f in known}
    steps = {step.name: step for step in model.program.steps}
    real = inputs["attention_mask"] != 0
    found = []
    for step in model.program.steps:
        source = steps.get(step.operands.get("x", ""))
        # The fewer fraction bits, the more is added: a quarter of a step for one.
        if step.operator.OP != "integer.linear" or source is None or source.operator.shift > 3:
            continue
        read, given = forms[source.name], forms[source.operands["x"]]
        exact = made[source.operands["x"]][real] * (given["scale"] / np.asarray(read["scale"]))
        exact = np.clip(exact + read["zero_point"], source.operator.low, source.operator.high)
        weight = model.parameters[step.operands["weight"]].astype(np.float64)
        bias = plain.parameters[step.operands["bias"]]
        error = made[step.name][real] - exact @ weight.T - bias
        found.append(float(np.sqrt((error.mean(axis=0) ** 2).mean())))
    return found


@pytest.mark.slow
def test_what_rounding_adds_is_taken_off_again() -> None:
    model = random_model("bert")
    batches = random_batches(model, 3)
    plain, centred = (
        quantize(model, batches, options=CalibrationOptions(centre=centre))
        for centre in (False, True)
    )
    assert plain.program == centred.program
    changed = {
        name
        for name, array in centred.parameters.items()
        if not np.array_equal(array, plain.parameters[name])
    }
    biases = {
        step.operands["bias"]
        for step in plain.program.steps
        if step.operator.OP == "integer.linear"
    }
    assert changed
    assert changed <= biases
    inputs = random_batches(model, 1, rows=64, seed=9)[0]
    before = offsets(plain, inputs, plain)
    after = offsets(centred, inputs, plain)
    assert len(before) == 2
    assert np.mean(after) < 0.5 * np.mean(before)
