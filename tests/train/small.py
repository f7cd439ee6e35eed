"""Small models to train, and batches for them."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from ibert_tvm.train.module import IntegerModel
from ibert_tvm.train.preparation import prepare

VOCABULARY, LENGTH = 120, 12
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "pad_token_id": 0,
}


def bert() -> Any:
    """One layer, which is quick, with a head for three classes."""
    sizes = {**_SIZES, "num_hidden_layers": 1}
    config = transformers.BertConfig(**sizes, num_labels=3, type_vocab_size=1)
    return transformers.BertForSequenceClassification(config)


def llama() -> Any:
    """With rotary embeddings, gates, RMSNorm and keys that heads share; causal."""
    config = transformers.LlamaConfig(**_SIZES, num_key_value_heads=2)
    return transformers.LlamaModel(config)


def modernbert() -> Any:
    """With rotary embeddings, gates that are one matrix, and windows."""
    ids = {"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    config = transformers.ModernBertConfig(**_SIZES, **ids, local_attention=8, num_labels=3)
    return transformers.ModernBertForSequenceClassification(config)


MODELS = {"bert": bert, "llama": llama, "modernbert": modernbert}
HEADS = {"llama": "none"}


def batch(seed: int, rows: int = 4, length: int = LENGTH) -> dict[str, NDArray[np.int64]]:
    """Random ids; the second sequence is padded."""
    random = np.random.default_rng(seed)
    mask = np.ones((rows, length), np.int64)
    mask[1 % rows, length // 2 :] = 0
    return {"input_ids": random.integers(3, VOCABULARY, (rows, length)), "attention_mask": mask}


def tensors(arrays: dict[str, NDArray[np.int64]]) -> dict[str, torch.Tensor]:
    """As torch has them."""
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


@functools.cache
def _prepared(name: str, preset: str) -> tuple[IntegerModel, dict[str, torch.Tensor]]:
    torch.manual_seed(3)
    calibration = [batch(seed) for seed in range(20, 24)]
    head = HEADS.get(name)
    model = prepare(MODELS[name](), preset, calibration, head=head, learn_scales=True)
    return model, {key: tensor.clone() for key, tensor in model.state_dict().items()}


def integer_model(name: str, preset: str = "accurate") -> IntegerModel:
    """A small model, prepared once; its numbers are those of the beginning again."""
    model, state = _prepared(name, preset)
    model.load_state_dict(state)
    model.zero_grad()
    return model
