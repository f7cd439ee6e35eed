"""Torch modules that join, shift, mask and scale tokens, as some encoders do."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, WIDTH, HEADS, INNER = 61, 32, 4, 48
PLANES, SIDE, PATCH = 3, 24, 8
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu6": functional.relu6,
    "leaky": lambda x: functional.leaky_relu(x, 0.1),
    "hard swish": functional.hardswish,
    "hard sigmoid": functional.hardsigmoid,
}


class Layer(nn.Module):
    """Attention and a feed-forward layer, whose norms are factors and rows by channel."""

    def __init__(self, activation: str) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)
        self.factors, self.row = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor, keep: torch.Tensor | None) -> torch.Tensor:
        q, k, v = (
            f(x).view(*x.shape[:2], HEADS, -1).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        context = functional.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        x = x + self.out(context.transpose(1, 2).reshape(x.shape))
        x = x * self.factors + self.row
        return self.norm(x + self.down(self.activation(self.up(x))))


class Neighbours(nn.Module):
    """Embeddings times the mask, joined with those of both neighbours; a token and a mean joined.

    Parameters
    ----------
    activation : str
        One of `ACTIVATIONS`.
    pooled : bool
        Whether the first token and the mean of all are joined for a classifier, or tokens come out.
    neighbours : bool
        Whether neighbours are joined at all.
    """

    def __init__(
        self, activation: str = "relu6", pooled: bool = True, neighbours: bool = True
    ) -> None:
        super().__init__()
        self.neighbours = neighbours
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(40, WIDTH)
        self.joined = nn.Linear(3 * WIDTH, WIDTH)
        self.layer = Layer(activation)
        self.pooled = pooled
        self.head = nn.Linear(2 * WIDTH, 5)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        mask = attention_mask[:, :, None].float()
        x = (self.words(input_ids) + self.places.weight[: input_ids.shape[1]]) * mask
        if not self.neighbours:
            return self.layer(x, attention_mask.bool()[:, None, None, :])
        behind = functional.pad(x[:, 1:], [0, 0, 0, 1])
        before = functional.pad(x[:, :-1], [0, 0, 1, 0])
        x = self.joined(torch.cat([behind, x, before], dim=2))
        x = self.layer(x, attention_mask.bool()[:, None, None, :])
        if not self.pooled:
            return x
        mean = (x * mask).sum(1) / mask.sum(1).clamp(min=1)
        return self.head(torch.cat([x[:, 0], mean], dim=1))


class Registers(nn.Module):
    """A class token, registers behind it, the mean of the patches alone, and two heads averaged."""

    def __init__(self, activation: str = "relu6") -> None:
        super().__init__()
        self.patches = nn.Conv2d(PLANES, WIDTH, PATCH, PATCH)
        count = (SIDE // PATCH) ** 2
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.registers = nn.Parameter(torch.zeros(1, 2, WIDTH))
        self.places = nn.Parameter(torch.zeros(1, 1 + count, WIDTH))
        self.layer = Layer(activation)
        self.first, self.second = nn.Linear(2 * WIDTH, 5), nn.Linear(WIDTH, 5)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        x = self.patches(pixel_values).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.places
        x = torch.cat([x[:, :1], self.registers.expand(len(x), -1, -1), x[:, 1:]], dim=1)
        x = self.layer(x, None)
        joined = self.first(torch.cat([x[:, 0], x[:, 3:].mean(1)], dim=1))
        return (joined + self.second(x[:, 1])) / 2


class Places(nn.Module):
    """Patches that are turned by their place in the image, and a bias by query and key.

    Of the heads, as DINOv3 and BEiT have them: the class token is not turned.
    """

    def __init__(self) -> None:
        super().__init__()
        side, width = SIDE // PATCH, WIDTH // HEADS
        self.patches = nn.Conv2d(PLANES, WIDTH, PATCH, PATCH)
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.bias = nn.Parameter(torch.zeros(1, HEADS, side**2 + 1, side**2 + 1))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 5)
        places = torch.cartesian_prod(torch.arange(side), torch.arange(side)).float()
        angles = (places[:, :, None] * torch.tensor([1.0, 0.3])).flatten(1)
        self.register_buffer("angles", angles.tile(2))
        assert self.angles.shape == (side**2, width)

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        token, patches = x[:, :, :1], x[:, :, 1:]
        a, b = patches.chunk(2, dim=-1)
        other = torch.cat((-b, a), dim=-1)
        return torch.cat((token, patches * self.angles.cos() + other * self.angles.sin()), dim=2)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        x = self.patches(pixel_values).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1)
        shape = (*x.shape[:2], 3, HEADS, WIDTH // HEADS)
        q, k, v = self.qkv(x).view(shape).permute(2, 0, 3, 1, 4)
        scores = self.turned(q) @ self.turned(k).transpose(2, 3) * q.shape[-1] ** -0.5
        context = (scores + self.bias).softmax(-1) @ v
        x = self.norm(x + self.out(context.transpose(1, 2).reshape(x.shape)))
        return self.head(x[:, 0])


class Seen(nn.Module):
    """Patches of an image as one learned query sees them: the pooling of SigLIP."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(PLANES, WIDTH, PATCH, PATCH)
        self.layer = Layer("relu6")
        self.probe = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 5)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        x = self.layer(self.patches(pixel_values).flatten(2).transpose(1, 2), None)
        seen = self.attention(self.probe.repeat(len(x), 1, 1), x, x)[0]
        return self.head(seen + self.norm(seen))[:, 0]


def made(kind: type[nn.Module], *arguments: object) -> nn.Module:
    """A module with weights that every run has."""
    torch.manual_seed(3)
    module = kind(*arguments)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += torch.randn_like(parameter) * (0.3 if parameter.ndim == 2 else 0.2)
    return module.eval()
