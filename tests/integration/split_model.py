"""A BERT with outliers in its feed-forward layers, in the default fidelity."""

from __future__ import annotations

import numpy as np

from ibert_tvm.model.artefact import QuantizedModel
from tests.cache import quantised_once

VOCABULARY = 97


def inputs(batch: int, length: int, seed: int, tokens: int | None = None) -> dict[str, np.ndarray]:
    """Random ids; the last row has so many tokens, by default all, and padding behind them."""
    random = np.random.default_rng(seed)
    mask = np.ones((batch, length), np.int32)
    if tokens is not None:
        mask[-1, tokens:] = 0
    ids = random.integers(2, VOCABULARY, (batch, length)).astype(np.int32)
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "token_type_ids": np.zeros((batch, length), np.int32),
    }


@quantised_once
def split_model(share: float = 0.25) -> QuantizedModel:
    """Quantise it, with a share of further columns, computed by layers or copied."""
    import torch
    import transformers as hf

    import ibert_tvm as ibert
    from ibert_tvm.quantization import options_of

    torch.manual_seed(0)
    config = hf.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=64,
    )
    model = hf.AutoModel.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 0.1)
        for layer in model.encoder.layer:
            layer.intermediate.dense.weight[5] *= 30
            layer.intermediate.dense.weight[77] *= 12
    canonical = ibert.load(model, head="none", verify=False)
    batches = [inputs(4, 20, seed) for seed in range(3)]
    options = options_of("default", split_share=share, copied_share=share)
    return ibert.quantize(canonical, calibration=batches, options=options)
