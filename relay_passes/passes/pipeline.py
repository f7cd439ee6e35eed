"""The order of the passes between the integer program and kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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


class ProgramPass(Protocol):
    """A pass over a program; `name` names its phase in dumps and messages."""

    name: str

    def __call__(self, program: IntegerProgram) -> IntegerProgram:
        """Return the rewritten program."""


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
    checked: dict[str, int]
    fused: IntegerProgram
    bounds: Mapping[str, tuple[int, int]]


def lower_to_kernels(
    program: IntegerProgram,
    layout: KernelLayout,
    shapes: Sequence[tuple[int, int]],
    observe: Observer | None = None,
    compact: bool = False,
    pack: bool = True,
    into_norms: bool = False,
) -> Lowered:
    """Lower an integer program to kernels for one target layout and several shapes.

    Phases, in order: ``check_integer_only`` (nothing but integers comes in), ``repeat_rows``,
    ``split_operands``, ``offset_activations``, ``merge_projections``, ``pack_tokens`` if `pack`,
    range analysis (proves every width), ``specialise_shapes``, ``fuse_epilogues``,
    ``emit_kernels``, ``constants_as_arguments`` if `compact`, ``share_kernels``,
    ``check_integer_only`` again (nothing but integers goes out).

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
    compact
        Whether small code counts more than a load per constant: see `ConstantsAsArguments`.
    pack
        Whether to leave out the computation of padding: see `PackTokens`. Counting tokens is a
        serial loop, which a processor does in no time and a GPU does not.
    into_norms
        Whether LayerNorm's kernels take in what only they read: see `FuseEpilogues`.

    Returns
    -------
    Lowered

    Raises
    ------
    CompilerError
        From the pass that refuses; the message names the layer.
    """
    watch = observe or (lambda phase, module: None)
    check = CheckIntegerOnly()
    watch("integer", check(program).module)
    merge = MergeProjections(layout.run_columns)
    split, offset = SplitOperands(layout), OffsetActivations(layout)
    steps: list[ProgramPass] = [RepeatRows(), split, offset, merge]
    if pack:
        steps.append(PackTokens())
    for first in steps:
        program = first(program)
        watch(first.name, program.module)
    longest = max(seq_len for _, seq_len in shapes)
    bounds = analyse_ranges(program.module, program.parameters, max_seq_len=longest)
    passes: tuple[ProgramPass, ...] = (
        SpecialiseShapes(shapes),
        FuseEpilogues(into_norms, layout.run_columns),
        EmitKernels(layout, bounds.values),
        *([ConstantsAsArguments()] if compact else []),
        ShareKernels(),
    )
    fused = program
    for step in passes:
        program = step(program)
        watch(step.name, program.module)
        if isinstance(step, FuseEpilogues):
            fused = program
    check(program)
    return Lowered(program, dict(check.summary), fused, bounds.values)
