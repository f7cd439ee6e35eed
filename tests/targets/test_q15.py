"""Kernels of 16-bit arithmetic use the target's product, and nothing of 64 bits per entry."""

from __future__ import annotations

import re

import pytest
import tvm
from tvm import te, tirx

from ibert_tvm.relay_passes.spec import q15
from ibert_tvm.relay_passes.spec.q15 import Q15_MULTIPLY as SPECIFIED
from ibert_tvm.relay_passes.spec.q15 import lane_shift, q15_product
from ibert_tvm.schedules import schedule_module
from ibert_tvm.targets import TargetDescription, get_target, pipeline
from ibert_tvm.targets.pipeline import cpu_pipeline, select_q15_instructions
from tests.examples import examples
from tests.lowering import lowered
from tests.passes.models import encoder_program

INSTRUCTION = re.compile(r"\bv?pmulhrsw\b")
# Products of 64 bits in vector registers, in either operand size.
WIDE_PRODUCT = re.compile(r"\bv?pmul(?:lq|dq|udq)\b")
HIDDEN, FEED_FORWARD = 64, 128
TARGETS = ("x86-avx512-vnni", "x86-avx-vnni", "x86-64-v3")


def assembly(functions: dict[str, tirx.PrimFunc], target: TargetDescription) -> str:
    """What a processor runs, without comments; not linked."""
    named = {name: func.with_attr("global_symbol", name) for name, func in functions.items()}
    built = tvm.compile(
        tvm.IRModule(named),
        target=tvm.target.Target(dict(target.tvm_target)),
        tir_pipeline=cpu_pipeline(target),
    )
    return str(built.mod.inspect_source("asm"))


def kernels(target: TargetDescription) -> dict[str, tirx.PrimFunc]:
    """Scheduled kernels of an encoder of preset accurate, by layer."""
    program = encoder_program(hidden=HIDDEN, heads=4, feed_forward=FEED_FORWARD)
    module = schedule_module(lowered(program, target, [(1, 16)]).program.module, target)
    return {
        str(func.attrs["ibert.layer"]): func
        for func in module.functions.values()
        if isinstance(func, tirx.PrimFunc) and "ibert.layer" in func.attrs
    }


@pytest.fixture(scope="module", params=examples(TARGETS, "x86-avx512-vnni"))
def texts(request: pytest.FixtureRequest) -> dict[str, str]:
    """Assembly of the kernels that requantise, normalise or activate in 16 bits, by layer."""
    target = get_target(request.param)
    found = kernels(target)
    return {layer: assembly({layer: found[layer]}, target) for layer in (*SHORT, "projected")}


# Linear layers with their epilogues (of `inner` GELU too), and attention.
SHORT = ("attention.projections", "attention", "inner", "outer")


@pytest.mark.representatives(1)
@pytest.mark.parametrize("layer", SHORT)
def test_no_entry_takes_a_product_of_64_bits(texts, layer: str) -> None:
    assert INSTRUCTION.search(texts[layer])
    assert WIDE_PRODUCT.search(texts[layer]) is None


def test_the_wide_form_is_what_such_a_product_looks_like(texts) -> None:
    # Its epilogue is `integer.requantise`, with a multiplier of 31 bits.
    assert WIDE_PRODUCT.search(texts["projected"])


def vectorised_product(lanes: int) -> tirx.PrimFunc:
    a, b = (te.placeholder((4 * lanes,), "int16", name=name) for name in "ab")
    product = te.compute(
        a.shape, lambda i: q15_product(a[i].asobject(), b[i].asobject()), name="product"
    )
    schedule = tvm.s_tir.Schedule(te.create_prim_func([a, b, product]))
    (loop,) = schedule.get_loops(schedule.get_sblock("product"))
    if lanes > 1:
        schedule.vectorize(schedule.split(loop, [None, lanes])[1])
    return schedule.mod["main"]


@pytest.mark.parametrize("name", ["Q15_MULTIPLY", "HIGH_PRODUCT", "LANE_SHIFT"])
def test_both_packages_speak_of_the_same_operator(name: str) -> None:
    assert getattr(pipeline, name) == getattr(q15, name)


@pytest.mark.parametrize("name", TARGETS)
def test_every_number_of_lanes_of_a_target_is_one_instruction(name: str) -> None:
    target = get_target(name)
    assert target.q15_multiply
    for lanes, _ in target.q15_multiply:
        text = assembly({"product": vectorised_product(lanes)}, target)
        register = {8: "xmm", 16: "ymm", 32: "zmm"}[lanes]
        assert re.search(rf"\bvpmulhrsw\b.*%{register}", text)
        assert not re.search(r"\bv?pmull[dw]\b", text)


@pytest.mark.parametrize(("name", "lanes"), [("x86-64", 8), ("x86-64-v3", 1), ("x86-64-v3", 4)])
def test_other_numbers_of_lanes_take_the_arithmetic_that_defines_it(name: str, lanes: int) -> None:
    text = assembly({"product": vectorised_product(lanes)}, get_target(name))
    assert SPECIFIED.rpartition(".")[2] not in text
    assert INSTRUCTION.search(text) is None
    assert re.search(r"\b(?:v?pmul|v?pmadd|imul)\w*\b", text)


@pytest.mark.parametrize("own", [True, False])
def test_only_amounts_of_each_lane_make_a_shift_a_product(own: bool) -> None:
    x, n = (te.placeholder((8,), "int32", name=name) for name in "xn")
    shifted = te.compute(
        (8,), lambda i: lane_shift(x[i].asobject(), n[i if own else 0].asobject(), 0, 7)
    )
    schedule = tvm.s_tir.Schedule(te.create_prim_func([x, n, shifted]))
    schedule.vectorize(schedule.get_loops(schedule.get_sblock("compute"))[0])
    text = assembly({"shifted": schedule.mod["main"]}, get_target("x86-64"))
    # Without AVX2 vectors shift by one amount.
    assert ("pmuludq" in text or "pmulld" in text) == own
    assert "psrad" in text


def test_a_target_without_the_instruction_leaves_the_operator_alone() -> None:
    module = tvm.IRModule({"main": vectorised_product(8)})
    plain = select_q15_instructions(get_target("x86-64"))(module)
    tvm.ir.assert_structural_equal(plain, module)
