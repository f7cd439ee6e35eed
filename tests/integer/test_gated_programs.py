"""Random programs of gates and RMSNorm: intervals, unbounded integers and compiled code agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from tvm import relax

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.relay_passes.passes import IntegerProgram
from ibert_tvm.relay_passes.spec.clipped import ClippedPolynomial
from ibert_tvm.relay_passes.spec.layer_norm import LayerNormConstants
from ibert_tvm.relay_passes.spec.logistic import SIGMOID, SILU
from ibert_tvm.relay_passes.spec.short_layer_norm import ShortLayerNorm
from tests.examples import examples
from tests.passes.execution import captured_in_intervals, check_compiled, inputs_of
from tests.passes.models import ProgramBuilder
from tests.passes.small import CHANNELS, small_program

WIDE, SHORT = 2**15 - 1, 2**14 - 1


def program(seed: int, extreme: bool = False) -> IntegerProgram:
    """Embedding, a wide norm, a gate of either kind, a short norm, and a product of norms."""
    random = np.random.default_rng(seed)
    shift = int(random.integers(0, 11))
    kind = "silu" if seed % 2 else "sigmoid"
    function = SILU.of_multiple(1.702) if kind == "silu" else SIGMOID
    polynomial = ClippedPolynomial.from_scale(function.limit / 32640 * 2**shift, function)

    def body(p: ProgramBuilder, inputs: Mapping[str, relax.Var]) -> Sequence[relax.Var]:
        def narrow(x: relax.Var, name: str, high: int, dtype: str, gain: int) -> relax.Var:
            m = p.integers(f"{name}.m", 1, gain, (CHANNELS,), "int32")
            bounds = {"shift": 30, "low": -high, "high": high, "dtype": dtype}
            return p.emit(integer.requantise(x, m, name=name, **bounds))

        def linear(x: relax.Var, name: str) -> relax.Var:
            low = 127 if extreme else -127
            w = p.integers(f"{name}.w", low, 127, (CHANNELS, CHANNELS), "int8")
            b = p.integers(f"{name}.b", -999, 999, (CHANNELS,), "int32")
            return p.emit(integer.linear(x, w, b, name=name))

        x = p.words(inputs["input_ids"], CHANNELS, 8)
        stored = {"shift": int(random.integers(8, 15)), "low": -WIDE, "high": WIDE}
        gain = p.integers("gain", -(2**14), 2**14, (CHANNELS,), "int32")
        constants = LayerNormConstants.from_scale(1e-4, 1e-9, CHANNELS)
        x = p.emit(integer.rms_norm(x, gain, constants, name="wide", dtype="int16", **stored))
        y = narrow(x, "operand", 127, "int8", 2**23)
        gate = narrow(linear(y, "gate"), "gate.stream", SHORT, "int16", 2**30)
        up = narrow(linear(y, "up"), "up.stream", WIDE, "int16", 2**30)
        gate = p.emit(getattr(integer, kind)(gate, polynomial, name="act"))
        product = p.emit(integer.multiply(gate, up, name="product"))
        z = narrow(product, "z", SHORT, "int16", 2**18)
        short = ShortLayerNorm.from_scale(1e-3, 1e-9, CHANNELS)
        n = p.emit(integer.rms_norm_short(z, gain, short, name="short", dtype="int16", **stored))
        square = p.emit(integer.multiply(n, n, name="square"))
        return [p.emit(integer.mask_tokens(square, inputs["attention_mask"], name="out"))]

    return small_program(body, seed)


@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_nothing_leaves_its_interval(seed: int, extreme: bool) -> None:
    p = program(seed, extreme)
    ids, mask = inputs_of(3, 5, 50, seed)
    _, captured = captured_in_intervals(p, {"input_ids": ids, "attention_mask": mask}, 8)
    assert np.unique(captured["out"]).size > 3


@pytest.mark.parametrize(
    "target", examples(["x86-avx512-vnni", "x86-64-v3", "x86-64"], "x86-64-v3")
)
def test_compiled_programs_equal_the_specification(target: str) -> None:
    check_compiled(program(1), target, *inputs_of(3, 5, 50, 1))


def test_a_factor_beyond_16_bits_is_cut() -> None:
    def body(p: ProgramBuilder, inputs: Mapping[str, relax.Var]) -> Sequence[relax.Var]:
        square = p.emit(integer.multiply(inputs["x"], inputs["x"], name="square"))
        return [p.emit(integer.mask_tokens(square, inputs["attention_mask"], name="out"))]

    p = small_program(body, x="int32")
    x = np.full((1, 2, CHANNELS), -(2**31))
    x[0, 1] = 77
    inputs = {"x": x, "input_ids": np.zeros((1, 2)), "attention_mask": np.ones((1, 2))}
    (out,) = evaluate(p.module, {k: v.astype("int64") for k, v in inputs.items()}, p.parameters)
    np.testing.assert_array_equal(out[0, :, 0], [2**30, 77**2])
