"""Exports by torch's exporters agree with ONNX Runtime and keep the names of the source."""

from __future__ import annotations

from pathlib import Path

import pytest

from ibert_tvm.frontend import CanonicalModel
from tests.examples import examples
from tests.frontend.imports import verified

from .exports import exported, inputs_of

LAYER = ["linear"] * 3 + ["attention", "linear", "add", "layer_norm"]
LAYER += ["linear", "gelu", "linear", "add", "layer_norm"]
PARTS = [
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.self",
    "attention.output.dense",
    "attention.output.dense.add",
    "attention.output.LayerNorm",
    "intermediate.dense",
    "intermediate.dense.gelu",
    "output.dense",
    "output.dense.add",
    "output.LayerNorm",
]


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("exports")


def check(file: Path, architecture: str) -> CanonicalModel:
    model = verified(file, 1e-4)
    assert model.report.refusals == []
    assert model.info.num_layers == 2
    ops = [item.op.removeprefix("canonical.") for item in model.report.matched]
    assert sorted(ops[-len(LAYER) :]) == sorted(LAYER)
    # Eager masks of DistilBERT and RoBERTa take no token types.
    assert list(model.info.inputs) == inputs_of(architecture)
    return model


@pytest.mark.parametrize(
    ("architecture", "attention", "dynamo", "opset"),
    [
        ("bert", "eager", False, 14),
        pytest.param("bert", "sdpa", True, 23, marks=pytest.mark.slow),
        pytest.param("distilbert", "eager", True, 18, marks=pytest.mark.slow),
    ],
)
def test_exports_agree_with_onnx_runtime(folder, architecture, attention, dynamo, opset):
    model = check(exported(folder, architecture, attention, dynamo, opset), architecture)
    if architecture != "bert":
        return
    # Transposed weights lose their names in both exporters, and equal ones share one.
    layer = "model.encoder.layer.1"
    names = [item.name for item in model.report.matched]
    assert names[-len(PARTS) :] == [f"{layer}.{part}" for part in PARTS]
    assert f"{layer}.attention.self.query.weight" in model.parameters
    # The report says which array of the file that is.
    stored = model.report.weights[f"{layer}.attention.self.query.weight"]
    assert stored.startswith("val_" if dynamo else "onnx::MatMul_")


@pytest.mark.slow
@pytest.mark.parametrize(
    "architecture",
    examples(["bert", "roberta", "distilbert", "electra"], "roberta", otherwise="record"),
)
@pytest.mark.parametrize(
    ("attention", "dynamo", "opset"),
    examples(
        [
            ("eager", False, 11),
            ("eager", False, 13),
            ("eager", False, 17),
            ("sdpa", False, 14),
            ("sdpa", False, 17),
            ("sdpa", False, 18),
            ("eager", True, 18),
            ("eager", True, 23),
            ("sdpa", True, 18),
            ("sdpa", True, 20),
        ],
        ("eager", False, 11),
        ("sdpa", False, 17),
        ("eager", True, 18),
        ("sdpa", True, 20),
        otherwise="record",
        unpack=True,
    ),
)
def test_more_exports(folder, architecture, attention, dynamo, opset):
    check(exported(folder, architecture, attention, dynamo, opset), architecture)


@pytest.mark.slow
@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.parametrize(
    ("head", "kind"),
    [
        ("pooled", "pooled"),
        ("sequence_classification", "logits"),
        ("token_classification", "token_logits"),
        ("question_answering", "span_logits"),
    ],
)
def test_heads(folder, head, kind, dynamo):
    chosen = head if head == "question_answering" else None
    model = verified(exported(folder, "bert", "sdpa", dynamo, 18, head), 1e-4, head=chosen)
    assert (model.info.head, model.info.outputs[0].kind) == (head, kind)
