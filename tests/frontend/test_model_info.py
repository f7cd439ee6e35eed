"""ModelInfo survives JSON and refuses what it cannot mean."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from ibert_tvm.common.errors import DocumentError
from ibert_tvm.model.model_info import ModelInfo, OutputInfo

INFO = ModelInfo(
    architecture="bert",
    head="sequence_classification",
    inputs=("input_ids", "attention_mask"),
    outputs=(OutputInfo("logits", "classifier", "logits"),),
    hidden_size=32,
    num_layers=2,
    vocab_size=61,
    type_vocab_size=2,
    max_sequence_length=None,
    pad_token_id=1,
    id2label={0: "no", 1: "yes"},
    source="/models/x",
    source_sha256="00",
    description="a test",
    tokenizer_files=("vocab.txt",),
    notes=("mind the gap",),
    prompts={"query": "find: "},
    default_prompt_name="query",
)


def test_json_round_trip():
    assert ModelInfo.from_json(json.loads(json.dumps(INFO.to_json()))) == INFO


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"head": "regression"}, ValueError, "unknown head 'regression'; allowed: "
         "image_classification, none, pooled, question_answering, sentence_embedding, "
         "sentence_transformer, sequence_classification, token_classification"),
        ({"hidden_size": -1}, ValueError, "hidden_size is -1, but sizes are not negative"),
        ({"outputs": []}, ValueError, "a model has at least one input and one output"),
        ({"prompts": {}}, ValueError, "there is no prompt 'query', the default"),
        ({"static_shape": [1]}, ValueError,
         "static_shape is (1,): batch and length are needed"),
        (
            {"outputs": [{"name": "a", "value": "b", "kind": "c"}]},
            ValueError,
            "unknown output kind 'c'; allowed: hidden_state, pooled, embedding, logits, "
            "token_logits, span_logits",
        ),
    ],
)  # fmt: skip
def test_bad_documents(change, error, message):
    with pytest.raises(error) as caught:
        ModelInfo.from_json({**INFO.to_json(), **change})
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("change", "where", "what"),
    [
        ({"hidden_size": "32"}, ".hidden_size", 'it is "32"; an integer is needed'),
        ({"vocab_size": True}, ".vocab_size", "it is true; an integer is needed"),
        ({"source": None}, ".source", "it is null; a string is needed"),
        ({"inputs": "ids"}, ".inputs", 'it is "ids"; a list is needed'),
        ({"max_sequence_length": 1.5}, ".max_sequence_length",
         "it is 1.5; an integer or null is needed"),
        ({"prompts": {"query": 1}}, ".prompts.query", "it is 1; a string is needed"),
        ({"id2label": {"one": "x"}}, ".id2label",
         'it is {"one": "x"}; an object of strings by number is needed'),
        ({"colour": 1}, "", "unknown fields: colour"),
        ({"architecture": ...}, "", "the key 'architecture' is missing"),
    ],
)  # fmt: skip
def test_fields_that_are_missing_unknown_or_of_another_type(change, where, what):
    document = {**INFO.to_json(), **change}
    with pytest.raises(DocumentError) as caught:
        ModelInfo.from_json({key: value for key, value in document.items() if value is not ...})
    assert (caught.value.where, caught.value.what) == (f"info{where}", what)


def test_importing_the_frontend_imports_neither_tvm_nor_torch():
    code = (
        "import sys, ibert_tvm.frontend, ibert_tvm.model.model_info; "
        "print(sorted({'tvm', 'torch', 'transformers'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
