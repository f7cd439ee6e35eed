"""`ibert quantize` and `ibert inspect` on an `ibert` folder."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import ibert_tvm as ibert
from tests.ibert_checkpoint.checkpoints import quant_acts


def test_a_checkpoint_is_quantised_without_calibration(checkpoint, ibert_command, tmp_path):
    saved = checkpoint(num_hidden_layers=2, type_vocab_size=1)
    output = tmp_path / "model.ibert"
    document = ibert_command("quantize", saved.folder, "-o", output, "--json").document
    assert (document["preset"], document["calibration_texts"]) == ("released", 0)
    assert document["notes"] == []
    from ibert_tvm.model.artefact import QuantizedModel

    loaded, direct = QuantizedModel.load(output), ibert.quantize(saved.model)
    assert loaded.preset == "released"
    for name, array in direct.parameters.items():
        np.testing.assert_array_equal(loaded.parameters[name], array)
    said = ibert_command("inspect", output).stdout
    assert "source the checkpoint's training, ranges 26, force_dequant none" in said


def test_ranges_that_are_missing_end_the_command(checkpoint, ibert_command, tmp_path):
    source = copy.deepcopy(checkpoint(num_hidden_layers=2, type_vocab_size=1).source)
    act = quant_acts(source)["encoder.layer.1.pre_output_act"]
    act.x_min.fill_(-1e-5)
    act.x_max.fill_(1e-5)
    source.save_pretrained(tmp_path / "checkpoint")
    output = tmp_path / "model.ibert"
    outcome = ibert_command("quantize", tmp_path / "checkpoint", "-o", output)
    assert outcome.code == 3
    assert "1 of 26 ranges of the checkpoint were never calibrated" in outcome.stderr
    assert not output.exists()


@pytest.mark.slow
def test_inspect_shows_the_import(checkpoint, ibert_command):
    saved = checkpoint(num_hidden_layers=2, type_vocab_size=1, force_dequant="softmax")
    document = ibert_command("inspect", saved.folder, "--json").document
    assert document["report"]["source"] == (
        "transformers ibert checkpoint, trained with quantisation, force_dequant softmax"
    )
    assert len(document["info"]["notes"]) == 2
    assert 0 < document["verified_error"] < 1e-4
