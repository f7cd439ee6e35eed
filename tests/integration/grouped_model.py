"""Shared keys, norms of heads and capped scores, quantised: what all targets compute alike."""

from __future__ import annotations

import ibert_tvm as ibert
from ibert_tvm.model.artefact import QuantizedModel
from tests.cache import quantised_once
from tests.frontend.grouped_modules import Grouped, grouped
from tests.integration.gated_model import inputs

# Both norms, weights of all heads and of each, and one head of keys.
MODELS = {
    "rms": ("gqa", 2, "rms"),
    "own": ("expand", 1, "own layer norm"),
    "plain": ("gqa", 2, ""),
    "capped": ("capped", 2, ""),
}


def source(name: str) -> Grouped:
    """The float model."""
    return grouped(*MODELS[name])


@quantised_once
def grouped_model(name: str, preset: str = "accurate") -> QuantizedModel:
    """Quantise one of `MODELS`."""
    canonical = ibert.load(source(name), verify=False)
    batches = [inputs(8, 24, seed) for seed in range(6)]
    return ibert.quantize(canonical, calibration=batches, preset=preset)
