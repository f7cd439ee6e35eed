"""Encoders with rotary embeddings, from transformers to libraries: every integer, everywhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ibert_tvm as ibert
from ibert_tvm.evaluation.metrics import row_cosine
from ibert_tvm.model.artefact import QuantizedModel
from ibert_tvm.relay_passes.canonical import FloatModel
from tests.arm.whole_models import check_on_board, check_on_microcontroller
from tests.cache import quantised_once
from tests.cuda.gpu_models import build
from tests.examples import examples
from tests.frontend.rotary_modules import CONFIGS, encoder
from tests.frontend.test_modules import VOCABULARY
from tests.integration.whole_models import (
    Inputs,
    assert_bit_exact,
    build_library,
    random_inputs,
    reference,
)

pytestmark = pytest.mark.slow

NAMES = ("input_ids", "attention_mask")
# Longer than ModernBERT's window of 8 to both sides, with padding.
SHAPE = (3, 40)


@quantised_once
def model(name: str, preset: str) -> QuantizedModel:
    batches = [inputs(2, 40, seed) for seed in range(4)]
    return ibert.quantize(ibert.load(encoder(name)), calibration=batches, preset=preset)


def inputs(batch: int, seq_len: int, seed: int, padding: bool = False) -> Inputs:
    return random_inputs(NAMES, batch, seq_len, VOCABULARY, seed, padding)


CASES = [(name, preset) for name in CONFIGS for preset in ("accurate", "paper")]


@pytest.mark.parametrize(
    ("name", "preset"),
    examples(
        CASES,
        *((name, "accurate") for name in ("modernbert", "qwen3", "jina_embeddings_v3")),
        ("modernbert", "paper"),
        otherwise="record",
        unpack=True,
    ),
)
def test_on_this_processor(name: str, preset: str, tmp_path: Path) -> None:
    quantized = model(name, preset)
    library = build_library(quantized, [(1, 13), SHAPE], tmp_path)
    assert_bit_exact(library, quantized, inputs(1, 13, 5))
    for padding in (False, True):
        assert_bit_exact(library, quantized, inputs(*SHAPE, seed=3, padding=padding))


@pytest.mark.parametrize(
    "name", examples(CONFIGS, "modernbert", "nomic_bert", "roformer", otherwise="record")
)
def test_integers_follow_the_float_model(name: str) -> None:
    quantized, canonical = model(name, "accurate"), ibert.load(encoder(name), verify=False)
    arrays = inputs(*SHAPE, 9)
    arrays["attention_mask"][2, 30:] = 0
    floats = FloatModel(canonical.module, canonical.parameters).run(arrays).outputs[0]
    integers = reference(quantized, arrays)[0]
    tokens = arrays["attention_mask"] != 0
    assert row_cosine(floats[tokens], integers[tokens]).mean() > 0.99


BOARDS = [(target, name) for target in ("rpi4", "armv7-neon") for name in CONFIGS]


@pytest.mark.qemu
@pytest.mark.parametrize(
    ("target", "name"),
    examples(
        BOARDS, ("rpi4", "modernbert"), ("armv7-neon", "roformer"), unpack=True, otherwise="record"
    ),
)
def test_on_a_board(target: str, name: str, tmp_path: Path) -> None:
    arrays = {k: a.astype(np.int32) for k, a in inputs(*SHAPE, 2, padding=True).items()}
    check_on_board(model(name, "accurate"), target, SHAPE, arrays, tmp_path)


CONTROLLERS = [(target, name) for target in ("cortex-m4", "cortex-m55") for name in CONFIGS]


@pytest.mark.qemu
@pytest.mark.parametrize(
    ("target", "name"),
    examples(
        CONTROLLERS,
        ("cortex-m4", "granite"),
        ("cortex-m55", "nomic_bert"),
        unpack=True,
        otherwise="record",
    ),
)
def test_on_a_microcontroller(target: str, name: str, tmp_path: Path) -> None:
    arrays = {k: a.astype(np.int32) for k, a in inputs(1, 21, 2).items()}
    arrays["attention_mask"][0, 15:] = 0
    check_on_microcontroller(model(name, "accurate"), target, 21, arrays, tmp_path)


@pytest.mark.parametrize("name", ["modernbert", "roformer"])
def test_on_a_gpu(name: str, tmp_path: Path) -> None:
    quantized = model(name, "accurate")
    library = build(quantized, "t4", [SHAPE], tmp_path / "model.so")
    assert_bit_exact(library, quantized, inputs(*SHAPE, 2, padding=True))
