"""Sentence encoders with all that follows their transformers: what all targets must agree on."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import ibert_tvm as ibert
from ibert_tvm.model.artefact import QuantizedModel
from tests.cache import quantised_once
from tests.frontend.sentence_folders import (
    CHANNELS,
    NORMALIZE,
    POOLINGS,
    TRANSFORMER,
    Module,
    dense,
    pooling,
    save,
)

_SPARSE = "sentence_transformers.sparse_encoder.models."
_TOKENS = dense(CHANNELS, 16, "linear.Identity", bias=False)
MODULES: dict[str, list[Module]] = {
    "every pooling": [
        TRANSFORMER,
        pooling(*POOLINGS),
        dense(len(POOLINGS) * CHANNELS, 12),
        NORMALIZE,
    ],
    "last token": [TRANSFORMER, pooling("lasttoken"), NORMALIZE],
    "late interaction": [TRANSFORMER, ("pylate.models.Dense.Dense", *_TOKENS[1:])],
    "splade": [
        (f"{_SPARSE}MLMTransformer", "", {}),
        (f"{_SPARSE}SpladePooling", "1_SpladePooling", {}),
    ],
}
VOCABULARY = 61


def inputs(batch: int, length: int, seed: int, tokens: int | None = None) -> dict[str, np.ndarray]:
    """Random ids; the last row has so many tokens with padding behind, the first one in front."""
    random = np.random.default_rng(seed)
    mask = np.ones((batch, length), np.int32)
    if tokens is not None:
        mask[0, : length - tokens] = 0
        mask[-1] = 0
        mask[-1, :tokens] = 1
    ids = random.integers(2, VOCABULARY, (batch, length)).astype(np.int32)
    types = np.zeros_like(ids)
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}


@quantised_once
def sentence_model(name: str, preset: str = "accurate") -> QuantizedModel:
    """Quantise one of `MODULES`."""
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder), MODULES[name], head="masked_lm" if name == "splade" else "none")
        canonical = ibert.load(Path(folder), verify=False)
    batches = [inputs(8, 24, seed) for seed in range(4)]
    return ibert.quantize(canonical, calibration=batches, preset=preset)
