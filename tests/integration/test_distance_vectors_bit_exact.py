"""Disentangled attention, from torch to libraries: every integer, everywhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ibert_tvm as ibert
from ibert_tvm.evaluation.metrics import row_cosine
from ibert_tvm.model.artefact import QuantizedModel
from ibert_tvm.relay_passes.canonical import FloatModel
from tests.arm.whole_models import check_on_board
from tests.cache import quantised_once
from tests.cuda.gpu_models import build
from tests.examples import examples
from tests.frontend.disentangled import VOCABULARY, disentangled
from tests.integration.whole_models import (
    Inputs,
    assert_bit_exact,
    build_library,
    random_inputs,
    reference,
)

pytestmark = pytest.mark.slow

NAMES = ("input_ids", "attention_mask")
# As long as there are positions, and shorter than buckets are exact.
SHAPES = [(3, 40), (1, 3)]


def source(kind: str):
    return ibert.load(disentangled(kind, layers=1, position_biased_input=True), head="none")


@quantised_once
def model(kind: str, preset: str) -> QuantizedModel:
    batches = [inputs(2, 40, seed) for seed in range(4)]
    return ibert.quantize(source(kind), calibration=batches, preset=preset)


def inputs(batch: int, seq_len: int, seed: int, padding: bool = False) -> Inputs:
    return random_inputs(NAMES, batch, seq_len, VOCABULARY, seed, padding)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("kind", "preset"),
    examples(
        [(kind, preset) for kind in ("buckets", "first") for preset in ("accurate", "paper")],
        *(("buckets", "accurate"), ("first", "paper")),
        otherwise="record",
        unpack=True,
    ),
)
def test_on_this_processor(kind: str, preset: str, shape: tuple[int, int], tmp_path: Path) -> None:
    quantized = model(kind, preset)
    library = build_library(quantized, [shape], tmp_path)
    for padding in (False, True):
        assert_bit_exact(library, quantized, inputs(*shape, seed=3, padding=padding))


@pytest.mark.parametrize("kind", ["buckets", "first"])
def test_integers_follow_the_float_model(kind: str) -> None:
    quantized, canonical = model(kind, "accurate"), source(kind)
    arrays = inputs(3, 40, 9)
    arrays["attention_mask"][2, 30:] = 0
    floats = FloatModel(canonical.module, canonical.parameters).run(arrays).outputs[0]
    integers = reference(quantized, arrays)[0]
    tokens = arrays["attention_mask"] != 0
    assert row_cosine(floats[tokens], integers[tokens]).mean() > 0.99


@pytest.mark.qemu
def test_on_a_board(tmp_path: Path) -> None:
    arrays = {name: a.astype(np.int32) for name, a in inputs(3, 40, 2, padding=True).items()}
    check_on_board(model("buckets", "accurate"), "rpi4", (3, 40), arrays, tmp_path)


def test_on_a_gpu(tmp_path: Path) -> None:
    quantized = model("buckets", "accurate")
    library = build(quantized, "t4", [(3, 40)], tmp_path / "model.so")
    assert_bit_exact(library, quantized, inputs(3, 40, 2, padding=True))
