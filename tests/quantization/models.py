"""Small models of four architectures with random weights, through the real frontend."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ibert_tvm.frontend import CanonicalModel, load
from ibert_tvm.model.artefact import QuantizedModel
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from tests.cache import remembered
from tests.canonical.reference import run

ARCHITECTURES = ("bert", "roberta", "distilbert", "electra")


@remembered
def random_model(architecture: str) -> CanonicalModel:
    """BERT embedding sentences, RoBERTa classifying them, and so on: every head is different.

    "wide bert" has outliers, and so many channels that the fidelity "best" splits some.
    Weights are ten times larger than a fresh model's, so that attention and GELU leave their
    linear range.
    """
    import torch
    import transformers

    torch.manual_seed(5)
    sizes = {
        "vocab_size": 90,
        "hidden_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 96,
        "max_position_embeddings": 40,
        "initializer_range": 0.2,
        "attn_implementation": "eager",
    }
    if architecture == "bert":
        model = transformers.BertModel(transformers.BertConfig(**sizes))
        return load(model, head="sentence_embedding", verify=False)
    if architecture == "wide bert":
        sizes |= {"hidden_size": 96, "intermediate_size": 128}
        model = transformers.BertModel(transformers.BertConfig(**sizes))
        with torch.no_grad():
            for layer in model.encoder.layer:
                layer.output.LayerNorm.weight[[3, 50]] *= 30
                layer.attention.output.LayerNorm.weight[[7, 31, 80]] *= 30
                layer.intermediate.dense.weight[[5, 77]] *= 30
        return load(model, head="sentence_embedding", verify=False)
    if architecture == "roberta":
        config = transformers.RobertaConfig(**sizes, type_vocab_size=1, num_labels=3)
        return load(transformers.RobertaForSequenceClassification(config), verify=False)
    if architecture == "distilbert":
        config = transformers.DistilBertConfig(
            vocab_size=90,
            dim=48,
            n_layers=2,
            n_heads=4,
            hidden_dim=96,
            max_position_embeddings=40,
            initializer_range=0.2,
            attn_implementation="eager",
        )
        return load(transformers.DistilBertForQuestionAnswering(config), verify=False)
    config = transformers.ElectraConfig(**sizes, embedding_size=32, num_labels=5)
    return load(transformers.ElectraForTokenClassification(config), verify=False)


def random_batches(
    model: CanonicalModel, count: int, rows: int = 4, length: int = 24, seed: int = 0
) -> list[dict[str, np.ndarray]]:
    """Token ids with some padding at the end of every row but the first."""
    random = np.random.default_rng(seed)
    batches = []
    for _ in range(count):
        mask = np.ones((rows, length), np.int64)
        for row in range(1, rows):
            mask[row, random.integers(2, length) :] = 0
        ids = random.integers(4, model.info.vocab_size, (rows, length))
        arrays = {
            "input_ids": np.where(mask != 0, ids, model.info.pad_token_id),
            "attention_mask": mask,
            "token_type_ids": np.zeros((rows, length), np.int64),
        }
        batches.append({name: arrays[name] for name in model.info.inputs})
    return batches


def outputs(
    model: CanonicalModel, quantized: QuantizedModel, inputs: Mapping[str, np.ndarray]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Float and dequantised integer values of every output."""
    values = run(model.module, {**model.parameters, **inputs})
    expected = [values[output.value] for output in model.info.outputs]
    integers = evaluate(quantized.module, inputs, quantized.parameters)
    scales = quantized.quantization["outputs"]
    actual = [a * s["scale"] for a, s in zip(integers, scales, strict=True)]
    return list(zip(expected, actual, strict=True))
