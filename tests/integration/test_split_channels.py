"""Models with split channels and centred biases: kernels, ranges, the library."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ibert_tvm.relay_passes.integer.operators.channels import GatherChannels
from ibert_tvm.relay_passes.integer.relax_ops import read_program
from ibert_tvm.relay_passes.passes import IntegerProgram
from ibert_tvm.relay_passes.passes.repeat_rows import RepeatRows
from tests.integration.split_model import inputs, split_model
from tests.integration.whole_models import assert_bit_exact, build_library


@pytest.mark.slow
def test_layers_compute_what_is_split(tmp_path: Path) -> None:
    model = split_model()
    program = RepeatRows()(IntegerProgram(model.module, model.parameters))
    gathers = [
        [
            step.name
            for step in read_program(module).steps
            if isinstance(step.operator, GatherChannels)
        ]
        for module in (model.module, program.module)
    ]
    assert any("gelu" in name for name in gathers[0])
    # Nothing but what no layer computes is copied.
    assert gathers[1] == [name for name in gathers[0] if "LayerNorm" in name]
    assert len(gathers[1]) == 4
    shapes = {a.shape for name, a in program.parameters.items() if "intermediate.dense" in name}
    assert (160, 80) in shapes
    library = build_library(model, [(2, 13)], tmp_path)
    for tokens in (13, 5, 1):
        assert_bit_exact(library, model, inputs(2, 13, tokens, tokens))


@pytest.mark.slow
def test_a_report_by_layer_adds_columns_up() -> None:
    from ibert_tvm.evaluation.evaluate import _runner

    models = (split_model(), split_model(0.0))
    values, whole = (_runner(model, layers=True)[1](inputs(1, 7, 1))[1] for model in models)
    name = "encoder.layer.0.intermediate.dense.gelu"
    assert values[name].shape == whole[name].shape == (1, 7, 128)
    difference = np.linalg.norm(values[name] - whole[name]) / np.linalg.norm(whole[name])
    assert 0 < difference < 0.1
