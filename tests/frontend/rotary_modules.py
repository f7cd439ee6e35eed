"""Torch modules that turn queries and keys by position, in the ways in which libraries write it."""

from __future__ import annotations

import math
from typing import Any

import torch
import transformers as hf
from torch import nn

from tests.frontend.test_modules import HEADS, VOCABULARY, WIDTH, Block

HEAD = WIDTH // HEADS


class Rotary(Block):
    """A block without positions in its embeddings; `turned` [batch, heads, tokens, channels]."""

    columns, theta = HEAD, 100.0

    def __init__(self) -> None:
        super().__init__()
        frequencies = self.theta ** -(torch.arange(0, self.columns, 2) / self.columns)
        self.register_buffer("frequencies", frequencies)

    def embed(self, ids):
        return self.norm(self.words(ids))

    def angles(self, length: int) -> torch.Tensor:
        return torch.arange(length)[:, None].float() * self.frequencies

    def attend(self, x, mask):
        q, k, v = (self.heads(f(x)) for f in (self.query, self.key, self.value))
        angles = self.angles(q.shape[2])
        q, k = self.turned(q, angles), self.turned(k, angles)
        scores = q @ k.transpose(-1, -2) / math.sqrt(HEAD)
        return scores.masked_fill(~mask[:, None, None, :].bool(), -1e9).softmax(-1) @ v


def half_turned(x: torch.Tensor) -> torch.Tensor:
    """The `rotate_half` of transformers."""
    a, b = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-b, a), dim=-1)


class Halves(Rotary):
    """Cosines and sines for all channels, halves negated and joined: Llama, ModernBERT."""

    def turned(self, x, angles):
        both = torch.cat((angles, angles), dim=-1)
        return x * both.cos() + half_turned(x) * both.sin()


class ScaledFirst(Halves):
    """Scaled before they are turned: ESM."""

    def turned(self, x, angles):
        return super().turned(x * 0.3, angles)


class TurnedApart(Rotary):
    """Each half by itself, the tables scaled as YaRN has it."""

    def turned(self, x, angles):
        cos, sin = angles.cos() * 1.25, angles.sin() * 1.25
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Neighbours(Rotary):
    """Channels 2i and 2i + 1 are a pair: RoFormer, GPT-J."""

    def turned(self, x, angles):
        cos, sin = (torch.stack((t, t), -1).flatten(-2) for t in (angles.cos(), angles.sin()))
        other = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
        return x * cos + other * sin


class SomeChannels(Halves):
    """The first half of a head's channels only: GPT-NeoX."""

    columns = HEAD // 2

    def turned(self, x, angles):
        first, rest = x[..., : self.columns], x[..., self.columns :]
        return torch.cat((super().turned(first, angles), rest), dim=-1)


class BeforeHeads(Halves):
    """Before heads are moved to the front, as flash attention wants it; one merged projection."""

    def __init__(self) -> None:
        super().__init__()
        self.merged = nn.Linear(WIDTH, 3 * WIDTH)

    def attend(self, x, mask):
        shape = (*x.shape[:2], 3, HEADS, HEAD)
        q, k, v = self.merged(x).view(shape).unbind(dim=2)
        angles = self.angles(x.shape[1])[:, None]
        q, k = (self.turned(t, angles).transpose(1, 2) for t in (q, k))
        scores = q @ k.transpose(-1, -2) / math.sqrt(HEAD)
        kept = scores.masked_fill(~mask[:, None, None, :].bool(), -1e9).softmax(-1)
        return kept @ v.transpose(1, 2)


class MergedByHead(SomeChannels):
    """A merged projection whose rows are queries, keys and values of one head after another."""

    def __init__(self) -> None:
        super().__init__()
        self.merged = nn.Linear(WIDTH, 3 * WIDTH)

    def attend(self, x, mask):
        merged = self.merged(x).view(*x.shape[:2], HEADS, 3 * HEAD).transpose(1, 2)
        q, k, v = merged.chunk(3, dim=-1)
        angles = self.angles(x.shape[1])
        scores = self.turned(q, angles) @ self.turned(k, angles).transpose(-1, -2)
        kept = (scores / math.sqrt(HEAD)).masked_fill(~mask[:, None, None, :].bool(), -1e9)
        return kept.softmax(-1) @ v


class NormedHeads(Halves):
    """Heads are normalised before they are turned: Qwen3, Gemma 3."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.RMSNorm(HEAD, eps=1e-6)
        nn.init.uniform_(self.own.weight, 0.5, 1.5)

    def turned(self, x, angles):
        return super().turned(self.own(x), angles)


class Cached(Halves):
    """A table of cosines and sines, cut to the length."""

    def __init__(self) -> None:
        super().__init__()
        angles = self.angles(40)
        both = torch.cat((angles, angles), dim=-1)
        self.register_buffer("cos", both.cos())
        self.register_buffer("sin", both.sin())

    def turned(self, x, angles):
        length = x.shape[2]
        return x * self.cos[:length] + half_turned(x) * self.sin[:length]


class LookedUp(Neighbours):
    """A table that is looked up by position, as RoFormer has it."""

    def __init__(self) -> None:
        super().__init__()
        angles = self.angles(40)
        self.table = nn.Embedding.from_pretrained(torch.cat((angles.sin(), angles.cos()), -1))

    def turned(self, x, angles):
        found = self.table(torch.arange(x.shape[2]))[None, None]
        sin, cos = (torch.stack((t, t), -1).flatten(-2) for t in found.chunk(2, dim=-1))
        other = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
        return x * cos + other * sin


LAYOUTS = (
    Halves,
    ScaledFirst,
    TurnedApart,
    Neighbours,
    SomeChannels,
    BeforeHeads,
    MergedByHead,
    NormedHeads,
    Cached,
    LookedUp,
)

_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
_MODERN = {
    **_SIZES,
    **dict.fromkeys(("bos_token_id", "cls_token_id"), 1),
    **dict.fromkeys(("eos_token_id", "sep_token_id"), 2),
    "local_attention": 16,
    "global_attn_every_n_layers": 2,
}
CONFIGS = {
    "modernbert": lambda: hf.ModernBertConfig(**_MODERN),
    "granite": lambda: hf.ModernBertConfig(**_MODERN, hidden_activation="silu"),
    "nomic_bert": lambda: hf.NomicBertConfig(**_SIZES, type_vocab_size=1),
    "eurobert": lambda: hf.EuroBertConfig(
        **_SIZES, num_key_value_heads=2, bos_token_id=1, eos_token_id=2, mask_token_id=3
    ),
    "roformer": lambda: hf.RoFormerConfig(**_SIZES, embedding_size=32, type_vocab_size=1),
    "jina_embeddings_v3": lambda: hf.JinaEmbeddingsV3Config(**_SIZES),
    "qwen3": lambda: hf.Qwen3Config(
        **_SIZES, num_key_value_heads=1, head_dim=16, bos_token_id=1, eos_token_id=2
    ),
}
"""Encoders of two layers; those of ModernBERT have a window of 8 to both sides in the second.

Qwen3 is causal, and normalises the heads that it rotates.
"""


def encoder(name: str) -> nn.Module:
    """One of `CONFIGS`, with weights that are large enough for errors to show."""
    torch.manual_seed(0)
    model = hf.AutoModel.from_config(CONFIGS[name]()).eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if parameter.ndim == 2 and "embed_positions" not in path:
                parameter.normal_(0, 0.2)
    return model
