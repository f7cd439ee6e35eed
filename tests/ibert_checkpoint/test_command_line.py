"""`ibert quantize` and `ibert inspect` on an `ibert` folder."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest

import ibert_tvm as ibert
from tests.ibert_checkpoint.checkpoints import quant_acts


@pytest.fixture
def command(capfd, monkeypatch, tmp_path):
    """Run one command line in this process, in a folder of its own."""
    from ibert_tvm.cli import main

    monkeypatch.chdir(tmp_path)

    def run(*words):
        capfd.readouterr()
        return main([str(word) for word in words]), capfd.readouterr()

    return run


def test_a_checkpoint_is_quantised_without_calibration(checkpoint, command, tmp_path):
    saved = checkpoint(num_hidden_layers=2, type_vocab_size=1)
    code, printed = command("quantize", saved.folder, "-o", "model.ibert", "--json")
    assert code == 0, printed.err
    document = json.loads(printed.out)
    assert (document["preset"], document["calibration_texts"]) == ("released", 0)
    assert document["notes"] == []
    from ibert_tvm.model.artefact import QuantizedModel

    loaded, direct = QuantizedModel.load(tmp_path / "model.ibert"), ibert.quantize(saved.model)
    assert loaded.preset == "released"
    for name, array in direct.parameters.items():
        np.testing.assert_array_equal(loaded.parameters[name], array)
    _, printed = command("inspect", "model.ibert")
    assert "source the checkpoint's training, ranges 26, force_dequant none" in printed.out


def test_ranges_that_are_missing_end_the_command(checkpoint, command, tmp_path):
    source = copy.deepcopy(checkpoint(num_hidden_layers=2, type_vocab_size=1).source)
    act = quant_acts(source)["encoder.layer.1.pre_output_act"]
    act.x_min.fill_(-1e-5)
    act.x_max.fill_(1e-5)
    source.save_pretrained(tmp_path / "checkpoint")
    code, printed = command("quantize", "checkpoint", "-o", "model.ibert")
    assert code == 3
    assert "1 of 26 ranges of the checkpoint were never calibrated" in printed.err
    assert not (tmp_path / "model.ibert").exists()


def test_inspect_shows_the_import(checkpoint, command):
    saved = checkpoint(num_hidden_layers=2, type_vocab_size=1, force_dequant="softmax")
    code, printed = command("inspect", saved.folder, "--json")
    assert code == 0, printed.err
    document = json.loads(printed.out)
    assert document["report"]["source"] == (
        "transformers ibert checkpoint, trained with quantisation, force_dequant softmax"
    )
    assert len(document["info"]["notes"]) == 2
    assert 0 < document["verified_error"] < 1e-4
