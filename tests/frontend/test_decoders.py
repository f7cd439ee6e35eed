"""Bodies of decoders in transformers, and embedders made of them.

What they have together: rotations, behind norms of heads or not, shared keys, four norms a layer,
1 + w, scaled embeddings, a scale of the scores of their own, windows to either side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf

import ibert_tvm as ibert
from ibert_tvm.frontend import CanonicalModel, UnsupportedModelError
from tests.examples import examples
from tests.frontend.imports import calls_of, ops
from tests.snapshots import Messages

pytestmark = pytest.mark.slow

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WIDE = {**SMALL, "head_dim": 12}
GEMMA = {**WIDE, "query_pre_attn_scalar": 24, "sliding_window": 8}
MODELS: dict[str, Callable[[], Any]] = {
    "cohere": lambda: hf.CohereModel(hf.CohereConfig(**SMALL)),
    "eurobert": lambda: hf.EuroBertModel(hf.EuroBertConfig(**WIDE, mask_token_id=3)),
    "gemma2": lambda: hf.Gemma2Model(hf.Gemma2Config(**WIDE)),
    "gemma2, no cap": lambda: hf.Gemma2Model(hf.Gemma2Config(**WIDE, attn_logit_softcapping=None)),
    "gemma3": lambda: hf.Gemma3TextModel(hf.Gemma3TextConfig(**GEMMA)),
    "embedding gemma": lambda: hf.Gemma3TextModel(
        hf.Gemma3TextConfig(**GEMMA, use_bidirectional_attention=True)
    ),
    "granite": lambda: hf.GraniteModel(
        hf.GraniteConfig(**SMALL, attention_multiplier=0.3, embedding_multiplier=3.0)
    ),
    "llama": lambda: hf.LlamaModel(hf.LlamaConfig(**WIDE)),
    "one head of keys": lambda: hf.LlamaModel(
        hf.LlamaConfig(**{**SMALL, "num_key_value_heads": 1})
    ),
    "mistral": lambda: hf.MistralModel(hf.MistralConfig(**WIDE, sliding_window=8)),
    "olmo2": lambda: hf.Olmo2Model(hf.Olmo2Config(**SMALL)),
    "qwen3": lambda: hf.Qwen3Model(hf.Qwen3Config(**WIDE)),
}


def load(module: Any) -> CanonicalModel:
    """Import a module with random weights of every kind."""
    torch.manual_seed(4)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += torch.randn_like(parameter) * 0.1
    return ibert.load(module.eval(), head="none")


@pytest.mark.parametrize(
    "name", examples(MODELS, "gemma2", "gemma3", "llama", "qwen3", otherwise="record")
)
def test_bodies_import(name: str) -> None:
    source = MODELS[name]()
    model = load(source)
    assert model.verified_error is not None
    assert ops(model).count("rotate") == 2
    (call,) = calls_of(model, "attention")
    q, k, v = (int(operand.ty.shape.values[-1]) for operand in call.args[:3])
    shared = source.config.num_key_value_heads
    assert shared * q == SMALL["num_attention_heads"] * k and k == v
    # A table that the sum and the norm behind it read, however it is scaled.
    assert ops(model).count("embedding") == 1


def test_what_gemma_has_besides() -> None:
    model = load(MODELS["embedding gemma"]())
    (call,) = calls_of(model, "attention")
    assert float(call.attrs["scale"]) == pytest.approx(24**-0.5)
    assert (int(call.attrs["before"]), int(call.attrs["after"])) == (4, 4)
    # Four of a layer, those of queries and keys, and the last.
    assert ops(model).count("rms_norm") == 7


def test_neighbours_that_a_norm_weighs_are_not_reordered(messages: Messages) -> None:
    with messages.raises(UnsupportedModelError):
        load(hf.CohereModel(hf.CohereConfig(**SMALL, use_qk_norm=True)))
