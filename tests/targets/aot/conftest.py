"""A whole small BERT, compiled without runtime for this machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ibert_tvm.model.artefact import QuantizedModel
from tests.cache import quantised_once


@quantised_once
def _bert() -> QuantizedModel:
    """BERT of one layer, 64 wide, with random weights; hidden states and a pooled output."""
    import torch
    import transformers as hf

    import ibert_tvm as ibert

    torch.manual_seed(3)
    config = hf.BertConfig(
        vocab_size=211,
        hidden_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=192,
        max_position_embeddings=64,
    )
    model = hf.AutoModel.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:  # larger than the usual initialisation: differences must show
                parameter.normal_(0, 0.1)
    canonical = ibert.load(model, head="pooled")
    random = np.random.default_rng(5)
    batches = [
        {
            "input_ids": random.integers(3, 211, (4, 24)),
            "attention_mask": np.ones((4, 24), np.int64),
            "token_type_ids": random.integers(0, 2, (4, 24)),
        }
        for _ in range(3)
    ]
    return ibert.quantize(canonical, calibration=batches)


@pytest.fixture(scope="session")
def quantized() -> QuantizedModel:
    return _bert()


@pytest.fixture(scope="session")
def compiled(quantized):
    """It, compiled without runtime for this machine, in several shapes."""
    import ibert_tvm as ibert
    from tests.targets.aot.bare_bert import SHAPES

    return ibert.compile(quantized, target="host", shapes=SHAPES, runtime="none")


@pytest.fixture(scope="session")
def library_path(compiled, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, with its header beside it."""
    return compiled.export(tmp_path_factory.mktemp("bare") / "model.so")
