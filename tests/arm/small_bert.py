"""A small BERT with random weights, quantised: what all ARM targets must compute alike."""

from __future__ import annotations

import numpy as np

from ibert_tvm.model.artefact import QuantizedModel
from tests.cache import quantised_once
from tests.random_models import random_bert, random_ids

VOCABULARY = 90


def inputs(batch: int, seq_len: int, seed: int, tokens: int | None = None) -> dict[str, np.ndarray]:
    """Random ids and token types; the last row has so many tokens, and padding behind them."""
    return random_ids(VOCABULARY, batch, seq_len, seed, tokens, types=2, first=3)


@quantised_once
def small_bert(layers: int = 1, hidden: int = 64, preset: str = "accurate") -> QuantizedModel:
    """Quantise a BERT with a pooler.

    Parameters
    ----------
    layers, hidden
        Its size; heads are 32 wide, the feed-forward layers three times `hidden`.
    preset
        Of the quantisation.
    """
    import ibert_tvm as ibert

    model = random_bert(
        7,
        0.15,
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        intermediate_size=3 * hidden,
        max_position_embeddings=40,
    )
    canonical = ibert.load(model, head="pooled", verify=False)
    batches = [inputs(2, 24, seed) for seed in range(3)]
    return ibert.quantize(canonical, calibration=batches, preset=preset)


def expected(model: QuantizedModel, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What the integer specification says."""
    from ibert_tvm.relay_passes.integer.evaluate import evaluate

    kinds = {var.name: str(var.ty.dtype) for var in model.module["main"].params}
    typed = {name: arrays[name].astype(kinds[name]) for name in model.input_names}
    return evaluate(model.module, typed, model.parameters)
