"""The modules behind a sentence-transformers model's transformer, as a torch module."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .sentence_pipeline import (
    Dense,
    LayerNorm,
    Normalize,
    Pipeline,
    Pooling,
    Splade,
    Step,
    module_weights,
)

# What sentence-transformers puts in the place of padding before a maximum.
_LOW = -1e9
_LEAST = 1e-9


def _mean(tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    kept = mask.unsqueeze(-1).to(torch.float32)
    return (tokens * kept).sum(dim=1) / kept.sum(dim=1).clamp(min=_LEAST)


def _mean_sqrt_len(tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    kept = mask.unsqueeze(-1).to(torch.float32)
    return (tokens * kept).sum(dim=1) / kept.sum(dim=1).clamp(min=_LEAST).sqrt()


def _weighted_mean(tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    places = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
    weights = (mask * places).unsqueeze(-1).to(torch.float32)
    return (tokens * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=_LEAST)


def _last(tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    places = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
    counted = mask * places  # largest at the last token, on whichever side padding is
    last = (counted == counted.amax(dim=1, keepdim=True)).to(torch.float32) * mask
    return (tokens * last.unsqueeze(-1)).sum(dim=1)


_POOLINGS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "cls": lambda tokens, mask: tokens[:, 0],
    "max": lambda tokens, mask: tokens.masked_fill(mask.unsqueeze(-1) == 0, _LOW).amax(dim=1),
    "mean": _mean,
    "mean_sqrt_len": _mean_sqrt_len,
    "weightedmean": _weighted_mean,
    "lasttoken": _last,
}


class _Pooling(torch.nn.Module):
    def __init__(self, modes: tuple[str, ...]) -> None:
        super().__init__()
        self.modes = modes

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        vectors = [_POOLINGS[mode](x, mask) for mode in self.modes]
        return vectors[0] if len(vectors) == 1 else torch.cat(vectors, dim=1)


class _Splade(torch.nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        weights = torch.log1p(torch.relu(x)) * mask.unsqueeze(-1)
        return weights.amax(dim=1)


class _Dense(torch.nn.Module):
    def __init__(self, step: Dense) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(step.inputs, step.outputs, bias=step.bias, device="meta")
        self.activation: torch.nn.Module = getattr(torch.nn, step.activation)()
        _fill(self, step)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.activation(self.linear(x))


class _LayerNorm(torch.nn.Module):
    def __init__(self, step: LayerNorm) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(step.channels, device="meta")
        _fill(self, step)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.norm(x)


class _Normalize(torch.nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.normalize(x, p=2.0, dim=-1)


def _fill(module: torch.nn.Module, step: Dense | LayerNorm) -> None:
    """Give a module its arrays.

    Until then it has no memory: its config.json may claim more than the file holds.
    """
    state = {
        name: torch.tensor(array, dtype=torch.float32)
        for name, array in module_weights(step).items()
    }
    module.load_state_dict(state, assign=True)


_MODULES: dict[type, Callable[..., torch.nn.Module]] = {
    Pooling: lambda step: _Pooling(step.modes),
    Dense: _Dense,
    LayerNorm: _LayerNorm,
    Normalize: lambda step: _Normalize(),
    Splade: lambda step: _Splade(),
}


class SentenceHead(torch.nn.Module):
    """The modules of a pipeline, one after the other.

    Parameters
    ----------
    pipeline
        What follows the transformer.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.steps = torch.nn.ModuleList([_module(step) for step in pipeline.steps])

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the embedding.

        Parameters
        ----------
        x
            [batch, seq_len, channels].
        mask
            [batch, seq_len] int64.

        Returns
        -------
        torch.Tensor
            [batch, channels], or where nothing pools [batch, seq_len, channels].
        """
        for step in self.steps:
            x = step(x, mask)
        return x


def _module(step: Step) -> torch.nn.Module:
    return _MODULES[type(step)](step)


def pooling_head(mode: str) -> SentenceHead:
    """Return the head that pools by one mode and does nothing else."""
    return SentenceHead(Pipeline((Pooling((mode,)),)))
