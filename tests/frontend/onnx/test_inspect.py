"""The command line on ONNX files: what an import matches is shown before anything is quantised."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.commands import Ibert

from .graphs import VOCABULARY, Graph

WORDS = [f"w{i}" for i in range(VOCABULARY - 5)]


def encoder(activation: str = "Relu") -> onnx.ModelProto:
    g = Graph(opset=17)
    x = g.attention(g.layer_norm(g.words(), "first"), g.additive_mask)
    x = g.op(activation, g.linear(x, "up"), name="layer0/act")
    return g.model(g.layer_norm(g.linear(x, "down"), "norm"), names=("last_hidden_state",))


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(encoder(), path)
    return path


@pytest.fixture
def tokenizer(tmp_path) -> Path:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(words))
    return folder


Command = Ibert


DIFFERENCE = re.compile(r"(?<=difference from the source )\S+")


def test_inspect_shows_what_was_matched(ibert: Command, file, monkeypatch, messages):
    monkeypatch.setenv("COLUMNS", "300")  # the path of a test may be longer than a line
    brief = ibert("inspect", file).stdout.splitlines()
    assert brief[-1].endswith("foldings: --all shows each")
    outcome = ibert("inspect", file, "--all")
    assert outcome.stdout.startswith("\n".join(brief[:-1]))
    assert (outcome.code, outcome.stderr) == (0, "")
    lines = [line.rstrip() for line in outcome.stdout.splitlines()]
    messages.check("\n".join(lines), difference=DIFFERENCE)


def test_inspect_as_json(ibert: Command, file):
    document = ibert("inspect", file, "--json").document
    assert (document["kind"], document["supported"]) == ("source model", True)
    assert document["info"]["inputs"] == ["input_ids", "attention_mask"]
    report = document["report"]
    relu = next(item for item in report["matched"] if item["op"] == "canonical.relu")
    assert relu == {
        "op": "canonical.relu",
        "name": "up.relu",
        "source_ops": ["Relu"],
        "nodes": ["layer0/act"],
    }
    # Tensors of the file that show the value.
    assert {"tensor": "layer0/act.out", "value": "up.relu", "factor": 1.0} in report["tensors"]
    names = [item["tensor"] for item in report["tensors"] if item["value"] == "norm"]
    assert names[-1] == "last_hidden_state"


@pytest.mark.representatives(1)
def test_a_refused_model_shows_everything_up_to_the_refusal(
    ibert: Command, file, monkeypatch, messages
):
    monkeypatch.setenv("COLUMNS", "300")
    onnx.save(encoder("Softplus"), file)
    outcome = ibert("inspect", file)
    assert (outcome.code, outcome.stderr) == (3, "")
    messages.check("\n".join(line.rstrip() for line in outcome.stdout.splitlines()))
    document = ibert("inspect", file, "--json").document
    assert document["supported"] is False
    assert [item["name"] for item in document["report"]["matched"]][-2:] == ["self", "up"]
    messages.check(json.dumps([document["report"]["refusals"], document["error"]], indent=1))


def test_inspect_takes_names_of_inputs(ibert: Command, tmp_path, messages):
    g = Graph(inputs=("tokens", "attention_mask"))
    g.nodes.append(onnx.helper.make_node("Identity", ["tokens"], ["input_ids"]))
    file = tmp_path / "model.onnx"
    onnx.save(g.model(g.linear(g.words(), "dense")), file)
    outcome = ibert("inspect", file, "--input", "tokens=input_ids")
    assert outcome.code == 0
    outcome = ibert("inspect", file, "--input", "tokens")
    assert outcome.code == 2
    messages.check(outcome.stderr)


@pytest.mark.slow
def test_token_arrays_calibrate_without_a_tokenizer(ibert: Command, file, tmp_path, messages):
    random = np.random.default_rng(0)
    arrays = tmp_path / "batches.npz"
    ids = random.integers(0, VOCABULARY, (20, 12))
    np.savez(arrays, input_ids=ids, attention_mask=np.ones_like(ids))
    output = tmp_path / "model.ibert"
    outcome = ibert("quantize", file, "-o", output, "--calibration", arrays, "--json")
    assert outcome.code == 0
    assert outcome.document["calibration_texts"] == 20
    document = json.loads((output / "quantization.json").read_text())
    assert document["info"]["architecture"] == "onnx"
    assert document["calibration"]["sequences"] == 20
    # Texts need a tokenizer, which neither file has.
    outcome = ibert("quantize", file, "-o", output)
    assert outcome.code == 2
    messages.check(outcome.stderr)


@pytest.mark.slow
def test_quantise_with_a_tokenizer_and_evaluate(ibert: Command, file, tokenizer, tmp_path):
    texts = tmp_path / "texts.txt"
    random = np.random.default_rng(1)
    texts.write_text("\n".join(" ".join(random.choice(WORDS, 9)) for _ in range(12)))
    output = tmp_path / "model.ibert"
    outcome = ibert(
        "quantize", file, "-o", output, "--tokenizer", tokenizer, "--calibration", texts
    )
    assert outcome.code == 0
    assert (output / "tokenizer" / "tokenizer.json").is_file()
    outcome = ibert("eval", output, "--against", file, "--text", texts, "--seq-len", 16, "--json")
    assert outcome.code == 0
    assert outcome.document["cosine_mean"] > 0.99
