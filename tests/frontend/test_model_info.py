"""ModelInfo survives JSON and refuses what it cannot mean."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

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
        ({"hidden_size": "32"}, TypeError, "hidden_size must be an integer"),
        ({"vocab_size": True}, TypeError, "vocab_size must be an integer"),
        ({"source": None}, TypeError, "source must be a string"),
        ({"inputs": "input_ids"}, TypeError, "inputs must be a list of strings"),
        ({"outputs": []}, ValueError, "a model has at least one input and one output"),
        ({"max_sequence_length": 1.5}, TypeError, "max_sequence_length must be an integer or null"),
        ({"prompts": {"query": 1}}, TypeError, "prompts must be an object of strings"),
        ({"prompts": {}}, ValueError, "there is no prompt 'query', the default"),
        ({"colour": 1}, ValueError, "unknown fields: colour"),
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


def test_missing_fields_and_other_types():
    document = INFO.to_json()
    del document["architecture"]
    with pytest.raises(KeyError) as error:
        ModelInfo.from_json(document)
    assert error.value.args == ("architecture",)
    with pytest.raises(TypeError) as wrong:
        ModelInfo.from_json([])
    assert str(wrong.value) == "a JSON object was expected, not list"


def test_importing_the_frontend_imports_neither_tvm_nor_torch():
    code = (
        "import sys, ibert_tvm.frontend, ibert_tvm.model.model_info; "
        "print(sorted({'tvm', 'torch', 'transformers'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
