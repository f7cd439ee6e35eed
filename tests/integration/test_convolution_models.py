"""Encoders behind convolutions: from torch to the loaded library."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.frontend import ModelSourceError, load
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from tests.examples import examples
from tests.integration.convolution_model import (
    MODELS,
    PRESETS,
    convolution_model,
    float_inputs,
    inputs,
    made,
)

CASES = examples(
    [(name, preset) for name in MODELS for preset in PRESETS], ("overlap", "accurate"), unpack=True
)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "preset"), CASES)
def test_the_integers_stand_for_the_float_model(name: str, preset: str) -> None:
    import torch

    model, given = convolution_model(name, preset), float_inputs(name, 4, 99)
    (found,) = evaluate(model.module, inputs(model, name, 4, 99), model.parameters)
    found = found * model.quantization["outputs"][0]["scale"]
    with torch.no_grad():
        wanted = made(name)(**{key: torch.tensor(array) for key, array in given.items()})
    wanted = (wanted if isinstance(wanted, torch.Tensor) else wanted.last_hidden_state).numpy()
    real = given.get("attention_mask", np.ones(wanted.shape[:2])) != 0
    found, wanted = found[real], wanted[real]
    cosine = (found * wanted).sum(-1)
    cosine /= np.linalg.norm(found, axis=-1) * np.linalg.norm(wanted, axis=-1)
    assert cosine.mean() > 0.98


@pytest.mark.slow
def test_the_encoder_of_whisper_is_asked_for() -> None:
    import transformers as hf

    config = hf.WhisperConfig(
        **{"vocab_size": 61, "d_model": 16, "num_mel_bins": 4, "max_source_positions": 7},
        **{"encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 24},
        **{"decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 24},
        pad_token_id=0,
    )
    model = hf.WhisperModel(config).eval()
    with pytest.raises(ModelSourceError, match="WhisperModel is an encoder-decoder"):
        load(model)
    loaded = load(model, head="none")
    assert loaded.verified_error is not None and loaded.verified_error <= 1e-5
    info = loaded.info
    assert (info.inputs, info.image_size) == (("input_features",), (4, 14))
    assert (info.max_sequence_length, info.num_layers) == (7, 1)
