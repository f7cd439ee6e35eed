"""Torch modules whose heads of queries share keys and values."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

# All heads together are wider than the stream between layers.
VOCABULARY, WIDTH, HEADS, HEAD = 61, 32, 4, 12
HOW = ("expand", "interleave", "gqa", "five axes")


class RmsNorm(nn.Module):
    """In small operators, over the last axis, with weights w or 1 + w that broadcast."""

    def __init__(self, shape: tuple[int, ...], plus_one: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(shape) * 0.3 + (not plus_one))
        self.plus_one = plus_one

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normal = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return normal * (1 + self.weight) if self.plus_one else self.weight * normal


class LayerNorm(nn.Module):
    """In small operators, over the last axis, with a weight for each head and no bias."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(heads, HEAD) * 0.3 + 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        variance = centred.pow(2).mean(-1, keepdim=True)
        return self.weight * (centred * torch.rsqrt(variance + 1e-5))


NORMS: dict[str, Callable[[int], nn.Module]] = {
    "": lambda heads: nn.Identity(),
    "rms": lambda heads: RmsNorm((HEAD,)),
    "rms, heads first": lambda heads: RmsNorm((HEAD,)),
    "one plus": lambda heads: RmsNorm((HEAD,), plus_one=True),
    "own rms, heads first": lambda heads: RmsNorm((heads, 1, HEAD)),
    "torch rms": lambda heads: nn.RMSNorm(HEAD, eps=1e-6),
    "layer norm": lambda heads: nn.LayerNorm(HEAD),
    "own layer norm": LayerNorm,
}


def norm_of(kind: str, heads: int) -> nn.Module:
    """A norm of each head, with weights that are not all alike."""
    module = NORMS[kind](heads)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += torch.randn_like(parameter) * 0.2
    return module


class Grouped(nn.Module):
    """Words, attention with shared keys, a residual sum and its norm.

    Parameters
    ----------
    how : str
        One of `HOW`; "fused" for one matrix of all projections; "capped" for a softcap, "capped
        behind the mask" for one that undoes it; "queries" where keys have the heads and queries
        share theirs.
    shared : int
        Heads of keys and values.
    norms : str
        Of each head of queries and keys, one of `NORMS`; empty for none.
    """

    def __init__(self, how: str, shared: int = 2, norms: str = "") -> None:
        super().__init__()
        self.how, self.shared = how, shared
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        counts = (shared, HEADS, HEADS) if how == "queries" else (HEADS, shared, shared)
        self.widths = [HEAD * count for count in counts]
        if how == "fused":
            self.qkv = nn.Linear(WIDTH, sum(self.widths))
        else:
            self.query, self.key, self.value = (nn.Linear(WIDTH, width) for width in self.widths)
        self.norms = nn.ModuleList(norm_of(norms, count) for count in counts[:2])
        self.heads_first = norms.endswith("heads first")
        self.out = nn.Linear(HEADS * HEAD, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        x = self.words(input_ids)
        batch, length, _ = x.shape
        if self.how == "fused":
            parts = self.qkv(x).split(self.widths, -1)
        else:
            parts = tuple(layer(x) for layer in (self.query, self.key, self.value))
        q, k, v = (part.view(batch, length, -1, HEAD) for part in parts)
        if self.heads_first:
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        q, k = (norm(x) for norm, x in zip(self.norms, (q, k), strict=True))
        if not self.heads_first:
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        keep = attention_mask.bool()[:, None, None, :]
        times = HEADS // self.shared
        if self.how in ("expand", "fused"):
            shape = (batch, self.shared, times, length, HEAD)
            k, v = (x[:, :, None].expand(shape).reshape(batch, HEADS, length, HEAD) for x in (k, v))
        elif self.how == "interleave":
            k, v = (x.repeat_interleave(times, 1) for x in (k, v))
        elif self.how == "queries":
            q = q.repeat_interleave(times, 1)
        if self.how.startswith("capped"):
            k, v = (x.repeat_interleave(times, 1) for x in (k, v))
            scores = q @ k.transpose(-1, -2) / 5
            if self.how != "capped":
                scores = scores.masked_fill(~keep, -1e4)
            scores = 5 * torch.tanh(scores)
            context = scores.masked_fill(~keep, float("-inf")).softmax(-1) @ v
        elif self.how == "five axes":
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


def grouped(how: str, shared: int = 2, norms: str = "") -> Grouped:
    """A module with weights that every run has."""
    torch.manual_seed(5)
    return Grouped(how, shared, norms).eval()
