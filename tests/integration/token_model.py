"""Encoders that join, shift, mask and scale tokens, quantised: what all targets compute alike."""

from __future__ import annotations

from typing import Any

import numpy as np

import ibert_tvm as ibert
from ibert_tvm.model.artefact import QuantizedModel
from tests.cache import quantised_once
from tests.frontend.token_modules import (
    PLANES,
    SIDE,
    VOCABULARY,
    Neighbours,
    Places,
    Registers,
    Seen,
    made,
)
from tests.random_models import random_ids

MODELS: dict[str, tuple[Any, ...]] = {
    "neighbours": (Neighbours, "relu6", True),
    "tokens": (Neighbours, "leaky", False),
    "registers": (Registers, "hard swish"),
    "places": (Places,),
    "seen": (Seen,),
    "hard": (Neighbours, "hard sigmoid", True),
    "masked": (Neighbours, "relu6", False, False),
}
PATCHES = (SIDE // 8) ** 2
TOKENS = {"registers": PATCHES + 3, "places": PATCHES + 1, "seen": PATCHES}
"""Of a sequence, where they are patches of an image."""


def float_inputs(name: str, batch: int, length: int, seed: int, tokens: int | None = None) -> Any:
    """Images, or ids and a mask; the last row has so many tokens, and padding behind them."""
    if name in TOKENS:
        pixels = np.random.default_rng(seed).normal(size=(batch, PLANES, SIDE, SIDE))
        return {"pixel_values": pixels.astype(np.float32)}
    return random_ids(VOCABULARY, batch, length, seed, tokens)


def inputs(
    model: QuantizedModel, name: str, batch: int, length: int, seed: int, tokens: int
) -> Any:
    """As a library takes them: images in integers."""
    given = float_inputs(name, batch, length, seed, tokens)
    if name not in TOKENS:
        return given
    (record,) = model.quantization["inputs"]
    steps = np.rint(given["pixel_values"] / record["scale"])
    pixels = np.clip(steps + record["zero_point"], record["low"], record["high"])
    return {"pixel_values": pixels.astype(record["dtype"])}


@quantised_once
def token_model(name: str = "neighbours", preset: str = "accurate") -> QuantizedModel:
    """Quantise one of `MODELS`."""
    size = (PLANES, SIDE, SIDE) if name in TOKENS else None
    canonical = ibert.load(made(*MODELS[name]), image_size=size, verify=False)
    batches = [float_inputs(name, 8, 24, seed) for seed in range(6)]
    return ibert.quantize(canonical, calibration=batches, preset=preset)
