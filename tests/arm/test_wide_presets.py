"""Whole models of the presets with wide arithmetic on processors without vectors, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ibert_tvm as ibert
from ibert_tvm.model.artefact import QuantizedModel
from tests.arm import small_bert
from tests.arm.packages import assert_bit_exact, document, link_package, run_package
from tests.arm.tools import needs
from tests.examples import examples
from tests.ibert_checkpoint.checkpoints import batch, make_model, save

SEQ_LEN = 16


def quantised(preset: str, folder: Path) -> QuantizedModel:
    """A BERT of the preset `paper`, or a checkpoint that was trained in the released arithmetic."""
    if preset == "paper":
        return small_bert.small_bert(preset=preset)
    checkpoint = save(make_model("none", num_hidden_layers=1), folder)
    return ibert.quantize(ibert.load(checkpoint, head="none", verify=False))


def inputs_of(model: QuantizedModel) -> dict[str, np.ndarray]:
    """One sequence with padding behind its tokens."""
    arrays = batch([SEQ_LEN - 5])
    padded = {name: np.pad(array, ((0, 0), (0, 5))) for name, array in arrays.items()}
    padded["input_ids"][:, SEQ_LEN - 5 :] = 1  # the padding token of RoBERTa's kind
    names = [var.name for var in model.module["main"].params]
    return {name: array.astype("int32") for name, array in padded.items() if name in names}


@pytest.mark.qemu
@pytest.mark.slow
@pytest.mark.parametrize("preset", ["paper", "released"])
@pytest.mark.parametrize(
    "target", examples(["cortex-m4", "cortex-m3", "cortex-m0"], "cortex-m4", otherwise="record")
)
def test_a_whole_model(preset: str, target: str, tmp_path: Path) -> None:
    needs("arm-none-eabi-gcc", "qemu-system-arm")
    model = quantised(preset, tmp_path)
    folder = tmp_path / "package"
    ibert.compile(model, target=target, shapes=[(1, SEQ_LEN)]).export(folder)
    assert document(folder)["target"]["name"] == target
    inputs = inputs_of(model)
    run = run_package(folder, link_package(folder, tmp_path), inputs, tmp_path)
    assert_bit_exact(model, inputs, run.outputs)
