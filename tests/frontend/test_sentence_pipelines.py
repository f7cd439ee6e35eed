"""Sentence-transformers folders: what every module computes, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ibert_tvm.frontend import ModelSourceError, load
from ibert_tvm.frontend.model import CanonicalModel
from ibert_tvm.frontend.sentence_pipeline import read_pipeline
from tests.frontend.imports import ops, run, verified
from tests.frontend.sentence_folders import (
    CHANNELS,
    MODELS,
    NORMALIZE,
    POOLINGS,
    TRANSFORMER,
    dense,
    pooled,
    pooling,
    random_weights,
    save,
    save_modules,
)

SPARSE = "sentence_transformers.sparse_encoder.models."


def tokens_of(seed: int = 0) -> dict[str, torch.Tensor]:
    """A whole row, padding behind, padding in front, and a hole."""
    ids = torch.randint(2, 61, (4, 9), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(ids)
    mask[1, 5:], mask[2, :3], mask[3, 4] = 0, 0, 0
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}


def agrees(loaded: CanonicalModel, tokens: dict[str, torch.Tensor], wanted: torch.Tensor) -> None:
    inputs = {name: tokens[name].numpy() for name in loaded.info.inputs}
    np.testing.assert_allclose(run(loaded, inputs), wanted.numpy(), atol=1e-5)


def hidden_of(model: Any, tokens: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        return model(**tokens)[0]


@pytest.mark.slow
@pytest.mark.parametrize("mode", POOLINGS)
def test_every_pooling_is_what_the_package_computes(mode, tmp_path):
    model, tokens = save(tmp_path, [TRANSFORMER, pooling(mode)]), tokens_of()
    loaded = load(tmp_path, verify=False)
    assert loaded.info.head == "sentence_embedding"
    wanted = pooled(mode, hidden_of(model, tokens), tokens["attention_mask"])
    agrees(loaded, tokens, wanted)


def test_the_default_is_the_whole_pipeline(tmp_path):
    layer = dense(2 * CHANNELS, 12)
    norm = (f"{MODELS}LayerNorm", "3_LayerNorm", {"dimension": 12})
    drop = (f"{MODELS}Dropout", "4_Dropout", {"dropout": 0.1})
    steps = [TRANSFORMER, pooling("mean", "max"), layer, norm, drop, NORMALIZE]
    model, tokens = save(tmp_path, steps), tokens_of()
    loaded = verified(tmp_path)
    assert (loaded.info.head, loaded.info.notes) == ("sentence_transformer", ())
    assert [(o.name, o.kind) for o in loaded.info.outputs] == [("sentence_embedding", "embedding")]
    hidden, mask = hidden_of(model, tokens), tokens["attention_mask"]
    x = torch.cat([pooled(mode, hidden, mask) for mode in ("max", "mean")], 1)
    weights = random_weights("Dense", layer[2]) | random_weights("LayerNorm", norm[2])
    x = torch.tanh(x @ weights["linear.weight"].T + weights["linear.bias"])
    x = torch.nn.functional.layer_norm(x, (12,), weights["norm.weight"], weights["norm.bias"])
    wanted = torch.nn.functional.normalize(x, p=2, dim=1)
    agrees(loaded, tokens, wanted)


@pytest.mark.slow
def test_the_pooling_alone_can_be_chosen(tmp_path):
    model, tokens = save(tmp_path, [TRANSFORMER, pooling("mean"), NORMALIZE]), tokens_of()
    loaded = load(tmp_path, head="sentence_embedding", verify=False)
    assert loaded.info.notes == (
        "the source computes more of its embeddings; head='sentence_transformer' has it",
    )
    wanted = pooled("mean", hidden_of(model, tokens), tokens["attention_mask"])
    agrees(loaded, tokens, wanted)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("linear.Identity", torch.nn.Identity()),
        ("activation.ReLU", torch.relu),
        ("activation.GELU", torch.nn.functional.gelu),
        ("activation.SiLU", torch.nn.functional.silu),
        ("activation.Sigmoid", torch.sigmoid),
    ],
)
def test_functions_of_dense_layers(name, function, tmp_path):
    layer = dense(CHANNELS, 8, name, bias=False)
    model, tokens = save(tmp_path, [TRANSFORMER, pooling("cls"), layer]), tokens_of()
    weights = random_weights("Dense", layer[2])
    torch.save(weights, tmp_path / "2_Dense" / "pytorch_model.bin")
    (tmp_path / "2_Dense" / "model.safetensors").unlink()
    wanted = function(hidden_of(model, tokens)[:, 0] @ weights["linear.weight"].T)
    agrees(load(tmp_path, verify=False), tokens, wanted)


@pytest.mark.slow
def test_late_interaction_gives_a_unit_vector_per_token(tmp_path):
    _, place, config = dense(CHANNELS, 16, "linear.Identity", bias=False, use_residual=False)
    layer = ("pylate.models.Dense.Dense", place, config)
    model, tokens = save(tmp_path, [TRANSFORMER, layer]), tokens_of()
    settings = {"query_prefix": "[Q] ", "document_prefix": "[D] ", "prompts": {"query": "[Q] a"}}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(settings))
    loaded = load(tmp_path)
    assert [(o.name, o.kind) for o in loaded.info.outputs] == [("token_embeddings", "hidden_state")]
    assert loaded.info.prompts == {"query": "[Q] a", "document": "[D] "}
    assert loaded.info.notes[-1].startswith("queries are not expanded")
    x = hidden_of(model, tokens) @ random_weights("Dense", config)["linear.weight"].T
    wanted = torch.nn.functional.normalize(x, p=2, dim=-1).numpy()
    inputs = {name: tokens[name].numpy() for name in loaded.info.inputs}
    real = inputs["attention_mask"] != 0
    np.testing.assert_allclose(run(loaded, inputs)[real], wanted[real], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("task", [None, "fill-mask"])
def test_splade_weighs_the_vocabulary(task, tmp_path):
    first = (f"{SPARSE}MLMTransformer", "", {}) if task is None else TRANSFORMER
    last = (f"{SPARSE}SpladePooling", "1_SpladePooling", {"pooling_strategy": "max"})
    model, tokens = save(tmp_path, [first, last], head="masked_lm"), tokens_of()
    if task is not None:
        document = json.dumps({"transformer_task": task})
        (tmp_path / "sentence_bert_config.json").write_text(document)
    loaded = load(tmp_path)
    # The logarithm is taken of one row of the vocabulary, not of every token's.
    assert ops(loaded)[-3:] == ["linear", "max_pool", "log1p_relu"]
    logits = hidden_of(model, tokens)
    weighed = torch.log1p(torch.relu(logits)) * tokens["attention_mask"].unsqueeze(-1)
    wanted = torch.max(weighed, dim=1).values
    agrees(loaded, tokens, wanted)


@pytest.mark.slow
def test_prompts_are_kept_and_cannot_be_left_out_of_a_pooling(tmp_path, messages):
    save(tmp_path, [TRANSFORMER, pooling("mean")])
    document = {"prompts": {"query": "query: ", "document": ""}}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(document))
    assert load(tmp_path, verify=False).info.prompts == {"query": "query: "}
    kind, place, config = pooling("mean")
    save(tmp_path, [TRANSFORMER, (kind, place, config | {"include_prompt": False})])
    with messages.raises(ModelSourceError):
        load(tmp_path)


REFUSALS: dict[str, list[Any]] = {
    "unknown module": [TRANSFORMER, (f"{MODELS}LSTM", "1_LSTM", {"hidden_dim": 3})],
    "code of its own": [TRANSFORMER, ("os.system", "1_Pooling", {})],
    "no transformer": [(f"{MODELS}WordEmbeddings", "", {})],
    "unknown pooling": [TRANSFORMER, (f"{MODELS}Pooling", "1_Pooling", {"pooling_mode": "median"})],
    "no pooling": [TRANSFORMER, (f"{MODELS}Pooling", "1_Pooling", {"include_prompt": True})],
    "two poolings": [TRANSFORMER, pooling("mean"), pooling("mean")],
    "a function to import": [TRANSFORMER, pooling("mean"), dense(CHANNELS, 8, "../../os.system")],
    "a size": [TRANSFORMER, pooling("mean"), dense(CHANNELS, 8, in_features=2**40)],
    "a residual": [TRANSFORMER, pooling("mean"), dense(CHANNELS, 8, use_residual=True)],
    "another input": [
        TRANSFORMER,
        pooling("mean"),
        dense(CHANNELS, 8, module_input_name="token_embeddings"),
    ],
    "a sum over the vocabulary": [
        (f"{SPARSE}MLMTransformer", "", {}),
        (f"{SPARSE}SpladePooling", "1_SpladePooling", {"pooling_strategy": "sum"}),
    ],
    "another logarithm": [
        (f"{SPARSE}MLMTransformer", "", {}),
        (f"{SPARSE}SpladePooling", "1_SpladePooling", {"activation_function": "log1p_relu"}),
    ],
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_is_not_computed_is_refused(name, plain, tmp_path, messages):
    for file in plain.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    for _, place, config in REFUSALS[name]:
        (tmp_path / place).mkdir(exist_ok=True)
        if place:
            (tmp_path / place / "config.json").write_text(json.dumps(config))
    listed = [{"type": kind, "path": place} for kind, place, _ in REFUSALS[name]]
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    with messages.raises(ModelSourceError):
        load(tmp_path)


SETTINGS: dict[str, dict[str, Any]] = {
    "another name": {"module_output_name": ["sentence_embedding"]},
    "another output": {"modality_config": {"text": {"method_output_name": ["a", "b"]}}},
    "another method": {"modality_config": {"text": {"method": "get_text_features"}}},
    "another task": {"transformer_task": ["retrieval"]},
    "other arguments": {"config_args": {"num_hidden_layers": 1, "unpad_inputs": True}},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_that_change_the_output_are_refused(name, tmp_path, messages):
    save_modules(tmp_path, [TRANSFORMER, pooling("mean")])
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps(SETTINGS[name]))
    (tmp_path / "config.json").write_text("{}")
    with messages.raises(ModelSourceError):
        read_pipeline(tmp_path, json.loads((tmp_path / "modules.json").read_text()))


@pytest.mark.slow
def test_the_transformer_alone_can_be_chosen(tmp_path):
    save(tmp_path, [TRANSFORMER, (f"{MODELS}LSTM", "1_LSTM", {"hidden_dim": 3})])
    assert load(tmp_path, head="none", verify=False).info.head == "none"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    save(folder, [])
    return folder


def test_weights_of_another_layer_are_refused(tmp_path, messages):
    save(tmp_path, [TRANSFORMER, pooling("mean"), dense(CHANNELS, 8)])
    file = tmp_path / "2_Dense" / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "bias": False}))
    with messages.raises(ModelSourceError):
        load(tmp_path)
    file.write_text(json.dumps({**config, "out_features": 9}))
    with messages.raises(ModelSourceError):
        load(tmp_path)


def test_sizes_that_are_only_claimed_take_no_memory(tmp_path, messages):
    """Fuzzing found it: four terabytes were asked for before the file was looked at."""
    module = dense(CHANNELS, 8)
    save(tmp_path, [TRANSFORMER, pooling("mean"), module])
    config = {**module[2], "in_features": 2**20, "out_features": 2**20}
    (tmp_path / module[1] / "config.json").write_text(json.dumps(config))
    with messages.raises(ModelSourceError):
        load(tmp_path)
