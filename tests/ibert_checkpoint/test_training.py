"""Checkpoints of transformers' `ibert`, trained here and written in its format again."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers

import ibert_tvm as ibert
from ibert_tvm.train import prepare
from tests.ibert_checkpoint.checkpoints import LAYERS, batch
from tests.ibert_checkpoint.emulation import exact_floats, run_propagated
from tests.ibert_checkpoint.test_bit_exact import assert_equal_everywhere, captured, oracle_of

LENGTHS = [20, 7, 31]


@pytest.fixture(scope="module")
def trained(checkpoint, tmp_path_factory):
    """A folder that was written after some steps of a training, and the module that was trained."""
    saved = checkpoint()
    model = prepare(saved.folder)
    assert model.preset == "released" and model.frozen == ()
    inputs = {name: torch.from_numpy(array) for name, array in batch([9, 12], seed=8).items()}
    wanted = torch.randn((2, 12, 64), generator=torch.Generator().manual_seed(4))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(5):
        loss = ((model(**inputs).last_hidden_state - wanted) ** 2).mean()
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    folder = tmp_path_factory.mktemp("trained") / "ibert"
    model.save(folder)
    return model, folder


@pytest.mark.slow
def test_what_was_trained_equals_the_oracle_of_the_checkpoint_that_was_written(trained):
    model, folder = trained
    source = transformers.IBertModel.from_pretrained(folder).eval()
    inputs = batch(LENGTHS, types=source.config.type_vocab_size)
    found = model.integers(**{name: torch.from_numpy(array) for name, array in inputs.items()})
    values = {name: tensor.numpy() for name, tensor in found.items()}
    oracle, _ = oracle_of(source, inputs)
    assert assert_equal_everywhere(values, oracle) > 300_000
    _, again = captured(ibert.quantize(ibert.load(folder, verify=False)), inputs)
    for name, array in again.items():
        np.testing.assert_array_equal(values[name], array, err_msg=name)


@pytest.mark.slow
def test_transformers_gives_the_same_integers_with_scales_handed_on(trained, monkeypatch):
    model, folder = trained
    source = transformers.IBertModel.from_pretrained(folder).eval().double()
    inputs = batch(LENGTHS, types=source.config.type_vocab_size)
    with exact_floats(monkeypatch):
        wanted = run_propagated(source, inputs)
    found = model.integers(**{name: torch.from_numpy(array) for name, array in inputs.items()})
    assert len(wanted) == 1 + 3 * LAYERS
    for name in wanted:
        np.testing.assert_array_equal(found[name].numpy(), wanted[name], err_msg=name)
