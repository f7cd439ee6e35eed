"""Models with other matrix operands, quantised: what all targets must compute alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

import ibert_tvm as ibert
from ibert_tvm.model.artefact import QuantizedModel
from tests.cache import quantised_once
from tests.frontend.gated_modules import gated
from tests.integration import gated_model
from tests.random_models import random_bert, random_ids

if TYPE_CHECKING:
    from ibert_tvm.quantization import CalibrationOptions

VOCABULARY = 97


def inputs(
    name: str, batch: int, length: int, seed: int, tokens: int | None = None
) -> dict[str, np.ndarray]:
    """Random ids; the last row has so many tokens, by default all, and padding behind them."""
    if name == "gated":
        return gated_model.inputs(batch, length, seed, tokens)
    return random_ids(VOCABULARY, batch, length, seed, tokens, types=1)


@quantised_once
def row_scale_model(name: str = "gated", row_scales: str = "always") -> QuantizedModel:
    """Quantise an encoder with gates and RMSNorm ("gated"), or a BERT ("bert")."""
    from ibert_tvm.quantization.options import CalibrationOptions

    return _quantised(name, CalibrationOptions(row_scales=row_scales))


@quantised_once
def wide_model(name: str = "gated") -> QuantizedModel:
    """The same encoders with operands of 16 bits, fidelity "best"."""
    from ibert_tvm.quantization import options_of

    return _quantised(name, options_of("best"))


def _quantised(name: str, options: CalibrationOptions) -> QuantizedModel:
    if name == "gated":
        canonical = ibert.load(gated(*gated_model.MODELS["silu"]), verify=False)
    else:
        canonical = ibert.load(_bert(), head="none", verify=False)
    batches = [inputs(name, 8, 24, seed) for seed in range(4)]
    return ibert.quantize(canonical, calibration=batches, options=options)


def _bert() -> object:
    """Two layers; GELU's output has channels far larger than the others."""
    import torch

    model = random_bert(0, vocab_size=VOCABULARY)
    with torch.no_grad():
        for layer in model.encoder.layer:
            layer.intermediate.dense.weight[5] *= 30
    return model
