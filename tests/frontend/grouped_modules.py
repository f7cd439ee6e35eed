"""Torch modules whose heads of queries share keys and values."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, WIDTH, HEADS, HEAD = 61, 32, 4, 8
HOW = ("expand", "interleave", "gqa", "five axes")


class Grouped(nn.Module):
    """Words, attention with shared keys, a residual sum and its norm.

    Parameters
    ----------
    how : str
        One of `HOW`; "fused" for one matrix of all projections; "queries" where keys have the heads
        and queries share theirs.
    shared : int
        Heads of keys and values.
    """

    def __init__(self, how: str, shared: int = 2) -> None:
        super().__init__()
        self.how, self.shared = how, shared
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        counts = (shared, HEADS, HEADS) if how == "queries" else (HEADS, shared, shared)
        self.widths = [HEAD * count for count in counts]
        if how == "fused":
            self.qkv = nn.Linear(WIDTH, sum(self.widths))
        else:
            self.query, self.key, self.value = (nn.Linear(WIDTH, width) for width in self.widths)
        self.out = nn.Linear(HEADS * HEAD, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        x = self.words(input_ids)
        batch, length, _ = x.shape
        if self.how == "fused":
            parts = self.qkv(x).split(self.widths, -1)
        else:
            parts = tuple(layer(x) for layer in (self.query, self.key, self.value))
        q, k, v = (part.view(batch, length, -1, HEAD).transpose(1, 2) for part in parts)
        keep = attention_mask.bool()[:, None, None, :]
        times = HEADS // self.shared
        if self.how in ("expand", "fused"):
            shape = (batch, self.shared, times, length, HEAD)
            k, v = (x[:, :, None].expand(shape).reshape(batch, HEADS, length, HEAD) for x in (k, v))
        elif self.how == "interleave":
            k, v = (x.repeat_interleave(times, 1) for x in (k, v))
        elif self.how == "queries":
            q = q.repeat_interleave(times, 1)
        if self.how == "five axes":
            q = q.reshape(batch, self.shared, times, length, HEAD)
            scores = q @ k[:, :, None].transpose(-1, -2) * HEAD**-0.5
            scores = scores.masked_fill(~keep[:, None], float("-inf"))
            context = (scores.softmax(-1) @ v[:, :, None]).reshape(batch, HEADS, length, HEAD)
        else:
            gqa = self.how == "gqa"
            context = functional.scaled_dot_product_attention(
                q, k, v, attn_mask=keep, enable_gqa=gqa
            )
        context = context.transpose(1, 2).reshape(batch, length, HEADS * HEAD)
        return self.norm(x + self.out(context))


def grouped(how: str, shared: int = 2) -> Grouped:
    """A module with weights that every run has."""
    torch.manual_seed(5)
    return Grouped(how, shared).eval()
