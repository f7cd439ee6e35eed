"""Torch modules with gated layers and RMSNorm, as recent encoders have them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, WIDTH, HEADS, INNER = 61, 32, 4, 48
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "sigmoid": torch.sigmoid,
}


class RmsNorm(nn.Module):
    """In small operators, with a weight of w or 1 + w."""

    def __init__(self, plus_one: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(WIDTH) if plus_one else torch.ones(WIDTH))
        self.plus_one = plus_one

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normal = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return normal * (1 + self.weight) if self.plus_one else self.weight * normal


def norm(kind: str) -> nn.Module:
    """A norm of `WIDTH` channels: "rms", "one plus", "torch" or "no bias"."""
    if kind == "torch":
        return nn.RMSNorm(WIDTH, eps=1e-5)
    if kind == "no bias":
        return nn.LayerNorm(WIDTH, bias=False)
    return RmsNorm(kind == "one plus")


class Gated(nn.Module):
    """Words, attention, a gated feed-forward layer, all before their residual sums.

    Parameters
    ----------
    activation : str
        Of the gate, one of `ACTIVATIONS`.
    norms : str
        Kind of the norms.
    fused : bool
        Whether gate and value are rows of one matrix.
    """

    def __init__(self, activation: str = "silu", norms: str = "rms", fused: bool = False) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.first, self.second, self.last = (norm(norms) for _ in range(3))
        self.query, self.key, self.value, self.out = (
            nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)
        )
        self.fused = fused
        if fused:
            self.both = nn.Linear(WIDTH, 2 * INNER, bias=False)
        else:
            self.gate = nn.Linear(WIDTH, INNER, bias=False)
            self.up = nn.Linear(WIDTH, INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=False)
        with torch.no_grad():
            for parameter in self.parameters():
                spread = 0.3 if parameter.ndim == 2 else 0.2
                parameter += torch.randn_like(parameter) * spread

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        x = self.words(input_ids)
        y = self.first(x)
        q, k, v = (
            f(y).view(*y.shape[:2], HEADS, -1).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        keep = attention_mask.bool()[:, None, None, :]
        context = functional.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        x = x + self.out(context.transpose(1, 2).reshape(x.shape))
        y = self.second(x)
        gate, up = self.both(y).chunk(2, -1) if self.fused else (self.gate(y), self.up(y))
        return self.last(x + self.down(self.activation(gate) * up))


def gated(activation: str = "silu", norms: str = "rms", fused: bool = False) -> Gated:
    """A module with weights that every run has."""
    torch.manual_seed(3)
    return Gated(activation, norms, fused).eval()
