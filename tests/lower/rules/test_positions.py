"""Lowering of rotations: constants, who shares the table, numbers beside the float module."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.relay_passes.canonical import build
from ibert_tvm.relay_passes.dialect.calls import operands_of
from ibert_tvm.relay_passes.errors import LoweringError
from ibert_tvm.relay_passes.integer.evaluate import evaluate_all
from ibert_tvm.relay_passes.integer.relax_ops import operator_name
from ibert_tvm.relay_passes.lower import lower_to_integer, requirements
from ibert_tvm.relay_passes.passes.program import bindings
from ibert_tvm.relay_passes.quantization_table import ActivationQuant
from tests.canonical.reference import run
from tests.examples import examples
from tests.lower.modules import function, table_for, tensor, token_inputs

HEADS, WIDTH, POSITIONS = 2, 8, 32
CHANNELS = HEADS * WIDTH


def module(columns: int = WIDTH, amplitude: float = 1.0):
    """One attention with queries and keys that are turned; weights; inputs with padding."""
    random = np.random.default_rng(0)
    shapes = {"words": (40, CHANNELS), "gamma": (CHANNELS,), "beta": (CHANNELS,)}
    for name in ("q", "k", "v", "out"):
        shapes |= {f"{name}.weight": (CHANNELS, CHANNELS), f"{name}.bias": (CHANNELS,)}
    weights = {n: random.normal(0, 0.5, shape).astype(np.float32) for n, shape in shapes.items()}
    weights["gamma"] += 1
    angles = np.arange(POSITIONS)[:, None] * 0.3 ** np.arange(columns // 2)
    both = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    weights["rotary"] = (amplitude * both).astype(np.float32)
    variables = {name: tensor(name, array.shape) for name, array in weights.items()}
    ids, mask = token_inputs()

    def body(emit):
        x = emit(build.embedding(variables["words"], ids, name="words"))
        norm = (variables["gamma"], variables["beta"])
        x = emit(build.layer_norm(x, *norm, name="norm", epsilon=1e-5))
        parts = {}
        for name in "qkv":
            layer = variables[f"{name}.weight"], variables[f"{name}.bias"]
            parts[name] = emit(build.linear(x, *layer, name=name))
            if name != "v":
                turned = {"name": f"{name}.rotate", "num_heads": HEADS}
                parts[name] = emit(build.rotate(parts[name], variables["rotary"], **turned))
        given = {"name": "y", "num_heads": HEADS, "scale": WIDTH**-0.5}
        y = emit(build.attention(*parts.values(), mask, **given))
        layer = variables["out.weight"], variables["out.bias"]
        return emit(build.linear(y, *layer, name="out"))

    made = function((ids, mask), list(variables.values()), body)
    arrays = {
        "input_ids": random.integers(0, 40, (3, 20)),
        "attention_mask": np.ones((3, 20), np.int64),
    }
    arrays["attention_mask"][2, 11:] = 0
    return made, weights, arrays


@pytest.mark.parametrize("preset", ["accurate", "paper"])
@pytest.mark.parametrize(
    ("columns", "amplitude"),
    examples([(WIDTH, 1.0), (4, 1.0), (4, 1.5), (2, 0.1)], (4, 1.5), unpack=True),
)
def test_integers_stand_for_what_is_turned(columns, amplitude, preset) -> None:
    made, weights, arrays = module(columns, amplitude)
    lowered = lower_to_integer(made, weights, table_for(made, weights, arrays, preset))
    expected = run(made, {**arrays, **weights})
    typed = {name: array.astype(np.int64) for name, array in arrays.items()}
    _, found = evaluate_all(lowered.module, typed, lowered.parameters)
    real = arrays["attention_mask"] != 0
    for name in ("q.rotate", "k.rotate"):
        (form,) = lowered.scales["values"][name]
        assert form["form"] == "native"
        error = found[name][real] * form["scale"] - expected[name][real]
        # Steps before and behind the rotation, half of each at the most, of two channels before.
        before = max(f["scale"] for f in lowered.scales["values"][name[0]] if f["form"] == "matmul")
        largest = max(amplitude, 1.0) * before * 0.75 + form["scale"] * 0.55
        assert np.abs(error).max() < largest + np.abs(expected[name]).max() * 0.02


def test_layers_of_equal_angles_share_the_table() -> None:
    made, weights, arrays = module()
    lowered = lower_to_integer(made, weights, table_for(made, weights, arrays))
    calls = [b.value for b in bindings(lowered.module["main"])]
    turned = [call for call in calls if operator_name(call) == "integer.rotate"]
    assert [str(operands_of(call)["table"].name) for call in turned] == ["rotary", "rotary"]
    assert lowered.parameters["rotary"].dtype == np.int16
    assert all(lowered.parameters[f"{n}.rotate.multiplier"].shape == (1,) for n in "qk")


def test_nothing_is_smoothed_before_a_rotation() -> None:
    """Channels of a pair need one scale: that is what a factor form is."""
    made, *_ = module()
    needed = requirements(made, "accurate")
    assert needed["q"].factor_forms == {"factor"}
    assert needed["q"].layers == []
    assert needed["q.rotate"].factor_forms == {"factor"}


def test_scales_by_channel_are_refused(messages) -> None:
    made, weights, arrays = module()
    table = table_for(made, weights, arrays)
    scale = table.matmul["q"].scale
    divisors = np.linspace(1, 2, CHANNELS)
    table.matmul["q"] = ActivationQuant(scale, -127, 127, 0, divisors)
    with messages.raises(LoweringError):
        lower_to_integer(made, weights, table)
