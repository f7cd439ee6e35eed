"""The phases between the integer program and kernels, for each kind of target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import tvm

from ..emit.layout import KernelLayout
from ..integer.ranges import analyse_ranges
from .check_integer_only import CheckIntegerOnly
from .constants_as_arguments import ConstantsAsArguments
from .emit_kernels import EmitKernels
from .fuse_epilogues import FuseEpilogues
from .merge_projections import MergeProjections
from .offset_activations import OffsetActivations
from .pack_tokens import PackTokens
from .program import IntegerProgram
from .repeat_rows import RepeatRows
from .share_kernels import ShareKernels
from .specialise_shapes import SpecialiseShapes
from .split_operands import SplitOperands

Observer = Callable[[str, tvm.IRModule], None]
ProgramPass = Callable[[IntegerProgram], IntegerProgram]


class Target(Protocol):
    """What decides a target's kind (``targets.TargetDescription``)."""

    @property
    def gpu(self) -> object:
        """The GPU; None where there is none."""

    @property
    def system(self) -> str:
        """``"linux"``, ``"bare-metal"`` or ``"wasm"``."""


class TargetKind(Enum):
    """Kinds of targets that differ in their phases: systems, and GPUs under any."""

    PROCESSOR = "linux"
    BARE_METAL = "bare-metal"
    WEB = "wasm"
    GPU = "gpu"

    @staticmethod
    def of(target: Target) -> TargetKind:
        """Kind of a target."""
        return TargetKind.GPU if target.gpu is not None else TargetKind(target.system)


@dataclass
class Lowering:
    """What the phases of one run know besides the program."""

    layout: KernelLayout
    shapes: Sequence[tuple[int, int]]
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    checked: Mapping[str, int] = field(default_factory=dict)

    def check(self, program: IntegerProgram) -> IntegerProgram:
        """Refuse a program with anything but integers, and count what was looked at."""
        check = CheckIntegerOnly()
        check(program)
        self.checked = dict(check.summary)
        return program

    def analyse(self, program: IntegerProgram) -> IntegerProgram:
        """Prove the width of every intermediate, for the longest sequence."""
        longest = max(seq_len for _, seq_len in self.shapes)
        report = analyse_ranges(program.module, program.parameters, max_seq_len=longest)
        self.bounds = report.values
        return program


@dataclass(frozen=True)
class Phase:
    """One step of the pipeline.

    Attributes
    ----------
    name
        Its name in dumps and messages.
    make
        Returns the pass.
    kinds
        Targets that have it.
    """

    name: str
    make: Callable[[Lowering], ProgramPass]
    kinds: tuple[TargetKind, ...] = tuple(TargetKind)


# Where memory holds the code, or a network brings it, size counts more than a load per constant.
_SMALL_CODE = (TargetKind.BARE_METAL, TargetKind.WEB)
_ON_PROCESSORS = (TargetKind.PROCESSOR, *_SMALL_CODE)

PHASES: tuple[Phase, ...] = (
    Phase("integer", lambda run: run.check),
    Phase("repeat_rows", lambda run: RepeatRows()),
    Phase("split_operands", lambda run: SplitOperands(run.layout)),
    Phase("offset_activations", lambda run: OffsetActivations(run.layout)),
    Phase("merge_projections", lambda run: MergeProjections(run.layout.run_columns)),
    Phase("pack_tokens", lambda run: PackTokens()),
    Phase("analyse_ranges", lambda run: run.analyse),
    Phase("specialise_shapes", lambda run: SpecialiseShapes(run.shapes)),
    Phase(
        "fuse_epilogues", lambda run: FuseEpilogues(False, run.layout.run_columns), _ON_PROCESSORS
    ),
    # On a GPU a launch costs more than computing the operands of a LayerNorm in its kernel.
    Phase(
        "fuse_epilogues", lambda run: FuseEpilogues(True, run.layout.run_columns), (TargetKind.GPU,)
    ),
    Phase("emit_kernels", lambda run: EmitKernels(run.layout, run.bounds)),
    Phase("constants_as_arguments", lambda run: ConstantsAsArguments(), _SMALL_CODE),
    Phase("share_kernels", lambda run: ShareKernels()),
    Phase("check_integer_only", lambda run: run.check),
)
"""All phases, in order."""


def phases_of(kind: TargetKind) -> tuple[Phase, ...]:
    """The phases of one kind of target."""
    return tuple(phase for phase in PHASES if kind in phase.kinds)


@dataclass(frozen=True)
class Lowered:
    """What the pipeline leaves.

    Attributes
    ----------
    program
        Relax functions that call unscheduled integer kernels, and their parameters as kernels read
        them.
    checked
        What the integer-only check looked at: counts of parameters, functions, expressions,
        attributes.
    fused
        The program before emission: the specification of every kernel, under the kernel's name.
    bounds
        Proven interval of every value, by canonical name.
    """

    program: IntegerProgram
    checked: Mapping[str, int]
    fused: IntegerProgram
    bounds: Mapping[str, tuple[int, int]]


def lower_to_kernels(
    program: IntegerProgram,
    layout: KernelLayout,
    shapes: Sequence[tuple[int, int]],
    observe: Observer | None = None,
    phases: Sequence[Phase] = phases_of(TargetKind.PROCESSOR),
) -> Lowered:
    """Lower an integer program to kernels for one target layout and several shapes.

    Parameters
    ----------
    program
        ``main`` over ``integer.*`` operators, symbolic in batch and sequence length.
    layout
        Operand layout of the target.
    shapes
        (batch, sequence length) pairs.
    observe
        Called as ``observe(phase, module)`` after every phase.
    phases
        Those of the target's kind: see `PHASES`.

    Raises
    ------
    CompilerError
        From the pass that refuses; the message names the layer.
    """
    run = Lowering(layout, shapes)
    after: dict[str, IntegerProgram] = {}
    for phase in phases:
        program = after[phase.name] = phase.make(run)(program)
        if observe is not None:
            observe(phase.name, program.module)
    return Lowered(program, run.checked, after["fuse_epilogues"], run.bounds)
