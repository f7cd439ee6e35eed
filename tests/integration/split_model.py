"""A BERT with outliers in its feed-forward layers, in the default fidelity."""

from __future__ import annotations

import numpy as np

from ibert_tvm.model.artefact import QuantizedModel
from tests.cache import quantised_once
from tests.random_models import random_bert, random_ids

VOCABULARY = 97


def inputs(batch: int, length: int, seed: int, tokens: int | None = None) -> dict[str, np.ndarray]:
    """Random ids; the last row has so many tokens, by default all, and padding behind them."""
    return random_ids(VOCABULARY, batch, length, seed, tokens, types=1)


@quantised_once
def split_model(share: float = 0.25) -> QuantizedModel:
    """Quantise it, with a share of further columns, computed by layers or copied."""
    import torch

    import ibert_tvm as ibert
    from ibert_tvm.quantization import options_of

    model = random_bert(0, vocab_size=VOCABULARY)
    with torch.no_grad():
        for layer in model.encoder.layer:
            layer.intermediate.dense.weight[5] *= 30
            layer.intermediate.dense.weight[77] *= 12
    canonical = ibert.load(model, head="none", verify=False)
    batches = [inputs(4, 20, seed) for seed in range(3)]
    options = options_of("default", split_share=share, copied_share=share)
    return ibert.quantize(canonical, calibration=batches, options=options)
