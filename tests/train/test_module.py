"""`IntegerModel`: what is trained is what runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import ibert_tvm as ibert
from ibert_tvm.common.errors import UsageError
from ibert_tvm.relay_passes.integer.evaluate import evaluate_all
from ibert_tvm.train.module import IntegerModel
from tests.examples import examples
from tests.snapshots import Messages
from tests.train.small import MODELS, batch, integer_model, tensors

CASES = [(name, preset) for name in MODELS for preset in ("accurate", "paper")]


def steps(model: IntegerModel, count: int, rate: float = 3e-3) -> list[float]:
    """Losses of some steps on one batch."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate)
    given, losses = tensors(batch(5, rows=8)), []
    wanted = torch.randn((8, 12, 32), generator=torch.Generator().manual_seed(1))
    for _ in range(count):
        if model.info.outputs[0].kind == "logits":
            loss = model(**given, labels=torch.arange(8) % 3).loss
        else:
            loss = ((model(**given)[model.info.outputs[0].name] - wanted) ** 2).mean()
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "preset"),
    examples(
        CASES,
        ("bert", "accurate"),
        otherwise="record",
        slow=[("modernbert", "accurate"), ("bert", "paper")],
        unpack=True,
    ),
)
def test_a_trained_model_is_deployed_with_the_integers_of_its_training(
    name: str, preset: str, tmp_path: Path
) -> None:
    model = integer_model(name, preset)
    losses = steps(model, 3, rate=1e-2)
    assert losses[-1] < losses[0]
    given = batch(7, rows=3)
    found = model.integers(**tensors(given))
    model.save(tmp_path / "trained")
    loaded = ibert.load(tmp_path / "trained", verify=False)
    quantized = ibert.quantize(loaded)
    assert quantized.preset == preset
    assert quantized.quantization["calibration"] == {"source": "the scales of its training"}
    _, wanted = evaluate_all(quantized.program, given, quantized.parameters)
    assert found.keys() == wanted.keys()
    for key, values in wanted.items():
        np.testing.assert_array_equal(found[key].numpy(), values, err_msg=key)


@pytest.mark.slow
def test_the_loss_falls_and_outputs_are_those_of_the_integers() -> None:
    model = integer_model("bert")
    losses = steps(model, 12, rate=1e-2)
    assert losses[-1] < 0.9 * losses[0]
    given = batch(9)
    with torch.no_grad():
        plain = model(**tensors(given)).logits
    with_gradients = model(**tensors(given)).logits
    assert torch.equal(plain, with_gradients.detach())
    quantized = model.quantized()
    (logits,), _ = evaluate_all(quantized.program, given, quantized.parameters)
    scale = quantized.quantization["outputs"][0]["scale"]
    np.testing.assert_array_equal(plain.numpy(), (logits * scale).astype(np.float32))


def test_from_pretrained_reads_the_floats(tmp_path: Path) -> None:
    model = integer_model("bert")
    model.save(tmp_path / "trained")
    again = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "trained")
    for name, tensor in model.model.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name


@pytest.mark.slow
def test_calibration_is_where_training_starts() -> None:
    model = integer_model("bert")
    calibration = [batch(seed) for seed in range(20, 24)]
    torch.manual_seed(3)
    plain = ibert.load(MODELS["bert"](), verify=False)
    wanted = ibert.quantize(plain, calibration)
    found = model.quantized()
    rows = [name for name in wanted.parameters if name.endswith("query.weight")]
    for name in rows:
        np.testing.assert_array_equal(found.parameters[name], wanted.parameters[name])
    assert rows


def test_unknown_inputs_are_refused(messages: Messages) -> None:
    model = integer_model("bert")
    with messages.raises(UsageError):
        model(pixel_values=torch.zeros((1, 3, 8, 8)))


def test_another_module_is_refused(messages: Messages) -> None:
    from ibert_tvm.train import prepare

    with messages.raises(UsageError):
        prepare(torch.nn.Linear(2, 2), calibration=["a"])
