"""Scores of imported models, compared with the libraries that the models are made for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from ibert_tvm import load
from ibert_tvm.frontend.errors import ModelSourceError, UnsupportedModelError
from ibert_tvm.frontend.post_processing import check_scores, read_post_processing
from ibert_tvm.model.model_info import PostProcessing
from ibert_tvm.model.scores import ranked_documents
from tests.extras import needs
from tests.frontend.sentence_folders import TRANSFORMER, pooling, save
from tests.frontend.test_model_info import INFO
from tests.runtime.conftest import VOCABULARY
from tests.snapshots import Messages

SIGMOID = "torch.nn.modules.activation.Sigmoid"
IDENTITY = "torch.nn.modules.linear.Identity"
OLD, NEW, NEWEST = "old", "new", "newest"
"""Where a folder says what makes scores, by the age of sentence-transformers."""


def reranker(folder: Path, place: str | None, function: str | None) -> Path:
    """A cross-encoder that names its function in one of three places."""
    save(folder, [TRANSFORMER], head="reranker")
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY), encoding="utf-8")
    config = json.loads((folder / "config.json").read_text())
    settings = {"model_type": "CrossEncoder", "prompts": {"query": "big "}}
    if place == NEWEST:
        config["sentence_transformers"] = {"activation_fn": "torch.nn.modules.activation.Tanh"}
        settings |= {"activation_fn": function, "default_prompt_name": "query"}
        (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
        (folder / "sentence_bert_config.json").write_text(
            '{"transformer_task": "sequence-classification", "module_output_name": "scores", '
            '"modality_config": {"text": {"method": "forward", "method_output_name": "logits"}}}'
        )
        listed = json.loads((folder / "modules.json").read_text())
        listed[0]["type"] = "sentence_transformers.base.modules.transformer.Transformer"
        (folder / "modules.json").write_text(json.dumps(listed))
    else:
        (folder / "modules.json").unlink()
    if place == NEW:
        config["sentence_transformers"] = {"activation_fn": function, "version": "4.1.0"}
    elif place == OLD:
        config["sbert_ce_default_activation_function"] = function
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.slow  # importing sentence-transformers takes seconds
@pytest.mark.parametrize(
    ("place", "function", "read"),
    [
        (None, None, None),
        (OLD, IDENTITY, "none"),
        (OLD, SIGMOID, "sigmoid"),
        (NEW, IDENTITY, "none"),
        (NEW, None, None),
        (NEWEST, IDENTITY, "none"),
        (NEWEST, None, "tanh"),
    ],
)
def test_a_cross_encoder_keeps_its_function(
    tmp_path: Path, place: str | None, function: str | None, read: str | None
) -> None:
    needs("sentence_transformers")
    from sentence_transformers import CrossEncoder

    folder = reranker(tmp_path, place, function)
    model = load(folder, verify=False)
    assert model.info.post_processing.pairs == read
    source = CrossEncoder(str(folder), device="cpu", local_files_only=True)
    raw = source.predict(
        [("hello", text) for text in ("big", "small", "big world", "world")],
        activation_fn=lambda scores: scores,
    )
    texts = ["big", "small", "big world", "world"]
    wanted = source.rank("hello", texts)
    found = ranked_documents(np.asarray(raw)[:, None], model.info.post_processing.pairs)
    assert [place for place, _ in found] == [one["corpus_id"] for one in wanted]
    np.testing.assert_allclose(
        [score for _, score in found], [one["score"] for one in wanted], atol=1e-6
    )
    assert model.info.prompts == {name: text for name, text in source.prompts.items() if text}
    assert model.info.default_prompt_name == source.default_prompt_name
    config = transformers.AutoConfig.from_pretrained(folder)
    settings = folder / "config_sentence_transformers.json"
    check_scores(model.info, config, json.loads(settings.read_text()) if settings.is_file() else {})


@pytest.mark.parametrize(
    "function",
    ["builtins.exec", "torch.nn.functional.gelu", "my_model.Sigmoid", "Sigmoid", "torch.nn.GELU"],
)
def test_another_function_is_refused_by_its_name(function: str, messages: Messages) -> None:
    config = {"sentence_transformers": {"activation_fn": function}}
    with messages.raises(ModelSourceError):
        read_post_processing(config, {}, "sequence_classification", "model")
    assert read_post_processing(config, {}, "none", "model") == {}


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, PostProcessing()),
        ({"similarity_fn_name": "cosine"}, PostProcessing()),
        ({"similarity_fn_name": "euclidean", "truncate_dim": 8}, PostProcessing(
            similarity="euclidean", dimensions=8)),
        ({"model_type": "SparseEncoder", "max_active_dims": 4}, PostProcessing(
            similarity="dot", active=4)),
        ({"model_type": "ColBERT", "similarity_fn_name": "MaxSim"}, PostProcessing(
            similarity="maxsim")),
        ({"similarity_fn_name": "maxsim"}, PostProcessing()),
    ],
    ids=str,
)  # fmt: skip
def test_settings_of_vectors(settings: dict[str, Any], wanted: PostProcessing) -> None:
    found = read_post_processing({}, settings, "sentence_transformer", "model")
    assert found["post_processing"] == wanted
    pooled = read_post_processing({}, settings, "sentence_embedding", "model")["post_processing"]
    assert pooled == (PostProcessing() if wanted.similarity == "maxsim" else wanted)


@pytest.mark.parametrize("said", [0.3, [0.3, 0.7], {"no": 0.3, "yes": 0.7}, "high", [0.3]], ids=str)
def test_thresholds_are_those_that_the_folder_states(said: Any) -> None:
    config = {"id2label": {"0": "no", "1": "yes"}, "threshold": said}
    found = read_post_processing(config, {}, "sequence_classification", "model")
    high = 0.3 if said == 0.3 else 0.7
    wanted = {} if said in ("high", [0.3]) else {"no": 0.3, "yes": high}
    assert found["post_processing"].thresholds == wanted


@pytest.mark.slow
def test_vectors_are_those_of_sentence_transformers(tmp_path: Path) -> None:
    needs("sentence_transformers")
    from sentence_transformers import SentenceTransformer

    save(tmp_path, [TRANSFORMER, pooling("mean")])
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY), encoding="utf-8")
    settings = {
        "prompts": {"find": "hello "}, "default_prompt_name": "find",
        "similarity_fn_name": "manhattan", "truncate_dim": 8,
    }  # fmt: skip
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(settings))
    source = SentenceTransformer(str(tmp_path), device="cpu", local_files_only=True)
    info = load(tmp_path, verify=False).info
    known = info.post_processing
    assert (known.similarity, known.dimensions) == (source.similarity_fn_name, source.truncate_dim)
    assert info.default_prompt_name == source.default_prompt_name
    assert info.prompts == {name: text for name, text in source.prompts.items() if text}


def test_a_default_prompt_that_does_not_exist(messages: Messages) -> None:
    for default in ("title", ["query"]):
        settings = {"prompts": {"query": "q: "}, "default_prompt_name": default}
        with messages.raises(ModelSourceError):
            read_post_processing({}, settings, "sentence_embedding", "model")


def test_a_configuration_that_transformers_refuses(messages: Messages) -> None:
    config = {"id2label": {"0": "a"}, "problem_type": "single_label_classification"}
    with messages.raises(ModelSourceError):
        check_scores(INFO, config, {})


@pytest.mark.slow
@pytest.mark.representatives(1)
@pytest.mark.parametrize("kind", ["classes", "pairs"])
def test_a_difference_from_the_library_is_refused(
    tmp_path: Path, kind: str, messages: Messages
) -> None:
    if kind == "pairs":
        needs("sentence_transformers")
    model = load(reranker(tmp_path, NEW, IDENTITY))  # compared, and equal
    wrong = replace(model.info.post_processing, **{kind: "relu"})
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    with messages.raises(UnsupportedModelError):
        check_scores(replace(model.info, post_processing=wrong), config, {})
