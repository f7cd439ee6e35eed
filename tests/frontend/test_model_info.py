"""ModelInfo survives JSON and refuses what it cannot mean."""

from __future__ import annotations

import json
import sys

import pytest

from ibert_tvm.common.errors import DocumentError
from ibert_tvm.model.model_info import ModelInfo, OutputInfo
from tests.processes import run_captured

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
    "change",
    [
        {"head": "regression"},
        {"hidden_size": -1},
        {"hidden_size": "32"},
        {"vocab_size": True},
        {"source": None},
        {"inputs": "ids"},
        {"outputs": []},
        {"outputs": [{"name": "a", "value": "b", "kind": "c"}]},
        {"max_sequence_length": 1.5},
        {"static_shape": [1]},
        {"id2label": {"one": "x"}},
        {"prompts": {"query": 1}},
        {"prompts": {}},
        {"colour": 1},
        {"architecture": ...},
    ],
    ids=str,
)
def test_bad_documents(change, messages):
    document = {**INFO.to_json(), **change}
    with messages.raises((DocumentError, ValueError)):
        ModelInfo.from_json({key: value for key, value in document.items() if value is not ...})


def test_importing_the_frontend_imports_neither_tvm_nor_torch():
    code = (
        "import sys, ibert_tvm.frontend, ibert_tvm.model.model_info; "
        "print(sorted({'tvm', 'torch', 'transformers'} & set(sys.modules)))"
    )
    result = run_captured([sys.executable, "-c", code], check=True)
    assert result.stdout.strip() == "[]"
