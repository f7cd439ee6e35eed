"""Nothing in integers is the float model, everything the integer one, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.diagnosis.mixed import FLOAT, INTEGER, MixedModel, Treatment
from ibert_tvm.quantization import quantize
from ibert_tvm.relay_passes.canonical import FloatModel
from ibert_tvm.relay_passes.integer.evaluate import evaluate_all
from tests.examples import examples
from tests.quantization.models import ARCHITECTURES, random_batches, random_model


@pytest.mark.parametrize("preset", examples(("accurate", "paper"), "accurate"))
@pytest.mark.parametrize("architecture", examples(ARCHITECTURES, "bert"))
def test_both_ends_are_exact(architecture: str, preset: str) -> None:
    model = random_model(architecture)
    quantised = quantize(model, random_batches(model, 2), preset)
    inputs = random_batches(model, 1, seed=7)[0]
    mixed = MixedModel(quantised, model)

    output, state = mixed.run(inputs, lambda place: INTEGER)
    _, values = evaluate_all(quantised.program, inputs, quantised.parameters)
    assert {place.name for place in mixed.places} == set(state.integers)
    for name, integers in state.integers.items():
        np.testing.assert_array_equal(integers, values[name], name)

    # Errors that are added to what was rounded come to the same.
    seen = []
    watched, _ = mixed.run(
        inputs,
        lambda place: INTEGER,
        watch=lambda place, source, rounded, result: seen.append(place.name),
    )
    np.testing.assert_array_equal(watched, output)
    assert seen == [place.name for place in mixed.places]

    expected = FloatModel(model.module, model.parameters).run(inputs).outputs[0]
    plain, begin = mixed.run(inputs, lambda place: FLOAT)
    np.testing.assert_array_equal(plain, expected)

    # A run that goes on from another gives what a whole one does.
    last = mixed.places[-4]
    treat = {last.name: Treatment(True, True)}
    whole, _ = mixed.run(inputs, lambda place: treat.get(place.name, FLOAT))
    later, _ = mixed.run(
        inputs, lambda place: treat.get(place.name, FLOAT), begin, mixed.number(last)
    )
    np.testing.assert_array_equal(later, whole)
    assert not np.array_equal(whole, plain)


def test_errors_added_to_floats_are_those_of_the_integer_operators() -> None:
    model = random_model("bert")
    quantised = quantize(model, random_batches(model, 2))
    inputs = random_batches(model, 1, seed=7)[0]
    mixed = MixedModel(quantised, model)
    layer = next(p for p in mixed.places if p.value.endswith("intermediate.dense"))
    computed = Treatment(False, True)
    _, state = mixed.run(inputs, lambda place: computed if place is layer else FLOAT)
    _, plain = mixed.run(inputs, lambda place: FLOAT)

    operand = next(p for p in mixed.places if p.name == layer.inputs[0])
    real = plain.real[operand.value, operand.name]
    integers = operand.integers(real).astype(np.int64)
    weight = quantised.parameters[layer.step.operands["weight"]].astype(np.int64)
    bias = quantised.parameters[layer.step.operands["bias"]]
    made = (integers @ weight.T + bias) * layer.scale
    matrix = model.parameters["encoder.layer.0.intermediate.dense.weight"]
    floats = model.parameters["encoder.layer.0.intermediate.dense.bias"]
    error = made - (operand.real(integers) @ matrix.T + floats)
    actual = state.real[layer.value, layer.name] - plain.real[layer.value, layer.name]
    # An accumulator is an integer, what it is compared with is rounded to one.
    step = float(layer.scale.max())
    np.testing.assert_allclose(actual, error, atol=0.51 * step)
    assert np.abs(error).max() > 100 * step
