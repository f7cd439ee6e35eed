"""Scales per token from torch to the loaded library: integers, kernels, fidelity."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.relay_passes.integer.ranges import analyse_ranges
from ibert_tvm.relay_passes.integer.unbounded import check_unbounded
from tests.examples import examples
from tests.integration.row_scale_models import inputs, row_scale_model
from tests.lowering import lowered
from tests.passes.small import kernels

MODELS = ("gated", "bert")
CASES = examples(MODELS, "bert")


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_no_intermediate_leaves_its_interval(name: str) -> None:
    model = row_scale_model(name)
    report = analyse_ranges(model.module, model.parameters, max_seq_len=24)
    arrays = {k: v.astype("int64") for k, v in inputs(name, 2, 9, 3, 4).items()}
    assert check_unbounded(model.module, arrays, model.parameters, report.details) == []
    rows = [value for key, value in report.details.items() if key.endswith(".scaled")]
    assert rows and all(value.width <= 32 for value in rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_text_has_the_same_integers_in_any_batch(name: str) -> None:
    """Beside longer ones, beside none, and with or without padding."""
    model = row_scale_model(name)
    arrays = inputs(name, 3, 17, 5, 6)
    for row, length in ((0, 17), (2, 6)):
        for padded in (length, 17):
            alone = {key: array[row : row + 1, :padded] for key, array in arrays.items()}
            (together,) = evaluate(model.module, arrays, model.parameters)
            (found,) = evaluate(model.module, alone, model.parameters)
            np.testing.assert_array_equal(found[0, :length], together[row, :length])


@pytest.mark.slow
def test_projections_with_scales_of_rows_are_one_product() -> None:
    made = lowered(row_scale_model("bert"), "x86-64-v3", [(2, 13)])
    found = [[op for op, _ in kernel] for kernel in kernels(made.fused.module).values()]
    products = [kernel for kernel in found if "linear" in kernel]
    assert len(products) == 8  # four of a layer
    assert ["linear", "scale_rows", "requantise_short"] in products
    norm = ["layer_norm_short", "requantise_short", "row_magnitude", "quantise_rows"]
    assert norm in found  # the row is there
    assert ["linear", "scale_rows", "requantise_short", "gelu"] in [k[:4] for k in products]


@pytest.mark.slow
def test_a_scale_of_rows_is_taken_where_it_pays() -> None:
    chosen = {
        mode: row_scale_model("bert", mode).quantization["calibration"]["row_scales"]
        for mode in ("never", "auto", "always")
    }
    assert chosen["never"] == []
    assert set(chosen["auto"]) < set(chosen["always"])
    outputs = {f"encoder.layer.{layer}.intermediate.dense.gelu" for layer in range(2)}
    assert outputs <= set(chosen["auto"])


@pytest.mark.slow
def test_magnitudes_are_made_by_rows_and_packed() -> None:
    """Values of a row stay [batch, sequence, 1], which packing carries as it does the others."""
    model = row_scale_model("gated")
    magnitudes = [
        binding.var.ty.shape.values
        for block in model.module["main"].body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call)
        and str(binding.value.op.name) == "integer.row_magnitude"
    ]
    assert magnitudes and all(len(shape) == 3 and int(shape[-1]) == 1 for shape in magnitudes)
