"""Poolings and unit length in torch modules, however they are written; what is refused, and why."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from ibert_tvm.frontend import UnsupportedModelError, load
from tests.examples import examples
from tests.frontend.imports import ops, verified
from tests.frontend.sentence_folders import pooled
from tests.snapshots import Messages

Pool = Callable[[Tensor, Tensor], Tensor]


class Encoder(torch.nn.Module):
    """A linear layer of embeddings, and what is made of the tokens."""

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = torch.nn.Embedding(50, 8)
        self.dense = torch.nn.Linear(8, 8)
        self.pool = pool

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.pool(self.dense(self.words(input_ids)), attention_mask)


def filled(x: Tensor, mask: Tensor) -> Tensor:
    return x.masked_fill(mask.unsqueeze(-1) == 0, float("-inf")).amax(1)


def added(x: Tensor, mask: Tensor) -> Tensor:
    return (x + (1.0 - mask.unsqueeze(-1).float()) * -1e9).max(dim=1).values


def chosen(x: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask.unsqueeze(-1) != 0, x, -1e9).amax(1, keepdim=True).squeeze(1)


def splade(x: Tensor, mask: Tensor) -> Tensor:
    weights = torch.log(1 + torch.relu(x)) * mask.unsqueeze(-1)
    return torch.max(weights, dim=1)[0]


def indexed(x: Tensor, mask: Tensor) -> Tensor:
    places = (mask * torch.arange(mask.shape[1])).argmax(1)
    return x[torch.arange(x.shape[0]), places]


def by_root(x: Tensor, mask: Tensor) -> Tensor:
    x = x[:, 0]
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-12)


POOLS: dict[str, tuple[Pool, list[str]]] = {
    "filled": (filled, ["max_pool"]),
    "added": (added, ["max_pool"]),
    "chosen": (chosen, ["max_pool"]),
    "splade": (splade, ["max_pool", "log1p_relu"]),
    "last": (lambda x, mask: pooled("lasttoken", x, mask), ["last_token"]),
    "indexed": (indexed, ["last_token"]),
    "weighted": (lambda x, mask: pooled("weightedmean", x, mask), ["weighted_mean_pool"]),
    "root": (lambda x, mask: pooled("mean_sqrt_len", x, mask), ["sqrt_mean_pool"]),
    "filled mean": (
        lambda x, mask: (
            x.masked_fill(mask.unsqueeze(-1) == 0, 0.0).sum(1) / mask.sum(1, keepdim=True)
        ),
        ["mean_pool"],
    ),
    "normalize": (lambda x, _: functional.normalize(x, dim=-1), ["l2_norm"]),
    "normalize one": (lambda x, _: functional.normalize(x[:, 0]), ["select_token", "l2_norm"]),
    "by root": (by_root, ["select_token", "l2_norm"]),
    "behind tanh": (
        lambda x, _: functional.normalize(torch.tanh(x[:, 0])),
        ["select_token", "tanh", "l2_norm"],
    ),
    "joined": (
        lambda x, mask: torch.cat([x[:, 0], filled(x, mask)], 1),
        ["max_pool", "select_token", "concatenate"],  # what waits for a reader comes last
    ),
}


@pytest.mark.slow_cases(6)
@pytest.mark.representatives(2)
@pytest.mark.parametrize("name", examples(POOLS, *("filled", "splade", "last")))
def test_spellings(name: str) -> None:
    pool, wanted = POOLS[name]
    assert ops(verified(Encoder(pool).eval())) == ["embedding", "linear", *wanted]


REFUSED: dict[str, Pool] = {
    "an unmasked maximum": lambda x, _: x.amax(1),
    "zeros in a maximum": lambda x, mask: (x * mask.unsqueeze(-1)).amax(1),
    "a mild number": lambda x, mask: x.masked_fill(mask.unsqueeze(-1) == 0, -5.0).amax(1),
    "zeros for some ids": lambda x, mask: x.masked_fill((mask == 5).unsqueeze(-1), 0.0),
    "a count": lambda x, mask: x[torch.arange(x.shape[0]), mask.sum(1) - 1],
    "the inverted mask": lambda x, mask: x.masked_fill(mask.unsqueeze(-1) == 1, -1e9).amax(1),
    "another root": lambda x, mask: (
        (x * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True).float() ** 0.4
    ),
}


@pytest.mark.slow_cases(5)
@pytest.mark.parametrize("name", examples(REFUSED, "zeros in a maximum", "a count"))
def test_refusals(name: str, messages: Messages) -> None:
    with messages.raises(UnsupportedModelError):
        load(Encoder(REFUSED[name]).eval())
