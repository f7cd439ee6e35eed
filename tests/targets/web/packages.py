"""A small model as a package for browsers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import ibert_tvm as ibert
from ibert_tvm.model.artefact import QuantizedModel
from tests.arm.packages import inputs_for
from tests.arm.tools import board, needs
from tests.c_tokenizer.forms import word_piece
from tests.cache import compiled_once, quantised_once
from tests.random_models import random_bert

VOCABULARY, SHAPES = 1000, ((1, 8), (2, 16))


@quantised_once
def tiny_bert() -> QuantizedModel:
    """One layer, 32 wide."""
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 1}
    model = random_bert(12, 0.15, model={"add_pooling_layer": False}, **sizes)
    canonical = ibert.load(model, head="sentence_embedding", verify=False)
    batches = [inputs_for([*canonical.info.inputs], 16, seed, VOCABULARY) for seed in range(2)]
    made = ibert.quantize(canonical, calibration=batches)
    return replace(made, tokenizer={"tokenizer.json": json.dumps(word_piece()).encode()})


@quantised_once
def tiny_reranker() -> QuantizedModel:
    """A cross-encoder of that size, with one score for a pair."""
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 1}
    model = random_bert(13, 0.15, "BertForSequenceClassification", num_labels=1, **sizes)
    canonical = ibert.load(model, verify=False)
    batches = [inputs_for([*canonical.info.inputs], 16, seed, VOCABULARY) for seed in range(2)]
    made = ibert.quantize(canonical, calibration=batches)
    return replace(made, tokenizer={"tokenizer.json": json.dumps(word_piece()).encode()})


def tiny_package(pairs: bool = False) -> Path:
    """The package of a tiny model; skips without the tools, see `tests.arm.tools.needs`."""
    board("wasm32")
    needs("wasm-ld-14")
    model = tiny_reranker() if pairs else tiny_bert()
    return compiled_once(model, "wasm32", SHAPES, tokenizer=True)
