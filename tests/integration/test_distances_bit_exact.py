"""Windows and biases by distance, from torch to libraries: every integer, everywhere."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

import ibert_tvm as ibert
from ibert_tvm.evaluation.metrics import row_cosine
from ibert_tvm.model.artefact import QuantizedModel
from ibert_tvm.relay_passes.canonical import FloatModel
from tests.arm.whole_models import check_on_board
from tests.cache import quantised_once
from tests.cuda.gpu_models import build
from tests.frontend.test_distances import LONGEST, VOCABULARY, CausalWindow, mpnet
from tests.integration.whole_models import (
    Inputs,
    assert_bit_exact,
    build_library,
    random_inputs,
    reference,
)

pytestmark = pytest.mark.slow

# Longer than a window or the largest distance with an entry of its own, too.
SHAPES = [(1, 13), (3, 48), (1, 140)]
NAMES = ("input_ids", "attention_mask")
CASES = [
    (kind, preset, shape)
    for kind, preset, shape in itertools.product(("mpnet", "window"), ("accurate", "paper"), SHAPES)
    if kind == "mpnet" or shape[1] <= LONGEST
]


def source(kind: str):
    torch.manual_seed(7)
    module = mpnet(layers=1) if kind == "mpnet" else CausalWindow().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 2:  # larger than the usual initialisation: differences must show
                parameter.normal_(0, 0.3)
    return ibert.load(module)


@quantised_once
def model(kind: str, preset: str) -> QuantizedModel:
    batches = [inputs(2, 40, seed) for seed in range(4)]
    return ibert.quantize(source(kind), calibration=batches, preset=preset)


def inputs(batch: int, seq_len: int, seed: int, padding: bool = False) -> Inputs:
    return random_inputs(NAMES, batch, seq_len, VOCABULARY, seed, padding)


@pytest.mark.parametrize(("kind", "preset", "shape"), CASES)
def test_on_this_processor(kind: str, preset: str, shape: tuple[int, int], tmp_path: Path) -> None:
    quantized = model(kind, preset)
    library = build_library(quantized, [shape], tmp_path)
    for padding in (False, True):
        assert_bit_exact(library, quantized, inputs(*shape, seed=3, padding=padding))


@pytest.mark.parametrize("kind", ["mpnet", "window"])
def test_integers_follow_the_float_model(kind: str) -> None:
    quantized, canonical = model(kind, "accurate"), source(kind)
    arrays = inputs(3, 48, 9)
    arrays["attention_mask"][2, 30:] = 0
    floats = FloatModel(canonical.module, canonical.parameters).run(arrays).outputs[0]
    integers = reference(quantized, arrays)[0]
    tokens = arrays["attention_mask"] != 0
    assert row_cosine(floats[tokens], integers[tokens]).mean() > 0.99


@pytest.mark.qemu
@pytest.mark.parametrize("kind", ["mpnet", "window"])
def test_on_a_board(kind: str, tmp_path: Path) -> None:
    arrays = {name: a.astype(np.int32) for name, a in inputs(3, 48, 2, padding=True).items()}
    check_on_board(model(kind, "accurate"), "rpi4", (3, 48), arrays, tmp_path)


@pytest.mark.parametrize("kind", ["mpnet", "window"])
def test_on_a_gpu(kind: str, tmp_path: Path) -> None:
    quantized = model(kind, "accurate")
    library = build(quantized, "t4", [(3, 48)], tmp_path / "model.so")
    assert_bit_exact(library, quantized, inputs(3, 48, 2, padding=True))
