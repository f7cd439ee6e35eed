"""Folders that are imported from their weights: exactly what tracing them with transformers gives.

Both ways are compared in the program, the bits of the weights, and everything that is known of the
model; whatever only transformers knows is left to it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from ibert_tvm.frontend import ModelSourceError, transformers_import
from ibert_tvm.frontend.encoder_families import FAMILIES, NeedsTransformersError
from ibert_tvm.frontend.encoder_folder import import_encoder
from ibert_tvm.frontend.hf_folder import HfFolder
from ibert_tvm.frontend.model import CanonicalModel
from tests.examples import examples
from tests.frontend.architectures import CONFIGS, make
from tests.frontend.sentence_folders import (
    CHANNELS,
    MODELS,
    NORMALIZE,
    POOLINGS,
    TRANSFORMER,
    dense,
    pooling,
    save,
)
from tests.frontend.test_folders import configured

HEADS = (
    *("none", "pooled", "sentence_embedding"),
    *("sequence_classification", "token_classification", "question_answering"),
)
COPIES = ("xlm-roberta", "camembert")
CASES = [
    (architecture, head)
    for architecture in CONFIGS
    for head in HEADS
    if FAMILIES[architecture].steps(head) is not None
    and (architecture not in COPIES or head == "sequence_classification")
]
DEFAULT = (("bert", "none"), ("distilbert", "sequence_classification"))


def assert_same(folder: Path, head: str | None = None) -> CanonicalModel:
    """Import a folder both ways; all that differs is the report, and whether it was compared."""
    direct = import_encoder(HfFolder.read(folder), head)
    traced = transformers_import.import_folder(HfFolder.read(folder), head, verify=True)
    assert traced.verified_error is not None and traced.verified_error <= 1e-5
    assert str(direct.module) == str(traced.module)
    assert [*direct.parameters] == [*traced.parameters]
    for name, array in direct.parameters.items():
        assert array.dtype == traced.parameters[name].dtype == np.float32
        assert array.tobytes() == traced.parameters[name].tobytes(), name
    names = {field.name for field in fields(direct)}
    for name in names - {"module", "parameters", "report", "verified_error"}:
        assert getattr(direct, name) == getattr(traced, name), name
    assert direct.report.foldings == traced.report.foldings
    said = [(item.op, item.name) for item in direct.report.matched]
    assert said == [(item.op, item.name) for item in traced.report.matched]
    return direct


@pytest.mark.representatives(1)
@pytest.mark.parametrize(("architecture", "head"), examples(CASES, *DEFAULT, unpack=True))
def test_every_family_and_head(architecture, head, tmp_path):
    model = make(architecture, head, num_hidden_layers=2)
    model.save_pretrained(tmp_path)
    loaded = assert_same(tmp_path, None if head in ("none", *HEADS[3:]) else head)
    assert (loaded.info.architecture, loaded.info.head) == (architecture, head)


WIDE = {"hidden_size": 36, "num_attention_heads": 3}
VARIANTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "heads of 12 channels": ("bert", "none", WIDE),
    "one token type": ("bert", "none", {"type_vocab_size": 1}),
    "a RoBERTa with token types": ("roberta", "none", {"type_vocab_size": 2}),
    "tables as wide as layers": ("electra", "none", {"embedding_size": 32}),
    "another padding": ("roberta", "none", {"pad_token_id": 5}),
    "one class": ("bert", "sequence_classification", {"num_labels": 1}),
    "named classes": ("bert", "token_classification", {"id2label": {0: "O", 1: "B", 2: "I"}}),
    "another problem": (
        "distilbert",
        "sequence_classification",
        {"problem_type": "multi_label_classification"},
    ),
    **{
        f"activation {name}": ("bert", "none", {"hidden_act": name})
        for name in ("gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swish")
    },
    "another epsilon": ("bert", "none", {"layer_norm_eps": 1e-5}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", examples(VARIANTS, "a RoBERTa with token types"))
def test_settings_that_are_read(name, tmp_path):
    architecture, head, changes = VARIANTS[name]
    make(architecture, head, num_hidden_layers=1, **changes).save_pretrained(tmp_path)
    assert_same(tmp_path)


def renamed(folder: Path, change: Callable[[str], str]) -> None:
    file = folder / "model.safetensors"
    weights = {change(name): tensor for name, tensor in load_file(file).items()}
    save_file(weights, file, {"format": "pt"})


@pytest.mark.slow
@pytest.mark.parametrize(
    "dtype", examples((torch.float16, torch.bfloat16, torch.float64), torch.bfloat16)
)
def test_other_precisions_are_widened_as_torch_widens_them(dtype, tmp_path):
    make("bert", num_hidden_layers=1).to(dtype).save_pretrained(tmp_path)
    assert_same(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("head", ["none", "sequence_classification"])
def test_an_encoder_is_taken_out_of_a_model_with_a_head(head, tmp_path):
    make("bert", "sequence_classification", num_hidden_layers=1).save_pretrained(tmp_path)
    assert_same(tmp_path, head)


@pytest.mark.slow
def test_norms_may_have_their_first_names(tmp_path):
    make("bert", num_hidden_layers=1).save_pretrained(tmp_path)
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    for now, before in old.items():
        renamed(tmp_path, lambda name, now=now, before=before: name.replace(now, before))
    assert_same(tmp_path)


@pytest.mark.slow
def test_weights_in_several_files(tmp_path):
    make("bert", num_hidden_layers=1).save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(HfFolder.read(tmp_path).weights) > 1
    assert_same(tmp_path)


LAST = (f"{MODELS}LayerNorm", "3_LayerNorm", {"dimension": 12})
PIPELINES: dict[str, list[Any]] = {
    **{mode: [TRANSFORMER, pooling(mode)] for mode in POOLINGS},
    "normalised": [TRANSFORMER, pooling("mean"), NORMALIZE],
    "dense and norm": [TRANSFORMER, pooling("cls"), dense(CHANNELS, 12), LAST, NORMALIZE],
    **{
        f"dense {name}": [TRANSFORMER, pooling("cls"), dense(CHANNELS, 8, name, bias=bias)]
        for name, bias in (
            ("linear.Identity", False),
            ("activation.ReLU", True),
            ("activation.GELU", True),
            ("activation.SiLU", False),
        )
    },
    "late interaction": [
        TRANSFORMER,
        ("pylate.models.Dense.Dense", *dense(CHANNELS, 16, "linear.Identity", bias=False)[1:]),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", examples(PIPELINES, "dense and norm"))
def test_modules_of_sentence_transformers(name, tmp_path):
    save(tmp_path, PIPELINES[name])
    assert_same(tmp_path)


LEFT: dict[str, Callable[[Path], object]] = {
    "an unknown setting": lambda folder: configured(folder, rope_theta=10000.0),
    "a decoder": lambda folder: configured(folder, is_decoder=True),
    "a number for a truth": lambda folder: configured(folder, is_decoder=0),
    "relative positions": lambda folder: configured(folder, position_embedding_type="relative_key"),
    "an unknown activation": lambda folder: configured(folder, hidden_act="mish"),
    "a size that is text": lambda folder: configured(folder, hidden_size="32"),
    "heads that do not fit": lambda folder: configured(folder, num_attention_heads=5),
    "padding outside": lambda folder: configured(folder, pad_token_id=61),
    "a negative padding": lambda folder: configured(folder, pad_token_id=-1),
    "a larger vocabulary": lambda folder: configured(folder, vocab_size=62),
    "code": lambda folder: configured(folder, auto_map={"AutoModel": "code.Model"}),
    "packed weights": lambda folder: configured(folder, quantization_config={"bits": 4}),
    "another class": lambda folder: configured(folder, architectures=["BertForMultipleChoice"]),
    "another architecture": lambda folder: configured(folder, model_type="albert"),
    "an adapter": lambda folder: (folder / "adapter_config.json").write_text("{}"),
    "a missing weight": lambda folder: renamed(folder, lambda name: name.replace("key", "kay")),
}
HEAD_LEFT: dict[str, Callable[[Path], object]] = {
    "more classes": lambda folder: configured(folder, id2label={str(i): str(i) for i in range(4)}),
    "fewer classes": lambda folder: configured(folder, num_labels=2),
    "classes without a number": lambda folder: configured(folder, id2label={"a": "b"}),
    "an unknown problem": lambda folder: configured(folder, problem_type="ranking"),
}


def left(folder: Path, messages: Any, head: str | None = None) -> None:
    with pytest.raises(NeedsTransformersError) as caught:
        import_encoder(HfFolder.read(folder), head)
    messages.check(f"importing a Hugging Face folder {caught.value} needs torch")


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> dict[str, Path]:
    folders = {}
    for head in ("none", "sequence_classification"):
        folders[head] = tmp_path_factory.mktemp(head)
        make("bert", head, num_hidden_layers=1).save_pretrained(folders[head])
    return folders


@pytest.mark.parametrize("name", [*LEFT, *HEAD_LEFT])
def test_what_is_left_to_transformers(name, saved, tmp_path, messages):
    source = saved["none" if name in LEFT else "sequence_classification"]
    for file in source.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    {**LEFT, **HEAD_LEFT}[name](tmp_path)
    left(tmp_path, messages)


def test_heads_that_are_left_to_transformers(saved, messages):
    left(saved["none"], messages, "sequence_classification")
    left(saved["none"], messages, "sentence_transformer")


def test_more_layers_than_the_configuration_says_are_refused(tmp_path):
    make("bert", num_hidden_layers=2).save_pretrained(tmp_path)
    configured(tmp_path, num_hidden_layers=1)
    with pytest.raises(ModelSourceError, match="the checkpoint has more layers"):
        import_encoder(HfFolder.read(tmp_path), None)


@pytest.mark.parametrize("architecture", FAMILIES)
def test_settings_that_a_configuration_leaves_out(architecture):
    """They have transformers' values."""
    family, known = FAMILIES[architecture], transformers.AutoConfig.for_model(architecture)
    read = family.read({"model_type": architecture})
    for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"):
        assert getattr(read, name) == getattr(known, name)
    for name in ("intermediate_size", "hidden_act"):
        assert getattr(read, name) == getattr(known, family.settings.get(name, name))
    for name in {"max_position_embeddings", "pad_token_id", "type_vocab_size", "layer_norm_eps"}:
        if name not in family.fixed:
            assert getattr(read, name) == getattr(known, name)
    assert read.embedding_size == getattr(known, "embedding_size", None)


def test_neither_torch_nor_transformers_is_needed(saved):
    program = (
        "import sys\n"
        "sys.modules.update(torch=None, transformers=None)\n"
        "import ibert_tvm\n"
        f"print(ibert_tvm.load({str(saved['none'])!r}).info.head)"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "none"
