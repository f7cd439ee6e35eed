"""Whole models, from torch to the loaded library: bit for bit what the specification says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf

import ibert_tvm as ibert
from ibert_tvm.model.artefact import QuantizedModel
from tests.cache import quantised_once
from tests.examples import examples
from tests.integration.whole_models import (
    assert_bit_exact,
    build_library,
    minilm,
    random_inputs,
    reference,
)

SIZES = {
    "vocab_size": 90,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 56,
    "max_position_embeddings": 130,
}
DISTIL = {
    "vocab_size": 90,
    "dim": 32,
    "n_layers": 1,
    "n_heads": 4,
    "hidden_dim": 48,
    "max_position_embeddings": 130,
}
# Four architectures, four heads, both presets, both GELUs and ReLU between them.
MODELS = {
    "bert": (hf.BertConfig(**SIZES), "AutoModel", "pooled", "accurate"),
    "roberta": (
        hf.RobertaConfig(**{**SIZES, "pad_token_id": 1, "hidden_act": "gelu_new"}),
        "AutoModelForSequenceClassification",
        "sequence_classification",
        "accurate",
    ),
    "distilbert": (
        hf.DistilBertConfig(**DISTIL, activation="relu"),
        "AutoModelForTokenClassification",
        "token_classification",
        "accurate",
    ),
    "electra": (
        hf.ElectraConfig(**SIZES, embedding_size=16),
        "AutoModelForQuestionAnswering",
        "question_answering",
        "paper",
    ),
}
SHAPES = [(1, 1), (1, 17), (3, 32)]


def _model(name: str) -> tuple[torch.nn.Module, str, str]:
    config, kind, head, preset = MODELS[name]
    torch.manual_seed(7)
    model = getattr(hf, kind).from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:  # larger than the usual initialisation: differences must show
                parameter.normal_(0, 0.15)
    return model, head, preset


@quantised_once
def _quantised(name: str) -> QuantizedModel:
    model, head, preset = _model(name)
    canonical = ibert.load(model, head=head)
    names = [var.name for var in canonical.module["main"].params][: len(canonical.info.inputs)]
    batches = [random_inputs(names, 2, 24, 90, seed, padding=False) for seed in range(3)]
    return ibert.quantize(canonical, calibration=batches, preset=preset)


@pytest.mark.slow_cases(1)
@pytest.mark.parametrize("name", examples(MODELS, otherwise="record", slow=["roberta", "electra"]))
def test_random_models_are_bit_exact(name: str, tmp_path: Path) -> None:
    quantized = _quantised(name)
    names = list(quantized.input_names)
    library = build_library(quantized, SHAPES, tmp_path)
    for batch, seq_len in SHAPES:
        for padding in (False, True):
            inputs = random_inputs(names, batch, seq_len, 90, seed=seq_len, padding=padding)
            assert_bit_exact(library, quantized, inputs)
    # A shape that was not compiled is padded to one that was: no real token may notice.
    inputs = random_inputs(names, 2, 29, 90, seed=5, padding=False)
    assert_bit_exact(library, quantized, inputs)


@pytest.mark.record
def test_minilm_is_bit_exact(tmp_path: Path) -> None:
    model = minilm(head="none")
    shapes = [(batch, seq_len) for batch in (1, 3) for seq_len in (1, 17, 32, 128)]
    library = build_library(model, shapes, tmp_path)
    names = list(model.input_names)
    for batch, seq_len in shapes:
        for padding in (False, True):
            inputs = random_inputs(names, batch, seq_len, 30000, seed=seq_len, padding=padding)
            assert_bit_exact(library, model, inputs)

    # Padding never changes a real token's result, alone or beside other rows.
    inputs = random_inputs(names, 1, 17, 30000, seed=3, padding=False)
    alone = reference(model, inputs)[0]
    padded = {name: np.zeros((3, 128), np.int64) for name in names}
    for name, array in inputs.items():
        padded[name][2, :17] = array[0]
    padded["attention_mask"][0] = 1
    (output,) = library.run(**padded, dequantize=False).values()
    np.testing.assert_array_equal(output.values[2, :17], alone[0])
