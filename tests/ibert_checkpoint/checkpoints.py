"""Random `ibert` checkpoints whose ranges were collected by transformers' own training mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from transformers.models.ibert import quant_modules

VOCABULARY = 90
LAYERS = 4
PADDING = 1

CLASSES = {
    "none": "IBertModel",
    "pooled": "IBertModel",
    "sequence_classification": "IBertForSequenceClassification",
    "token_classification": "IBertForTokenClassification",
    "question_answering": "IBertForQuestionAnswering",
}


def config(**changes: Any) -> transformers.IBertConfig:
    """A small configuration, trained with quantisation."""
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "max_position_embeddings": 40,
        "type_vocab_size": 2,
        "pad_token_id": PADDING,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "quant_mode": True,
    }
    return transformers.IBertConfig(**{**sizes, **changes})


def batch(lengths: list[int], seed: int = 0, types: int = 2) -> dict[str, NDArray[np.int64]]:
    """Random tokens, padded to the longest; the only input with types where there are several."""
    random = np.random.default_rng(seed)
    shape = (len(lengths), max(lengths))
    mask = (np.arange(shape[1]) < np.array(lengths)[:, None]).astype(np.int64)
    ids = np.where(mask, random.integers(2, VOCABULARY, shape), PADDING)
    inputs = {"input_ids": ids, "attention_mask": mask}
    if types > 1:
        inputs["token_type_ids"] = np.where(mask, random.integers(0, types, shape), 0)
    return inputs


def randomise(model: torch.nn.Module, seed: int, gain: float) -> None:
    """Weights of the sizes that trained models have; LayerNorms start as 0 in transformers."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "LayerNorm.weight" in name:
                # Some gammas are negative, some small.
                parameter.copy_(1.0 + 0.6 * noise)
            elif "LayerNorm.bias" in name:
                parameter.copy_(0.2 * noise)
            elif name.endswith("bias"):
                parameter.copy_(0.1 * noise)
            elif "embeddings" in name:
                parameter.copy_(0.3 * noise)
            else:
                parameter.copy_(noise * (gain / parameter.shape[1] ** 0.5))


def make_model(
    head: str = "none", seed: int = 0, gain: float = 1.5, **changes: Any
) -> torch.nn.Module:
    """A model with random weights and ranges from a few batches in training mode."""
    settings = config(**changes)
    model = getattr(transformers, CLASSES[head])(settings)
    randomise(model, seed, gain)
    model.train()
    with torch.no_grad():
        for step in range(4):
            inputs = batch([20, 9, 31], seed=100 + step, types=settings.type_vocab_size)
            model(**{name: torch.from_numpy(array) for name, array in inputs.items()})
    return model.eval()


def save(model: torch.nn.Module, path: Path) -> Path:
    """Write a checkpoint folder."""
    model.save_pretrained(path)
    return path


def quant_acts(model: torch.nn.Module) -> dict[str, quant_modules.QuantAct]:
    """The QuantActs of a model by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, quant_modules.QuantAct)
    }
