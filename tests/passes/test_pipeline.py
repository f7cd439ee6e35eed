"""The pipeline: its phases in order, each on the module that the one before left."""

from __future__ import annotations

import pytest
import tvm
from tvm import relax, tirx

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.emit import KernelLayout
from ibert_tvm.relay_passes.errors import CompilerError, IntegerOnlyError, RangeError
from ibert_tvm.relay_passes.passes import TargetKind, lower_to_kernels, phases_of
from ibert_tvm.relay_passes.passes.program import num_inputs
from ibert_tvm.targets import get_target
from tests.passes.models import encoder_program
from tests.passes.small import calls, small_program
from tests.snapshots import Messages

LAYOUT = KernelLayout("uint8", 16, 4, 8)
PHASES = [
    "integer",
    "repeat_rows",
    "split_operands",
    "offset_activations",
    "merge_projections",
    "pack_tokens",
    "analyse_ranges",
    "specialise_shapes",
    "fuse_epilogues",
    "emit_kernels",
    "share_kernels",
    "check_integer_only",
]


def test_phases_are_observed_in_order_with_their_modules() -> None:
    program = encoder_program()
    seen: list[tuple[str, tvm.IRModule]] = []
    lowered = lower_to_kernels(
        program, LAYOUT, [(1, 4), (2, 4)], lambda phase, module: seen.append((phase, module))
    )
    assert [phase for phase, _ in seen] == PHASES
    modules = dict(seen)
    assert modules["integer"].same_as(program.module)
    assert calls(modules["offset_activations"]["main"]) == calls(program.module["main"])
    names = sorted(var.name_hint for var in modules["specialise_shapes"].get_global_vars())
    assert names == ["main_b1_s4", "main_b2_s4"]
    assert any("Primitive" in f.attrs for f in modules["fuse_epilogues"].functions.values())
    assert modules["share_kernels"].same_as(lowered.program.module)
    kinds = {type(function) for function in modules["share_kernels"].functions.values()}
    assert kinds == {relax.Function, tirx.PrimFunc}


def test_kinds_of_targets_differ_in_their_phases() -> None:
    names = {kind: [phase.name for phase in phases_of(kind)] for kind in TargetKind}
    assert names[TargetKind.PROCESSOR] == names[TargetKind.GPU] == PHASES
    compact = [*PHASES]
    compact.insert(PHASES.index("share_kernels"), "constants_as_arguments")
    assert names[TargetKind.BARE_METAL] == names[TargetKind.WEB] == compact


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        ("x86-64-v3", TargetKind.PROCESSOR),
        ("rpi4", TargetKind.PROCESSOR),
        ("cortex-m4", TargetKind.BARE_METAL),
        ("wasm32", TargetKind.WEB),
        ("t4", TargetKind.GPU),
    ],
)
def test_the_kind_of_a_target_is_told_by_what_it_has(target: str, kind: TargetKind) -> None:
    assert TargetKind.of(get_target(target)) is kind


def test_what_comes_out_was_checked() -> None:
    lowered = lower_to_kernels(encoder_program(), LAYOUT, [(1, 4)])
    assert lowered.checked["parameters"] == len(lowered.program.parameters)
    assert lowered.checked["kernels"] == 13
    assert lowered.checked["nodes"] > lowered.checked["operations"] > 13


def test_a_float_stops_it_before_any_phase() -> None:
    def body(p, inputs):
        real = p.emit(relax.op.astype(p.linear("head.dense", inputs["x"], 8), "float32"))
        return [p.emit(relax.op.astype(real, "int32"))]

    seen: list[str] = []
    with pytest.raises(IntegerOnlyError, match=r"of 'head\.dense'"):
        lower_to_kernels(
            small_program(body, x="int8"), LAYOUT, [(1, 4)], lambda phase, _: seen.append(phase)
        )
    assert seen == []


def test_a_value_that_does_not_fit_stops_it_before_emission() -> None:
    def body(p, inputs):
        x = inputs["x"]
        for step in range(3):
            x = p.emit(integer.add(x, x, name=f"encoder.sum_{step}"))
        return [x]

    seen: list[str] = []
    with pytest.raises(RangeError) as caught:
        lower_to_kernels(
            small_program(body, x="int32"), LAYOUT, [(1, 4)], lambda phase, _: seen.append(phase)
        )
    assert "encoder.sum_0" in str(caught.value)
    assert seen == PHASES[: PHASES.index("analyse_ranges")]


def test_a_function_without_num_input_is_refused(messages: Messages) -> None:
    function = encoder_program().module["main"].without_attr("num_input")
    with messages.raises(CompilerError):
        num_inputs(function)
