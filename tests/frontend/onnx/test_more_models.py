"""Bodies of other encoders, and of decoders, as both of torch's exporters write them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers as hf

from ibert_tvm.relay_passes.dialect.calls import operands_of
from tests.examples import examples
from tests.frontend.architectures import SIZES
from tests.frontend.disentangled import disentangled
from tests.frontend.imports import calls_of, verified
from tests.frontend.onnx.exports import export

MARKS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SHARED = {"num_key_value_heads": 2, "head_dim": 8}
MODELS: dict[str, Callable[[], Any]] = {
    "deberta": lambda: disentangled("first", position_biased_input=True),
    "deberta-v2": lambda: disentangled("plain", position_biased_input=True),
    "deberta-v3": lambda: disentangled("buckets", position_biased_input=False),
    "gemma2": lambda: hf.Gemma2Model(hf.Gemma2Config(**SIZES, **SHARED, **MARKS)),
    "gpt_neox": lambda: hf.GPTNeoXModel(hf.GPTNeoXConfig(**SIZES, **MARKS)),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dynamo"),
    examples(
        [(n, d) for n in MODELS for d in (False, True)],
        ("gpt_neox", False),
        otherwise="record",
        slow=[*((n, False) for n in MODELS if n != "gpt_neox"), ("deberta-v3", True)],
        unpack=True,
    ),
)
def test_exports_agree_with_onnx_runtime(name: str, dynamo: bool, tmp_path: Path) -> None:
    source = MODELS[name]().eval()
    source.config.use_cache = False
    source.set_attn_implementation("eager")
    export(source, tmp_path / "model.onnx", ["input_ids", "attention_mask"], dynamo)
    calls = calls_of(verified(tmp_path / "model.onnx", 1e-4), "attention")
    assert len(calls) == 2
    for call in calls:
        terms = {"key_positions", "query_positions"} & {*operands_of(call)}
        assert len(terms) == (2 if name.startswith("deberta") else 0)
        assert float(call.attrs["cap"]) == (50.0 if name == "gemma2" else 0.0)
