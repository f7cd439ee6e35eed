"""A small BERT with random weights, quantised: what all ARM targets must compute alike."""

from __future__ import annotations

import numpy as np

from ibert_tvm.model.artefact import QuantizedModel
from tests.cache import quantised_once

VOCABULARY = 90


def inputs(batch: int, seq_len: int, seed: int, tokens: int | None = None) -> dict[str, np.ndarray]:
    """Random ids; the last row has so many tokens, by default all, and padding behind them."""
    random = np.random.default_rng(seed)
    mask = np.ones((batch, seq_len), np.int32)
    if tokens is not None:
        mask[-1, tokens:] = 0
    ids = random.integers(3, VOCABULARY, (batch, seq_len)).astype(np.int32)
    kinds = random.integers(0, 2, (batch, seq_len)).astype(np.int32)
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": kinds}


@quantised_once
def small_bert(layers: int = 2, hidden: int = 64, preset: str = "accurate") -> QuantizedModel:
    """Quantise a BERT with a pooler.

    Parameters
    ----------
    layers, hidden
        Its size; heads are 32 wide, the feed-forward layers three times `hidden`.
    preset
        Of the quantisation.
    """
    import torch
    import transformers as hf

    import ibert_tvm as ibert

    torch.manual_seed(7)
    config = hf.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        intermediate_size=3 * hidden,
        max_position_embeddings=40,
    )
    model = hf.BertModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:  # larger than the usual initialisation: differences must show
                parameter.normal_(0, 0.15)
    canonical = ibert.load(model, head="pooled", verify=False)
    batches = [inputs(2, 24, seed) for seed in range(3)]
    return ibert.quantize(canonical, calibration=batches, preset=preset)


def expected(model: QuantizedModel, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What the integer specification says."""
    from ibert_tvm.relay_passes.integer.evaluate import evaluate

    kinds = {var.name: str(var.ty.dtype) for var in model.module["main"].params}
    typed = {name: arrays[name].astype(kinds[name]) for name in model.input_names}
    return evaluate(model.module, typed, model.parameters)
