"""Which rule takes which kernel, why the others do not, and what the schedules look like."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
import tvm_ffi
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax, s_tir, te, tirx

from ibert_tvm.relay_passes.passes import TargetKind, phases_of
from ibert_tvm.schedules import ScheduleError, schedule_kernel, schedule_module
from ibert_tvm.schedules.apply import CPU_RULES
from ibert_tvm.schedules.loops import largest_divisor, vectorise_innermost
from ibert_tvm.schedules.rule import kernel_name
from ibert_tvm.schedules.stages import NotElementwise
from ibert_tvm.targets import TargetDescription, get_target
from tests.examples import examples
from tests.lowering import lowered
from tests.passes.models import encoder_program
from tests.passes.small import UNPACKED
from tests.schedules.machine import TARGETS, refusal
from tests.snapshots import Messages

RULES = {rule.name: rule for rule in CPU_RULES}
# Kind of kernel → rule that takes it.
EXPECTED = {
    "linear": "linear",
    "attention": "attention",
    "layer_norm": "rows",
    "layer_norm_short": "rows",
    "mean_pool": "rows",
    "position_ids": "serial",
    "add": "rows",
    "select_token": "rows",
    "requantise": "rows",
    "token_slots": "serial",
    "slot_tokens": "serial",
    "slot_starts": "serial",
    "pack_tokens": "rows",
    "mask_tokens": "rows",
}
REASONS = {
    "linear": "the kernel is no matrix product of rows and columns",
    "serial": "no entry is computed from the one before it",
}
SERIAL = [kind for kind, rule in EXPECTED.items() if rule == "serial"]


def module_for(target: TargetDescription) -> tvm.IRModule:
    program = encoder_program(hidden=32, heads=2, feed_forward=48, masked=True)
    phases = UNPACKED if target.gpu is not None else phases_of(TargetKind.PROCESSOR)
    return lowered(program, target, [(2, 9)], phases).program.module


def kernels_of(module: tvm.IRModule) -> dict[str, tirx.PrimFunc]:
    """One kernel of every kind."""
    return {
        kernel_name(func): func
        for _, func in sorted(module.functions_items(), key=lambda item: item[0].name_hint)
        if isinstance(func, tirx.PrimFunc)
    }


# One of each instruction.
@pytest.fixture(scope="module", params=examples(TARGETS, "x86-avx512-vnni", "x86-64-v3", "x86-64"))
def target(request: pytest.FixtureRequest) -> TargetDescription:
    return get_target(request.param)


@pytest.fixture(scope="module")
def kernels(target: TargetDescription) -> dict[str, tirx.PrimFunc]:
    return kernels_of(module_for(target))


@pytest.mark.representatives(1)
def test_every_kind_of_kernel_is_covered(kernels) -> None:
    assert set(kernels) == set(EXPECTED)
    assert [rule.name for rule in CPU_RULES] == ["linear", "attention", "serial", "rows"]


@pytest.mark.parametrize("kind", EXPECTED)
def test_a_kernel_is_taken_by_its_rule_and_refused_by_the_others(kernels, target, kind) -> None:
    func = kernels[kind]
    takers = []
    for rule in CPU_RULES:
        try:
            assert isinstance(rule.schedule(func, target), s_tir.Schedule)
            takers.append(rule.name)
        except NotElementwise as reason:
            assert str(reason) == REASONS.get(rule.name, str(reason))
    assert takers[0] == EXPECTED[kind]
    # Positions that read nothing are entries of rows too, of the simplest kind.
    assert set(takers) <= {EXPECTED[kind], *(["rows"] if kind == "position_ids" else [])}


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("linear", "block 'accumulator' reduces neither the entries of a row nor rows"),
        ("slot_starts", "block 'starts' is no single store"),
    ],
)
def test_the_rule_for_rows_says_what_it_does_not_take(kernels, target, kind, reason) -> None:
    assert refusal(RULES["rows"], kernels[kind], target) == reason


def _renamed(func: tirx.PrimFunc, name: Callable[[str], str]) -> tirx.PrimFunc:
    """The same kernel with other names of its blocks, and of another kind."""

    def rename(block: s_tir.SBlock) -> s_tir.SBlock:
        return s_tir.SBlock(
            block.iter_vars,
            block.reads,
            block.writes,
            block.name_hint if block.name_hint == "root" else name(block.name_hint),
            block.body,
            block.init,
            block.alloc_buffers,
            block.match_buffers,
            block.annotations,
        )

    renamed = tvm_ffi.structural_map(func, (s_tir.SBlock, rename))
    exact = [name(str(product)) for product in func.attrs.get("ibert.both_minimum", ())]
    return renamed.with_attr("ibert.kernel", "new").with_attr("ibert.both_minimum", exact)


@pytest.mark.slow
@pytest.mark.representatives(2)
@pytest.mark.parametrize(
    "name",
    examples(
        [*TARGETS, "aarch64-i8mm", "armv7-neon", "cortex-m4", "t4"],
        "x86-avx512-vnni",
        "aarch64-i8mm",
        "cortex-m4",
        "t4",
    ),
)
def test_kinds_of_kernels_and_names_of_stages_play_no_part(name: str) -> None:
    target = get_target(name)
    for kind, func in kernels_of(module_for(target)).items():
        known: dict[str, str] = {}

        def other(old: str, known: dict[str, str] = known) -> str:
            return known.setdefault(old, f"stage_{len(known)}")

        found = schedule_kernel("k", _renamed(func, other), target)
        expected = schedule_kernel("k", func, target)
        pair = [_renamed(each, lambda _: "same") for each in (found, expected)]
        pair = [each.without_attr("ibert.both_minimum") for each in pair]
        assert tvm_ffi.structural_equal(*pair, map_free_vars=True), kind


def made_up_kernel() -> tirx.PrimFunc:
    x = te.placeholder((4, 8), "int32", name="x")
    k, j = te.reduce_axis((0, 4), name="k"), te.reduce_axis((0, 8), name="j")
    total = te.compute((1,), lambda i: te.sum(x[k, j] + i, axis=[k, j]), name="grand_total")
    return te.create_prim_func([x, total]).with_attr("ibert.kernel", "checksum")


def test_a_kernel_without_a_rule_is_an_error_with_every_reason(messages: Messages) -> None:
    with messages.raises(ScheduleError):
        schedule_kernel("main_b1_s4_check", made_up_kernel(), get_target("x86-64"))


def test_the_first_rule_that_applies_is_used() -> None:
    class Never:
        name = "never"

        def schedule(self, func, target):
            raise NotElementwise("never")

    func, target = kernels_of(module_for(get_target("x86-64")))["add"], get_target("x86-64")
    scheduled = schedule_kernel("k", func, target, (Never(), RULES["rows"]))
    tvm.ir.assert_structural_equal(scheduled, schedule_kernel("k", func, target))
    with pytest.raises(ScheduleError, match="why: never: never"):
        schedule_kernel("k", func, target, (Never(),))


@pytest.mark.slow
@pytest.mark.parametrize("name", examples(TARGETS, "x86-64-v3"))
def test_a_module_keeps_its_other_functions_and_its_kernels_interfaces(name: str) -> None:
    target = get_target(name)
    module = module_for(target)
    plain = made_up_kernel().without_attr("ibert.kernel")
    module["plain"] = plain
    result = schedule_module(module, target)
    assert len(result.functions) == len(module.functions)
    tvm.ir.assert_structural_equal(result["plain"], plain)
    for var, func in module.functions_items():
        after = result[var.name_hint]
        if isinstance(func, relax.Function):
            assert after.same_as(func)
        elif kernel_name(func):
            assert after.attrs["tirx.is_scheduled"]
            for name in ("ibert.kernel", "ibert.layer"):
                assert after.attrs[name] == func.attrs[name]
            for old, new in zip(func.params, after.params, strict=True):
                tvm.ir.assert_structural_equal(old.ty, new.ty)


def test_schedules_use_the_instruction_threads_and_vectors(kernels, target) -> None:
    texts = {
        kind: schedule_kernel(kind, func, target).script(show_meta=False)
        for kind, func in kernels.items()
    }
    names = {"vpdpbusd_512": "vpdpbusd", "vpdpbusd_256": "vpdpbusd", "vpmaddwd_256": "pmadd.wd"}
    instruction = names.get(target.dot.name)
    for kind, text in texts.items():
        matrix = kind in ("linear", "attention")
        assert ("T.parallel(" in text) == (kind not in ("mean_pool", *SERIAL)), kind
        vectorised = "T.vectorized(" in text or "T.ramp(" in text
        if kind != "pack_tokens":  # nine numbers per row: no vector divides them
            assert vectorised == (kind not in SERIAL), kind
        if instruction is None:
            assert "llvm.x86" not in text
        else:
            assert (instruction in text) == matrix, kind
    # Nothing of size sequence x sequence: scores live for one block of rows.
    assert "T.unroll(" in texts["linear"] and "T.unroll(" in texts["attention"]


@given(st.integers(1, 5000), st.integers(1, 64))
def test_largest_divisor(number: int, limit: int) -> None:
    divisor = largest_divisor(number, limit)
    assert number % divisor == 0 and divisor <= limit
    assert not any(number % other == 0 for other in range(divisor + 1, min(limit, number) + 1))


@pytest.mark.parametrize(
    ("length", "lanes", "width"),
    [
        (64, 16, 16),
        (24, 16, 8),
        (312, 16, 8),
        (36, 16, 12),
        (8, 16, 8),
        (5, 16, 5),
        (3, 16, None),
        (7, 4, None),
        (34, 16, None),
    ],
)
def test_loops_that_no_vector_divides_stay_scalar(length: int, lanes: int, width) -> None:
    x = te.placeholder((2, length), "int32", name="x")
    y = te.compute((2, length), lambda i, j: x[i, j] + 1, name="y")
    sch = s_tir.Schedule(te.create_prim_func([x, y]))
    vectorise_innermost(sch, sch.get_sblock("y"), lanes)
    text = sch.mod["main"].script(show_meta=False)
    if width is None:
        assert "T.vectorized" not in text
    else:
        assert f"T.vectorized({width})" in text
    library = tvm.compile(sch.mod, target="llvm")
    data = np.arange(2 * length, dtype="int32").reshape(2, length)
    result = tvm.runtime.tensor(np.zeros_like(data))
    library(tvm.runtime.tensor(data), result)
    np.testing.assert_array_equal(result.numpy(), data + 1)
