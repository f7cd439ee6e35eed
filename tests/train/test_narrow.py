"""Matrices of 4 bits in training: what they stand for, their gradients, and what is deployed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import ibert_tvm as ibert
from ibert_tvm.model.trained_scales import nearest_in_groups
from ibert_tvm.quantization.narrow_weights import narrow_rows, samples, with_narrow_weights
from ibert_tvm.quantization.word_table import with_word_bits
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.relay_passes.integer.operators.linear import NibbleLinear
from ibert_tvm.relay_passes.quantization_table import WeightQuant
from ibert_tvm.relay_passes.spec import nibbles
from ibert_tvm.train.group_scales import GroupScales
from ibert_tvm.train.narrow import begin, hidden_distance
from ibert_tvm.train.preparation import prepare
from tests.train.small import HEADS, MODELS, batch, tensors

CALIBRATION = [batch(seed) for seed in range(20, 24)]


def matrix(seed: int, rows: int = 5, channels: int = 70) -> tuple[np.ndarray, ...]:
    """A weight, the scale of each row, and scales of its groups; the last group is not full."""
    random = np.random.default_rng(seed)
    weight = random.normal(size=(rows, channels)).astype(np.float32)
    scale = np.abs(weight).max(axis=1).astype(np.float64) / 127
    return weight, scale, random.integers(1, 17, (rows, -(-channels // nibbles.GROUP)))


@pytest.mark.parametrize("seed", range(3))
def test_what_was_trained_is_rounded_to_itself(seed: int) -> None:
    weight, scale, groups = matrix(seed)
    values = nearest_in_groups(weight, scale, groups)
    assert values.min() >= -127
    entries, scales = narrow_rows(values.astype(np.float64), np.eye(weight.shape[1]))
    again = nibbles.unpack(*nibbles.pack(entries, scales), weight.shape[1])
    np.testing.assert_array_equal(again, values)


def test_gradients_stay_within_the_half_bytes_and_scales_have_those_of_lsq() -> None:
    groups = np.array([[2, 16]])
    scale = np.array([0.5])
    weight = torch.zeros(1, 64)
    weight[0, :3] = torch.tensor([1.2, 20.0, -8.4])  # half bytes 1, 7 and -8, of steps of 1
    weight[0, 32:34] = torch.tensor([-65.0, 8.0])  # of 8: -8 is left out, and 1
    weight.requires_grad_(True)
    learned = GroupScales({"layer": groups})
    rows = WeightQuant(nearest_in_groups(weight.detach().numpy(), scale, groups), scale)
    real = learned.rounded("layer", weight, rows)
    assert real[0, [0, 1, 2, 32, 33]].tolist() == [1.0, 7.0, -8.0, -56.0, 8.0]
    real.sum().backward()
    assert weight.grad is not None
    assert weight.grad[0, [0, 1, 2, 32, 33]].tolist() == [1.0, 0.0, 1.0, 0.0, 1.0]
    # Rounding errors in steps, and 7 or -7 where half bytes end, by the logarithm of the scale.
    found = learned.parameter("layer").grad
    wanted = torch.tensor([[(1 - 1.2) + 7 + (-8 + 8.4), 8 * (-7 + (1 - 1))]]) / (64 * 8) ** 0.5
    torch.testing.assert_close(found, wanted)


def test_the_distance_of_hidden_values_is_that_of_real_tokens() -> None:
    wanted = torch.arange(12.0).reshape(1, 3, 4)
    found = wanted + torch.tensor([1.0, 1.0, 100.0])[None, :, None]
    mask = torch.tensor([[1, 1, 0]])
    distance = hidden_distance({"x": found}, {"x": wanted}, ["x"], mask)
    torch.testing.assert_close(distance, 1 / wanted[0, :2].var())


@pytest.mark.slow
@pytest.mark.parametrize("name", list(MODELS))
def test_steps_score_and_deploy_the_same_integers(name: str, tmp_path: Path) -> None:
    torch.manual_seed(5)
    source = MODELS[name]()
    head = HEADS.get(name)
    first = prepare(source, "accurate", CALIBRATION, head=head, split_channels=False)
    wanted = with_narrow_weights(first.quantized(), samples(first.quantized(), CALIBRATION, 16))
    begin(first, CALIBRATION, 16)
    # It begins with what rounding after training gives, biases by which that makes up, too.
    found = first.quantized()
    for step, other in zip(found.program.steps, wanted.program.steps, strict=True):
        if isinstance(other.operator, NibbleLinear):
            own = {k: wanted.parameters[v] for k, v in other.operands.items() if k != "x"}
            weight = found.parameters[step.operands["weight"]]
            again = other.operator.matrix(own, weight.shape[1])
            np.testing.assert_array_equal(weight, again, err_msg=step.name)
            bias = found.parameters[step.operands["bias"]]
            # The model has no bias of some layers: those stay 0.
            if first.weights_of(step.name)["bias"] not in first.frozen:
                np.testing.assert_allclose(bias, own["bias"], atol=1, err_msg=step.name)
    first.save(tmp_path / "first")
    model = prepare(tmp_path / "first", head=head, word_table_bits=4)
    assert model.group_scales.integers().keys() == first.group_scales.integers().keys()
    optimiser = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
    before = model.group_scales.integers()
    for seed in range(3):
        values = model.float_values(tensors(batch(seed)))
        values[model.info.outputs[0].value].square().sum().backward()
        with torch.no_grad():  # whole steps of every scale, whatever its gradient
            for logarithm in model.group_scales.parameters():
                assert logarithm.grad is not None and logarithm.grad.abs().max() > 0
                logarithm -= 0.2 * logarithm.grad.sign()
        optimiser.step()
    after = model.group_scales.integers()
    assert any((before[layer] != after[layer]).any() for layer in before)
    model.eval().save(tmp_path / "tuned")
    wide = ibert.quantize(ibert.load(tmp_path / "tuned", verify=False, head=head))
    # Nothing is rounded again, so that it does not matter on which texts.
    narrow = with_word_bits(with_narrow_weights(wide, ()), 4)
    given = batch(9)
    integers = model.integers(**tensors(given))
    arrays = {n: np.zeros_like(given["input_ids"]) for n in narrow.info.inputs} | given
    inputs = {n: arrays[n].astype(t.dtype) for n, t in narrow.program.inputs.items()}
    outputs = evaluate(narrow.program, inputs, narrow.parameters)
    for output, found in zip(narrow.program.outputs, outputs, strict=True):
        np.testing.assert_array_equal(integers[output].numpy(), found)
    for step, other in zip(narrow.program.steps, wide.program.steps, strict=True):
        if isinstance(step.operator, NibbleLinear):
            own = {k: narrow.parameters[v] for k, v in step.operands.items() if k != "x"}
            weight, bias = (wide.parameters[other.operands[k]] for k in ("weight", "bias"))
            found = step.operator.matrix(own, weight.shape[1])
            np.testing.assert_array_equal(found, weight, err_msg=step.name)
            np.testing.assert_array_equal(own["bias"], bias, err_msg=step.name)
            after.pop(step.name)
    assert not after
