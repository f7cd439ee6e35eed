"""`ibert quantize` and `ibert inspect` on an `ibert` folder."""

from __future__ import annotations

import copy
import json
import subprocess
import sys

import numpy as np
import pytest

import ibert_tvm as ibert
from tests.ibert_checkpoint.checkpoints import quant_acts


@pytest.fixture
def command(tmp_path):
    def run(*arguments):
        words = [sys.executable, "-m", "ibert_tvm", *map(str, arguments)]
        return subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=False)

    return run


def test_a_checkpoint_is_quantised_without_calibration(checkpoint, command, tmp_path):
    saved = checkpoint(num_hidden_layers=2, type_vocab_size=1)
    result = command("quantize", saved.folder, "-o", "model.ibert", "--json")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert (document["preset"], document["calibration_texts"]) == ("released", 0)
    assert document["notes"] == []
    from ibert_tvm.artefact import QuantizedModel

    loaded, direct = QuantizedModel.load(tmp_path / "model.ibert"), ibert.quantize(saved.model)
    assert loaded.preset == "released"
    for name, array in direct.parameters.items():
        np.testing.assert_array_equal(loaded.parameters[name], array)
    shown = command("inspect", "model.ibert")
    assert "source the checkpoint's training, ranges 26, force_dequant none" in shown.stdout


def test_ranges_that_are_missing_end_the_command(checkpoint, command, tmp_path):
    source = copy.deepcopy(checkpoint(num_hidden_layers=2, type_vocab_size=1).source)
    act = quant_acts(source)["encoder.layer.1.pre_output_act"]
    act.x_min.fill_(-1e-5)
    act.x_max.fill_(1e-5)
    source.save_pretrained(tmp_path / "checkpoint")
    result = command("quantize", "checkpoint", "-o", "model.ibert")
    assert result.returncode == 3
    assert "1 of 26 ranges of the checkpoint were never calibrated" in result.stderr
    assert not (tmp_path / "model.ibert").exists()


def test_inspect_shows_the_import(checkpoint, command):
    saved = checkpoint(num_hidden_layers=2, type_vocab_size=1, force_dequant="softmax")
    result = command("inspect", saved.folder, "--json")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["report"]["source"] == (
        "transformers ibert checkpoint, trained with quantisation, force_dequant softmax"
    )
    assert len(document["info"]["notes"]) == 2
    assert 0 < document["verified_error"] < 1e-4
