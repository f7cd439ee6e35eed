"""Integer programs lowered to kernels for a target, as the compiler lowers them."""

from __future__ import annotations

from collections.abc import Sequence

from ibert_tvm.model.artefact import QuantizedModel
from ibert_tvm.relay_passes.emit import KernelLayout
from ibert_tvm.relay_passes.passes import IntegerProgram, TargetKind, lower_to_kernels, phases_of
from ibert_tvm.relay_passes.passes.pipeline import Lowered, Phase
from ibert_tvm.targets import TargetDescription, get_target


def layout_of(target: TargetDescription) -> KernelLayout:
    """Operand layout that emission gets for a target."""
    return KernelLayout.of(target.dot, target.vector_lanes, target.functions)


def lowered(
    program: IntegerProgram | QuantizedModel,
    target: TargetDescription | str,
    shapes: Sequence[tuple[int, int]],
    phases: Sequence[Phase] | None = None,
) -> Lowered:
    """Lower a program, by default in the phases of the target's kind."""
    description = get_target(target) if isinstance(target, str) else target
    if isinstance(program, QuantizedModel):
        program = IntegerProgram(program.module, program.parameters)
    chosen = phases_of(TargetKind.of(description)) if phases is None else phases
    return lower_to_kernels(program, layout_of(description), shapes, phases=chosen)
