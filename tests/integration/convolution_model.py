"""Encoders behind convolutions, quantised: what all targets compute alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import transformers as hf
from torch import nn

import ibert_tvm as ibert
from ibert_tvm.model.artefact import QuantizedModel
from ibert_tvm.runtime.pixels import image_record, quantize_images
from tests.cache import quantised_once
from tests.frontend.token_modules import WIDTH, Layer

MEL, FRAMES, PLANES, SIDE, VOCABULARY = 6, 26, 3, 11, 30
TOKENS = {"whisper": FRAMES // 2, "overlap": 36, "words": 9}
PRESETS = ("accurate", "paper")


class Overlap(nn.Module):
    """Patches of 4 x 4, two apart, with one row of 0 around the image."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(PLANES, WIDTH, 4, 2, 2)
        self.places = nn.Parameter(torch.zeros(1, TOKENS["overlap"], WIDTH))
        self.layer = Layer("relu6")

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        x = self.patches(pixel_values).flatten(2).transpose(1, 2)
        return self.layer(x + self.places, None)


class Words(nn.Module):
    """A convolution along a sequence of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.mixed = nn.Conv1d(WIDTH, WIDTH, 5, padding=2)
        self.layer = Layer("relu6")

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        x = self.mixed(self.words(input_ids).transpose(1, 2)).transpose(1, 2)
        return self.layer(x, attention_mask.bool()[:, None, None, :])


def whisper() -> nn.Module:
    """Whisper's encoder, of two layers and few frames."""
    config = hf.WhisperConfig(
        num_mel_bins=MEL,
        d_model=WIDTH,
        encoder_layers=2,
        encoder_attention_heads=2,
        encoder_ffn_dim=48,
        max_source_positions=FRAMES // 2,
    )
    return hf.models.whisper.modeling_whisper.WhisperEncoder(config)


MODELS = {"whisper": whisper, "overlap": Overlap, "words": Words}


def made(name: str) -> nn.Module:
    """A module with weights that every run has."""
    torch.manual_seed(3)
    module = MODELS[name]().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += torch.randn_like(parameter) * (0.3 if parameter.ndim == 2 else 0.2)
    return module


def float_inputs(name: str, batch: int, seed: int) -> dict[str, Any]:
    """What the source takes; the last row of words has padding."""
    random = np.random.default_rng(seed)
    if name == "words":
        shape = (batch, TOKENS[name])
        mask = np.ones(shape, np.int64)
        mask[-1, 6:] = 0
        return {"input_ids": random.integers(2, VOCABULARY, shape), "attention_mask": mask}
    size = (MEL, FRAMES) if name == "whisper" else (PLANES, SIDE, SIDE)
    key = "input_features" if name == "whisper" else "pixel_values"
    return {key: random.normal(size=(batch, *size)).astype(np.float32)}


def inputs(model: QuantizedModel, name: str, batch: int, seed: int) -> dict[str, Any]:
    """As a library takes them."""
    given = float_inputs(name, batch, seed)
    record = image_record(model.quantization.get("inputs", ()))
    if record is None:
        return {key: array.astype(np.int32) for key, array in given.items()}
    size = model.info.image_size or ()
    return {record.name: quantize_images(record, given[record.name], size)}


@quantised_once
def convolution_model(name: str = "whisper", preset: str = "accurate") -> QuantizedModel:
    """Quantise one of `MODELS`."""
    size = (PLANES, SIDE, SIDE) if name == "overlap" else None
    canonical = ibert.load(made(name), image_size=size)
    batches = [float_inputs(name, 8, seed) for seed in range(6)]
    return ibert.quantize(canonical, calibration=batches, preset=preset)
