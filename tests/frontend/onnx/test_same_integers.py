"""The same weights give the same integers, whichever way they came."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import ibert_tvm as ibert
from ibert_tvm.evaluation.evaluate import evaluate_integers
from ibert_tvm.model.artefact import QuantizedModel
from tests.examples import examples
from tests.frontend.architectures import make

from .exports import exported


def batch() -> dict[str, NDArray[np.int64]]:
    random = np.random.default_rng(0)
    mask = np.ones((8, 16), np.int64)
    mask[::3, 10:] = 0
    return {
        "input_ids": np.where(mask, random.integers(3, 61, mask.shape), 1) * mask + (1 - mask),
        "attention_mask": mask,
    }


def integers(model: QuantizedModel) -> dict[str, NDArray[np.int64]]:
    inputs = batch()
    return evaluate_integers(model, {**inputs, "token_type_ids": np.zeros((8, 16), np.int64)})


def compare(folder: Path, file: Path) -> None:
    reference = ibert.quantize(ibert.load(folder, verify=False), [batch()])
    imported = ibert.quantize(ibert.load(file, verify=False), [batch()])
    # Every constant of the program, in its order; only names may differ.
    arrays = [list(model.parameters.values()) for model in (reference, imported)]
    assert len(arrays[0]) == len(arrays[1])
    for have, want in zip(*arrays, strict=True):
        np.testing.assert_array_equal(have, want)
    expected, result = integers(reference), integers(imported)
    assert list(expected) == list(result)
    for name, array in expected.items():
        np.testing.assert_array_equal(result[name], array)
    assert int(array.max()) - int(array.min()) > 1000


def saved(folder: Path, architecture: str) -> Path:
    make(architecture).save_pretrained(folder / architecture)
    return folder / architecture


EXPORTERS = [
    ("eager", False, 11),
    ("eager", False, 17),
    ("sdpa", False, 14),
    ("sdpa", False, 17),
    ("eager", True, 18),
    ("sdpa", True, 18),
    ("sdpa", True, 23),
]


@pytest.mark.parametrize(
    ("architecture", "attention", "dynamo", "opset"),
    examples(
        [(a, *how) for a in ("bert", "roberta", "distilbert", "electra") for how in EXPORTERS],
        slow=[("bert", *EXPORTERS[2]), *(("electra", *EXPORTERS[k]) for k in (0, 3, 4, 6))],
        otherwise="record",
        unpack=True,
    ),
)
def test_same_integers_from_every_exporter(tmp_path, architecture, attention, dynamo, opset):
    file = exported(tmp_path, architecture, attention, dynamo, opset)
    compare(saved(tmp_path, architecture), file)


@pytest.mark.slow
def test_same_integers_after_the_optimiser_of_onnx_runtime(tmp_path):
    optimizer = pytest.importorskip(
        "onnxruntime.transformers.optimizer", reason="this onnxruntime has no optimiser"
    )
    from onnxruntime.transformers.fusion_options import FusionOptions

    options = FusionOptions("bert")
    options.use_raw_attention_mask(True)
    model = optimizer.optimize_model(
        str(exported(tmp_path, "bert", "eager", False, 14)),
        model_type="bert",
        num_heads=4,
        hidden_size=32,
        optimization_options=options,
        opt_level=0,
    )
    assert model.get_fused_operator_statistics()["Attention"] == 2
    file = tmp_path / "fused.onnx"
    model.save_model_to_file(str(file))
    compare(saved(tmp_path, "bert"), file)
