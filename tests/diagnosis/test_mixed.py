"""Nothing in integers is the float model, everything the integer one, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.diagnosis.mixed import FLOAT, INTEGER, MixedModel, Treatment
from ibert_tvm.quantization import options_of, quantize
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


@pytest.fixture(scope="module")
def centred() -> MixedModel:
    """A model with split channels, centred biases and values that a constant was taken off."""
    model = random_model("bert")
    options = options_of("default", split_share=1 / 4)
    return MixedModel(quantize(model, random_batches(model, 2), options=options), model)


def test_what_rounding_makes_of_floats_are_integers_of_the_form(centred: MixedModel) -> None:
    generator = np.random.default_rng(0)
    kinds = set()
    for place in centred.places:
        low, high = (np.broadcast_to(bound, place.scale.shape) for bound in place.reach)
        shape = (64, max(low.size, np.size(place.zero_point)))
        real = generator.uniform(1.2 * low, 1.2 * high, shape) * place.scale
        # Products of single precision: a number in the middle between two integers is rare.
        expected = place.real(place.integers(real))
        np.testing.assert_allclose(
            place.rounded(real, 1.0, 1.0), expected, atol=1e-3 * float(np.abs(place.scale).min())
        )
        kinds |= {("excess", bool(place.excess.any())), ("split", place.columns is not None)}
        kinds.add(("offset", not np.array_equal(np.rint(place.zero_point), place.zero_point)))
    assert kinds == {(kind, found) for kind in ("excess", "split", "offset") for found in (0, 1)}


def test_biases_that_make_up_for_requantisation_are_no_error_of_weights(
    centred: MixedModel,
) -> None:
    compensated = [place for place in centred.places if place.excess.any()]
    inputs = random_batches(random_model("bert"), 1, rows=48, seed=7)[0]
    _, state = centred.run(inputs, lambda place: INTEGER)
    made = [place for place in compensated if place.own]
    assert made
    for place in made:
        # What the requantisation adds in the mean is no part of what its integers stand for.
        source = next(other for other in centred.places if other.name == place.inputs[0])
        steps = place.steps(source.real(state.integers[source.name]))
        kept = np.abs(steps) < 0.9 * np.minimum(*map(np.abs, place.reach))
        found = place.steps(place.real(state.integers[place.name]))
        # Padding is the same at all places: its rounding does not average out.
        error = np.where(kept, found - steps, 0.0)[inputs["attention_mask"] != 0].mean()
        assert abs(error) < 0.5 * np.abs(place.excess).max()
