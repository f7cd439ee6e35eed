"""Models with disentangled attention, small and with random weights."""

from __future__ import annotations

from typing import Any

import torch

VOCABULARY, POSITIONS = 61, 40
KINDS: dict[str, dict[str, Any]] = {
    # The settings of microsoft/deberta-v3: buckets, one projection for content and positions.
    "buckets": {"position_buckets": 8, "share_att_key": True, "norm_rel_ebd": "layer_norm"},
    "plain": {},
    "of_queries": {"pos_att_type": ["c2p"]},
    "first": {},
}


def disentangled(kind: str, layers: int = 2, **more: Any) -> torch.nn.Module:
    """A model of transformers; "first" is DeBERTa, the others are its second version."""
    from transformers import DebertaConfig, DebertaModel, DebertaV2Config, DebertaV2Model

    torch.manual_seed(5)
    settings = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": POSITIONS,
        "relative_attention": True,
        "pos_att_type": ["c2p", "p2c"],
        "type_vocab_size": 0,
        "initializer_range": 0.3,  # larger than usual: differences must show
        **KINDS[kind],
        **more,
    }
    if kind == "first":
        return DebertaModel(DebertaConfig(**settings)).eval()
    return DebertaV2Model(DebertaV2Config(**settings)).eval()
