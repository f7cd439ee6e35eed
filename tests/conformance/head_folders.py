"""Folders of models with heads, each with its family's tokenizer and room for long texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tests.conformance.folders import (
    Folder,
    albert_pieces,
    modern_pairs,
    mpnet_words,
    pairs_of_bytes,
    pieces,
    words,
)

WITHOUT_TYPES = {"model_input_names": ["input_ids", "attention_mask"]}
"""Settings of tokenizers that feed no token types, as many of DistilBERT and of rerankers."""
MODERN = {"tokenizer_class": "PreTrainedTokenizerFast", **WITHOUT_TYPES}
MODERN |= {f"{name}_token": f"[{name.upper()}]" for name in ("cls", "sep", "pad", "mask", "unk")}
DISENTANGLED = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
LENGTH = 96
"""Tokens that texts are cut off at."""
_TOKENIZERS: dict[str, Callable[..., Path]] = {
    "roberta": pairs_of_bytes,
    "xlm-roberta": pieces,
    "albert": albert_pieces,
    "modernbert": modern_pairs,
    "mpnet": mpnet_words,
    "deberta-v2": partial(
        pieces, file="spm.model", special=(("[PAD]", 3), ("[CLS]", 3), ("[SEP]", 3), ("[UNK]", 2))
    ),
}
"""Where it is not BERT's."""


def with_head(
    head: str,
    architecture: str = "bert",
    config: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> Folder:
    """A folder of a model with a head, of `tests.frontend.architectures.CLASSES`."""
    # RoBERTa and its kin number positions from 2.
    room = {"max_position_embeddings": LENGTH + 2 * ("roberta" in architecture)}
    tokenizer = _TOKENIZERS.get(architecture, words)
    labels = {"num_labels": 1} if head == "reranker" and "id2label" not in (config or {}) else {}
    return Folder(
        **{
            "architecture": architecture,
            "tokenizer": tokenizer,
            "head": head,
            "config": {**room, **labels, **(config or {})},
            "settings": {"model_max_length": LENGTH, **(settings or {})},
            "saved": tokenizer not in (words, mpnet_words, pairs_of_bytes),
            **options,
        }
    )
