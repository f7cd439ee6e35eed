"""Compiled kernels of image models equal their evaluation, at sizes that no tile divides."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.relay_passes.passes import IntegerProgram, function_name
from ibert_tvm.schedules import schedule_module
from ibert_tvm.targets import cpu_features, get_target, missing_features
from ibert_tvm.targets.build import build_executable
from tests.examples import examples
from tests.lowering import lowered
from tests.passes.models import ProgramBuilder

PLANES, HEIGHT, WIDTH, TALL, WIDE = 3, 13, 10, 3, 5  # the last row of pixels fills no patch
HIDDEN, HEADS, PREFIX = 36, 3, 2
TOKENS = (HEIGHT // TALL) * (WIDTH // WIDE) + PREFIX


def program(name: str) -> IntegerProgram:
    """Patch embedding, two learned tokens, positions, one attention of a preset, two poolings."""
    p = ProgramBuilder(7)
    pixels = relax.Var(
        "pixel_values",
        relax.TensorType([tirx.Var("batch", "int64"), PLANES, HEIGHT, WIDTH], "int8"),
    )
    short = name == "accurate"

    def body() -> list[relax.Var]:
        x = p.emit(integer.patches(pixels, name="patches", patch_height=TALL, patch_width=WIDE))
        x = p.requantise("stream", p.linear("embed", x, HIDDEN), 0.6, -(2**19), 2**19, "int32")
        tokens = p.integers("tokens", -(2**16), 2**16, (PREFIX, HIDDEN), "int32")
        x = p.emit(integer.prepend_tokens(x, tokens, name="prepended"))
        table = p.integers("table", -(2**14), 2**14, (TOKENS, HIDDEN), "int32")
        x = p.emit(integer.add_positions(x, table, name="placed"))
        x = p.layer_norm("norm", x)
        operand = p.requantise("operand", x, 1 / 200, channels=HIDDEN)
        qkv = [
            p.requantise(f"{label}_8", p.linear(label, operand, HIDDEN), 1 / 900) for label in "qkv"
        ]
        largest, dtype, shift = (2**15 - 1, "int16", 7) if short else (2**14, "int32", 20)
        factors = p.integers("context.multiplier", largest // 2, largest, (HIDDEN,), dtype)
        given = {"heads": HEADS, "short": short, "shift": shift}
        return [
            p.attention("attention", qkv, None, factors, **given),
            p.emit(integer.mean_pool(x, name="mean", fraction_bits=8)),
            p.emit(integer.select_token(x, name="first", index=1)),
        ]

    return IntegerProgram(p.built([pixels], body), p.parameters)


@pytest.mark.slow_cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("name", examples(["accurate", "paper"], "accurate"))
@pytest.mark.parametrize("target", examples(["host", "x86-64"], "x86-64"))
def test_compiled_image_kernels_equal_their_evaluation(name: str, target: str) -> None:
    description = get_target(target)
    if missing := missing_features(description, cpu_features()):
        pytest.skip(f"this processor lacks {', '.join(missing)}")
    made = program(name)
    shapes = [(1, TOKENS), (3, TOKENS)]
    static = lowered(made, description, shapes).program
    module = schedule_module(static.module, description)
    machine = relax.VirtualMachine(build_executable(module, description), tvm.cpu())
    parameters = [tvm.runtime.tensor(a) for a in static.parameters.values()]
    random = np.random.default_rng(3)
    for batch, tokens in shapes:
        size = (batch, PLANES, HEIGHT, WIDTH)
        pixels = random.integers(-128, 128, size).astype("int8")
        expected = evaluate(made.module, {"pixel_values": pixels}, made.parameters)
        got = machine[function_name(batch, tokens)](tvm.runtime.tensor(pixels), *parameters)
        for have, want in zip(got, expected, strict=True):
            np.testing.assert_array_equal(have.numpy(), want)
            assert np.unique(want).size > 3, "a constant output would prove nothing"
