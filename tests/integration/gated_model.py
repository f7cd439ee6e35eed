"""Encoders with gated layers and RMSNorm, quantised: what all targets must compute alike."""

from __future__ import annotations

import numpy as np

import ibert_tvm as ibert
from ibert_tvm.model.artefact import QuantizedModel
from tests.cache import quantised_once
from tests.frontend.gated_modules import VOCABULARY, gated
from tests.random_models import random_ids

# Both gates, both norms of a text model, both ways to write two projections.
MODELS = {
    "silu": ("silu", "rms", False),
    "gelu": ("gelu", "one plus", True),
    "sigmoid": ("sigmoid", "torch", True),
}


def inputs(batch: int, length: int, seed: int, tokens: int | None = None) -> dict[str, np.ndarray]:
    """Random ids; the last row has so many tokens, by default all, and padding behind them."""
    return random_ids(VOCABULARY, batch, length, seed, tokens)


@quantised_once
def gated_model(name: str = "silu", preset: str = "accurate") -> QuantizedModel:
    """Quantise one of `MODELS`."""
    canonical = ibert.load(gated(*MODELS[name]), verify=False)
    batches = [inputs(8, 24, seed) for seed in range(6)]
    return ibert.quantize(canonical, calibration=batches, preset=preset)
