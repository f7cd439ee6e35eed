"""Norms of heads: their kernels on every family, and in programs of packed tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tvm import relax, tirx

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.passes import IntegerProgram
from ibert_tvm.relay_passes.spec.layer_norm import LayerNormConstants
from ibert_tvm.relay_passes.spec.short_layer_norm import ShortLayerNorm
from ibert_tvm.relay_passes.spec.short_requantise import short_factors
from ibert_tvm.schedules import schedule_kernel
from ibert_tvm.schedules.cuda import CUDA_RULES
from ibert_tvm.schedules.cuda.fallback import FallbackRule
from ibert_tvm.targets import TargetDescription, get_target
from tests.arm.row_program import RowKernel
from tests.examples import examples
from tests.lowering import lowered
from tests.passes.execution import Compiled, inputs_of, reference
from tests.passes.small import UNPACKED, kernels, small_program
from tests.schedules.everywhere import (
    check_on_board,
    check_on_gpu,
    check_on_microcontroller,
    check_on_this_processor,
    program_kernels,
)
from tests.schedules.machine import TARGETS, runnable

HEADS, WIDTH, SHAPE = 3, 20, (2, 5)
CHANNELS = HEADS * WIDTH
STORED: dict[str, Any] = {"shift": 14, "low": -32767, "high": 32767, "dtype": "int16"}


def program(kind: str) -> IntegerProgram:
    """Embeddings, two norms of their heads, attention to both, and their sum; masked outputs.

    ``short``: with one row of constants for all heads, ``wide``: with one for each.
    """

    def body(p: Any, inputs: Mapping[str, relax.Var]) -> list[relax.Var]:
        x = p.words(inputs["input_ids"], CHANNELS, 8)
        x = p.requantise("x", x, 1.2, -16383, 16383, "int16")
        rows = 1 if kind == "short" else HEADS

        def constants(name: str, bits: int) -> relax.Var:
            return p.integers(name, -(2**bits), 2**bits, (rows, WIDTH), "int32")

        if kind == "short":
            norm = ShortLayerNorm.from_scale(1e-3, 1e-6, WIDTH)
            first = integer.rms_norm_short(x, constants("a.gain", 14), norm, name="a", **STORED)
            gain, offset = constants("b.gain", 14), constants("b.offset", 24)
            second = integer.layer_norm_short(x, gain, offset, norm, name="b", **STORED)
        else:
            norm = LayerNormConstants(2**20 - 1, 5, 40, 16)
            first = integer.rms_norm(x, constants("a.gain", 14), norm, name="a", **STORED)
            gain, offset = constants("b.gain", 14), constants("b.offset", 24)
            second = integer.layer_norm(x, gain, offset, norm, name="b", **STORED)
        a, b = p.emit(first), p.emit(second)
        one = p.requantise("one", a, 2.0**-8)
        # Constants by channel of a token: no rows of heads.
        each = p.requantise("each", b, 2.0**-8, channels=CHANNELS)
        both = p.emit(integer.add(a, b, name="both"))
        mask = inputs["attention_mask"]
        factors = short_factors(np.full(CHANNELS, 0.008), 2**14, -127, 127)
        operands = [one, each, p.requantise("value", x, 2.0**-7)]
        multiplier = p.parameter("multiplier", factors.multipliers)
        given = {"heads": HEADS, "scale": 2e-4, "shift": factors.shift}
        values = {"attended": p.attention("attended", operands, mask, multiplier, **given)}
        values["both"] = both
        return [p.emit(integer.mask_tokens(v, mask, name=f"{n}.out")) for n, v in values.items()]

    return small_program(body)


def norm_kernels(target: TargetDescription, kind: str) -> list[RowKernel]:
    """The kernels on rows of heads, with inputs and what the specification says of them."""

    def is_norm(func: tirx.PrimFunc) -> bool:
        return "ibert.rows_per_token" in (func.attrs or {})

    found = program_kernels(program(kind), target, SHAPE, is_norm, UNPACKED)
    assert len(found) == 2
    assert all(kernel.inputs[0].shape == (SHAPE[0] * SHAPE[1] * HEADS, WIDTH) for kernel in found)
    return [replace(kernel, name=f"{kind}_{kernel.name}") for kernel in found]


def test_what_joins_a_kernel_fits_its_rows() -> None:
    found = kernels(lowered(program("short"), "x86-64-v3", [SHAPE], UNPACKED).fused.module)
    by_op = {layer: [op for op, _ in calls] for layer, calls in found.items()}
    assert by_op["a"] == ["rms_norm_short", "requantise"]
    assert by_op["b"] == ["layer_norm_short", "add"]
    assert by_op["each"][0] == "requantise"


@pytest.mark.slow
@pytest.mark.representatives(1)
@pytest.mark.parametrize("name", examples(TARGETS, "x86-64-v3"))
@pytest.mark.parametrize("kind", ["short", "wide"])
def test_on_this_processor(name: str, kind: str) -> None:
    target = runnable(name)
    check_on_this_processor(norm_kernels(target, kind), target)


@pytest.mark.slow
@pytest.mark.qemu
@pytest.mark.parametrize("name", ["rpi4", "armv7-neon"])
def test_on_boards(name: str) -> None:
    check_on_board(
        lambda target: [k for kind in ("short", "wide") for k in norm_kernels(target, kind)], name
    )


@pytest.mark.slow
@pytest.mark.qemu
@pytest.mark.parametrize(
    ("target", "kind"),
    examples(
        [(target, kind) for target in ("cortex-m4", "cortex-m55") for kind in ("short", "wide")],
        ("cortex-m4", "short"),
        unpack=True,
    ),
)
def test_on_microcontrollers(target: str, kind: str) -> None:
    for kernel in norm_kernels(get_target(target), kind):
        check_on_microcontroller(kernel, get_target(target))


@pytest.mark.slow
@pytest.mark.parametrize("kind", examples(["short", "wide"], "short"))
def test_on_a_gpu(kind: str) -> None:
    rules = [rule for rule in CUDA_RULES if not isinstance(rule, FallbackRule)]
    for kernel in norm_kernels(get_target("t4"), kind):
        check_on_gpu(kernel, rules=rules)


def test_packed_kernels_go_as_far_as_tokens_have_heads() -> None:
    target = get_target("x86-64")
    module = lowered(program("short"), target, [(3, 7)]).program.module
    texts = [
        schedule_kernel(var.name_hint, func, target).script(show_meta=False)
        for var, func in module.functions_items()
        if isinstance(func, tirx.PrimFunc) and "ibert.rows_per_token" in func.attrs
    ]
    assert len(texts) == 2
    assert all(f"< starts[3] * {HEADS}:" in text for text in texts)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["short", "wide"])
def test_rows_of_tokens_that_are_left_out_are_not_computed(kind: str) -> None:
    """Programs of packed tokens, one sequence of which is all padding."""
    p = program(kind)
    assert "packing.slots" in kernels(lowered(p, "x86-64", [(3, 7)]).fused.module)
    ids, mask = inputs_of(3, 7, 50, 0)
    for got, want in zip(
        Compiled(p, "x86-64", [(3, 7)])(ids, mask), reference(p, ids, mask), strict=True
    ):
        np.testing.assert_array_equal(got, want)
