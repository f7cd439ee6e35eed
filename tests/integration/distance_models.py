"""Encoders with windows, biases by distance and disentangled attention, quantised."""

from __future__ import annotations

import torch

import ibert_tvm as ibert
from ibert_tvm.frontend import CanonicalModel
from ibert_tvm.model.artefact import QuantizedModel
from tests.cache import quantised_once
from tests.frontend import disentangled
from tests.frontend.test_distances import LONGEST, VOCABULARY, CausalWindow, mpnet
from tests.integration.whole_models import Inputs, random_inputs

NAMES = ("input_ids", "attention_mask")
DISENTANGLED = ("buckets", "first")
KINDS = ("mpnet", "window", *DISENTANGLED)
# Longer than a window or the largest distance with an entry of its own, too; as long as there are
# positions, and shorter than buckets are exact.
SHAPES = {
    "mpnet": [(1, 13), (3, 48), (1, 140)],
    "window": [(1, 13), (3, min(48, LONGEST))],
    "buckets": [(3, 40), (1, 3)],
    "first": [(3, 40), (1, 3)],
}


def source(kind: str) -> CanonicalModel:
    """The float model."""
    if kind in DISENTANGLED:
        module = disentangled.disentangled(kind, layers=1, position_biased_input=True)
        return ibert.load(module, head="none")
    torch.manual_seed(7)
    module = mpnet(layers=1) if kind == "mpnet" else CausalWindow().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 2:  # larger than the usual initialisation: differences must show
                parameter.normal_(0, 0.3)
    return ibert.load(module)


def inputs(kind: str, batch: int, length: int, seed: int, tokens: int | None = None) -> Inputs:
    """Random ids; of several rows one has no token, and half of the last one is padding."""
    words = disentangled.VOCABULARY if kind in DISENTANGLED else VOCABULARY
    return random_inputs(NAMES, batch, length, words, seed, padding=tokens not in (None, length))


@quantised_once
def distance_model(kind: str, preset: str) -> QuantizedModel:
    """Quantise one of `KINDS`."""
    batches = [inputs(kind, 2, 40, seed) for seed in range(4)]
    return ibert.quantize(source(kind), calibration=batches, preset=preset)
