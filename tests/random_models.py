"""Small transformers with random weights, and what they are run with."""

from __future__ import annotations

from typing import Any

import numpy as np


def random_bert(
    seed: int, spread: float | None = 0.1, name: str = "BertModel", model: Any = None, **sizes: Any
) -> Any:
    """A BERT in evaluation mode.

    Parameters
    ----------
    seed
        Of its weights.
    spread
        Standard deviation of its matrices: larger than the usual initialisation, so that
        differences show; None for that.
    name, model
        Class of transformers, and arguments for it besides the configuration.
    **sizes
        Of its configuration, where they are not those of two layers of 64 channels.
    """
    import torch
    import transformers as hf

    torch.manual_seed(seed)
    usual = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 128,
        "max_position_embeddings": 64,
    }
    made = getattr(hf, name)(hf.BertConfig(**{**usual, **sizes}), **(model or {})).eval()
    if spread is not None:
        with torch.no_grad():
            for parameter in made.parameters():
                if parameter.ndim == 2:
                    parameter.normal_(0, spread)
    return made


def random_ids(
    vocabulary: int,
    batch: int,
    length: int,
    seed: int,
    tokens: int | None = None,
    types: int = 0,
    first: int = 2,
) -> dict[str, np.ndarray]:
    """Random ids; the last row has so many tokens, by default all, and padding behind them.

    With `types`, token types too: all 0 for 1, and of two kinds for 2. Ids begin at `first`.
    """
    random = np.random.default_rng(seed)
    mask = np.ones((batch, length), np.int32)
    if tokens is not None:
        mask[-1, tokens:] = 0
    ids = random.integers(first, vocabulary, (batch, length)).astype(np.int32)
    arrays = {"input_ids": ids, "attention_mask": mask}
    if types:
        arrays["token_type_ids"] = random.integers(0, types, (batch, length)).astype(np.int32)
    return arrays
