"""Matrix operands of more than 8 bits: which, how far they go, how close they come."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ibert_tvm.quantization import CalibrationOptions, calibrate, options_of
from ibert_tvm.quantization.observers import Statistics
from ibert_tvm.quantization.smoothing import OperandForm, quantize_operand
from ibert_tvm.relay_passes.errors import LoweringError
from ibert_tvm.relay_passes.integer.evaluate import evaluate_all
from ibert_tvm.relay_passes.integer.relax_ops import read_program
from ibert_tvm.relay_passes.lower import lower_to_integer
from ibert_tvm.relay_passes.quantization_table import QuantizationTable
from ibert_tvm.relay_passes.spec.parts import OPERAND_LIMIT
from tests.quantization.models import random_batches, random_model

QUICK = CalibrationOptions(observer="minmax", alphas=(0.5,), compensate=False, wide_operands=True)
LAYER = "encoder.layer.0"
READ_BY_LAYERS = {
    "embeddings.LayerNorm": OPERAND_LIMIT,
    f"{LAYER}.attention.self": 508,
    f"{LAYER}.attention.output.LayerNorm": OPERAND_LIMIT,
    f"{LAYER}.intermediate.dense.gelu": OPERAND_LIMIT,
}


def table(options: CalibrationOptions = QUICK, preset: str | None = None) -> QuantizationTable:
    model = random_model("bert")
    return calibrate(model, random_batches(model, 4), preset, options)[0]


def test_what_layers_read_is_wide_and_nothing_else() -> None:
    chosen = table().matmul
    for name, limit in READ_BY_LAYERS.items():
        assert (chosen[name].low, chosen[name].high) == (-limit, limit)
        assert chosen[name].splits is None and chosen[name].channel_zero_point is None
    for part in ("query", "key", "value"):
        assert chosen[f"{LAYER}.attention.self.{part}"].high == 127
    assert all(quant.high <= 255 for quant in table(preset="paper").matmul.values())


def test_it_may_go_half_as_far_again_as_calibration_saw() -> None:
    wide, narrow = table().matmul, table(QUICK.but(wide_operands=False, margin=1.0)).matmul
    for name in READ_BY_LAYERS:
        if narrow[name].low == -narrow[name].high:
            reach = 1.5 * narrow[name].channel_scale * narrow[name].high
            np.testing.assert_allclose(wide[name].channel_scale * wide[name].high, reach)


def test_a_long_sum_of_products_fits_32_bits() -> None:
    """However large the weights are, by fewer bits."""
    random = np.random.default_rng(0)
    x = random.normal(size=(40, 4096)).astype(np.float32)
    statistics = Statistics()
    statistics.update(x, x.copy())
    weights = {"layer": np.full((3, 4096), 0.1, np.float32)}  # all 127 once they are rounded
    quant = quantize_operand(
        statistics, weights, QUICK, OperandForm(limit=OPERAND_LIMIT, smooth=False)
    )
    rounded = np.abs(quant.weights["layer"].values.astype(np.int64)).sum(axis=1).max()
    assert rounded == 127 * 4096
    assert quant.activation.high == 2**30 // rounded < OPERAND_LIMIT
    assert quant.activation.low == -quant.activation.high


def test_it_comes_closer_to_what_it_rounds() -> None:
    """By as much as its steps are finer, where nothing is clipped."""
    model = random_model("bert")
    inputs = random_batches(model, 1, seed=3)[0]
    errors: dict[bool, list[float]] = {}
    for wide in (False, True):
        chosen = table(QUICK.but(wide_operands=wide))
        lowered = lower_to_integer(model.module, model.parameters, chosen)
        program = read_program(lowered.module)
        values = {name: inputs[name] for name in program.inputs}
        _, made = evaluate_all(program, values, lowered.parameters)
        for name in ("embeddings.LayerNorm", f"{LAYER}.intermediate.dense.gelu"):
            forms = {f["form"]: f for f in lowered.scales["values"][name]}
            integers = made[forms["matmul"]["value"]]
            assert (integers.dtype == np.int16) == wide
            points = forms["matmul"].get("zero_point", 0)
            exact = made[forms["native"]["value"]] * np.asarray(forms["native"]["scale"])
            rounded = (integers - points) * np.asarray(forms["matmul"]["scale"])
            errors.setdefault(wide, []).append(float(np.median(np.abs(exact - rounded))))
    assert all(fine < coarse / 20 for coarse, fine in zip(*errors.values(), strict=True))


def test_requantisation_keeps_to_the_bound() -> None:
    """Of a stream it may leave the last clamp out; here sums are proven with the bound."""
    model = random_model("bert")
    program = read_program(lower_to_integer(model.module, model.parameters, table()).module)
    made = {step.name: step.operator for step in program.steps}
    read = {
        step.operands["x"] for step in program.steps if step.operator.TRAITS.matrix_product
    } & made.keys()
    short = [made[name] for name in read if "requantise_short" in made[name].OP]
    assert any(record.shift == 0 and record.dtype == "int16" for record in short)
    assert all(made[name].high <= OPERAND_LIMIT for name in read)


def test_queries_have_8_bits() -> None:
    """A value that a layer and attention read keeps to what attention takes."""
    model, chosen = random_model("bert"), table()
    name = f"{LAYER}.attention.self.query"
    wide = replace(chosen.matmul[name], low=-OPERAND_LIMIT, high=OPERAND_LIMIT)
    with pytest.raises(LoweringError) as caught:
        lower_to_integer(
            model.module, model.parameters, replace(chosen, matmul={**chosen.matmul, name: wide})
        )
    assert "take symmetric int8" in str(caught.value)


def test_best_has_it() -> None:
    assert options_of("best").forms.wide_operands
    assert not options_of("default").forms.wide_operands
