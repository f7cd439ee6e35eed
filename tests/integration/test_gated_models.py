"""Gated layers and RMSNorm from torch to the loaded library: integers, kernels, fidelity."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.relay_passes.integer.evaluate import evaluate
from tests.examples import examples
from tests.frontend.gated_modules import gated
from tests.integration.gated_model import MODELS, gated_model, inputs
from tests.lowering import lowered
from tests.passes.small import kernels

PRESETS = ("accurate", "paper")
CASES = examples(
    [(name, preset) for name in MODELS for preset in PRESETS], ("silu", "accurate"), unpack=True
)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "preset"), CASES)
def test_the_integers_stand_for_the_float_model(name: str, preset: str) -> None:
    import torch

    model, arrays = gated_model(name, preset), inputs(4, 24, 99, 11)
    (found,) = evaluate(model.module, arrays, model.parameters)
    found = found * model.quantization["outputs"][0]["scale"]
    with torch.no_grad():
        wanted = gated(*MODELS[name])(*(torch.tensor(a).long() for a in arrays.values())).numpy()
    real = arrays["attention_mask"] != 0
    a, b = found[real], wanted[real]
    cosine = (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)
    # 8 bits of 32 channels with weights that are far larger than those of a trained model.
    assert cosine.mean() > 0.995
    assert cosine.min() > 0.95


def test_smoothing_divides_the_product_by_channel() -> None:
    """The only requantisation between the product and the matrix behind it has the divisor."""
    model = gated_model()
    assert model.quantization["calibration"]["smoothing"]["up.multiply"] > 0
    forms = {form["form"]: form for form in model.quantization["values"]["up.multiply"]}
    assert set(forms) == {"native", "matmul"}
    assert len(set(forms["matmul"]["scale"])) > 1


@pytest.mark.slow
@pytest.mark.parametrize("name", examples(MODELS, "silu"))
def test_both_sides_of_the_gate_are_one_kernel(name: str) -> None:
    found = kernels(lowered(gated_model(name), "x86-64-v3", [(2, 13)]).fused.module)
    (gate,) = ([op for op, _ in k] for k in found.values() if "multiply" in [op for op, _ in k])
    assert gate.count("linear") == 1 and gate.count("split_channels") == 2 and name in gate
    assert gate[-2:] == ["multiply", "requantise_short"]


@pytest.mark.slow
@pytest.mark.parametrize("name", examples(MODELS, "silu"))
def test_without_vectors_the_gate_is_the_epilogue_of_one_side(name: str) -> None:
    found = kernels(lowered(gated_model(name), "cortex-m4", [(2, 13)]).fused.module)
    (gate,) = (k for k in found.values() if "multiply" in [op for op, _ in k])
    assert [op for op, _ in gate] == ["linear", "requantise_short", "multiply", "requantise_short"]
    activations = [[op for op, _ in k] for k in found.values() if name in [op for op, _ in k]]
    assert activations == [["linear", "requantise_short", name]]
