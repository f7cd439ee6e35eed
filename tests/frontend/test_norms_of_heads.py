"""Norms over the channels of a head, in whatever operators they are written."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import ibert_tvm as ibert
from ibert_tvm.frontend import UnsupportedModelError
from tests.examples import examples
from tests.frontend.grouped_modules import HEAD, HEADS, NORMS, WIDTH, Grouped, grouped
from tests.frontend.imports import calls_of


@pytest.mark.slow
@pytest.mark.parametrize("norms", examples([name for name in NORMS if name], "own layer norm"))
def test_norms_of_queries_and_keys(norms: str) -> None:
    module = grouped("gqa", norms=norms)
    model = ibert.load(module)
    kind = "layer_norm" if "layer norm" in norms else "rms_norm"
    q, k = calls_of(model, kind)[:2]
    rows = (HEADS, 2) if "own" in norms else (1, 1)
    for call, heads, source in ((q, rows[0], module.norms[0]), (k, rows[1], module.norms[1])):
        gamma = model.parameters[str(call.args[1].name)]
        assert gamma.shape == (heads, HEAD)
        weight = source.weight.detach().numpy().reshape(gamma.shape)
        np.testing.assert_allclose(gamma, weight + (norms == "one plus"), rtol=1e-5, atol=1e-6)
        assert float(call.attrs["epsilon"]) == (1e-5 if kind == "layer_norm" else 1e-6)


class AllChannels(Grouped):
    """Norms of queries and keys over the channels of all heads, before these are split."""

    def __init__(self, kind: type[torch.nn.Module]) -> None:
        super().__init__("gqa")
        self.of_all = torch.nn.ModuleList(kind(width) for width in self.widths[:2])
        query, key = self.query, self.key
        self.query = torch.nn.Sequential(query, self.of_all[0])
        self.key = torch.nn.Sequential(key, self.of_all[1])


@pytest.mark.slow
@pytest.mark.parametrize("kind", examples([torch.nn.LayerNorm, torch.nn.RMSNorm], torch.nn.RMSNorm))
def test_norms_over_the_channels_of_all_heads(kind: type[torch.nn.Module]) -> None:
    torch.manual_seed(1)
    model = ibert.load(AllChannels(kind).eval())
    shapes = [
        [int(size) for size in call.args[1].ty.shape.values]
        for call in calls_of(model, "layer_norm", "rms_norm")
    ]
    assert shapes == [[HEADS * HEAD], [2 * HEAD], [WIDTH]]


class OverHeads(Grouped):
    """A norm over the heads of each channel."""

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        x = self.query(self.words(input_ids)).view(*input_ids.shape, HEADS, HEAD)
        return (x * torch.rsqrt(x.pow(2).mean(-2, keepdim=True) + 1e-6)).flatten(2)


def test_a_norm_over_anything_else_is_refused() -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        ibert.load(OverHeads("gqa").eval(), verify=False)
    assert caught.value.what == "relax.power has no integer form here"
