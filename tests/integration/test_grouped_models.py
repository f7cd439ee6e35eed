"""Shared keys, norms of heads, capped scores: from torch to libraries, every integer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ibert_tvm.relay_passes.integer.evaluate import evaluate
from tests.examples import examples
from tests.frontend.grouped_modules import VOCABULARY
from tests.integration.gated_model import inputs
from tests.integration.grouped_model import MODELS, grouped_model, source
from tests.lowering import lowered
from tests.passes.small import kernels

LENGTH = 13
# Both norms, weights of all heads and of each, and one head of keys.
PRESETS = ("accurate", "paper")
CASES = examples(
    [(name, preset) for name in MODELS for preset in PRESETS], ("rms", "accurate"), unpack=True
)


def test_the_vocabulary_is_that_of_the_inputs() -> None:
    assert inputs(8, 24, 0)["input_ids"].max() < VOCABULARY


@pytest.mark.parametrize(("name", "preset"), CASES)
def test_the_integers_stand_for_the_float_model(name: str, preset: str) -> None:
    model, arrays = grouped_model(name, preset), inputs(4, 24, 99, 11)
    (found,) = evaluate(model.module, arrays, model.parameters)
    found = found * model.quantization["outputs"][0]["scale"]
    with torch.no_grad():
        wanted = source(name)(*(torch.tensor(a).long() for a in arrays.values())).numpy()
    real = arrays["attention_mask"] != 0
    error = found[real] - wanted[real]
    ratio = (wanted[real] ** 2).sum() / (error**2).sum()
    assert 10 * np.log10(ratio) > (40 if preset == "accurate" else 36)


@pytest.mark.slow
def test_kernels_of_norms_end_in_what_attention_reads() -> None:
    made = lowered(grouped_model("rms"), "x86-64-v3", [(2, LENGTH)])
    found = [[op for op, _ in kernel] for kernel in kernels(made.fused.module).values()]
    assert found.count(["rms_norm_short", "requantise_short"]) == 2
    assert found.count(["attention"]) == 1


@pytest.mark.slow
def test_unequal_projections_are_one_product() -> None:
    """Of queries and keys; values of 16 bits are another kind of result."""
    found = kernels(lowered(grouped_model("plain"), "x86-64-v3", [(2, LENGTH)]).fused.module)
    assert [op for op, _ in found["attention"]] == [*["channel_run"] * 2, "attention"]
