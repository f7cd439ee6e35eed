"""Encoders with rotary embeddings, quantised: what all targets must compute alike."""

from __future__ import annotations

import ibert_tvm as ibert
from ibert_tvm.model.artefact import QuantizedModel
from tests.cache import quantised_once
from tests.frontend.rotary_modules import CONFIGS, encoder
from tests.frontend.test_modules import VOCABULARY
from tests.integration.whole_models import Inputs, random_inputs

__all__ = ["CONFIGS", "inputs", "rotary_model"]

NAMES = ("input_ids", "attention_mask")


def inputs(batch: int, length: int, seed: int, tokens: int | None = None) -> Inputs:
    """Random ids; of several rows one has no token, and half of the last one is padding."""
    padding = tokens not in (None, length)
    return random_inputs(NAMES, batch, length, VOCABULARY, seed, padding=padding)


@quantised_once
def rotary_model(name: str, preset: str) -> QuantizedModel:
    """Quantise one of `CONFIGS`."""
    batches = [inputs(2, 40, seed) for seed in range(4)]
    return ibert.quantize(ibert.load(encoder(name)), calibration=batches, preset=preset)
