"""What a schedule rule is, and the steps that several rules share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from tvm import s_tir, tirx

from ibert_tvm.targets import TargetDescription

from .intrinsics.reduction import reduction_intrinsic
from .stages import NotElementwise

Scheduled = TypeVar("Scheduled")


@dataclass(frozen=True)
class Rejection:
    """A rule does not apply, and why."""

    rule: str
    reason: str


class Rule(Generic[Scheduled]):
    """Base of the rules: the strategy for one structure of a kernel."""

    name: ClassVar[str]

    def schedule(self, func: tirx.PrimFunc, target: TargetDescription) -> Scheduled:
        """Schedule `func` for `target`; NotElementwise says why not."""
        raise NotImplementedError

    def apply(self, func: tirx.PrimFunc, target: TargetDescription) -> Scheduled | Rejection:
        """Schedule `func` for `target`, or say why not."""
        try:
            return self.schedule(func, target)
        except NotElementwise as reason:
            return Rejection(self.name, str(reason))


def kernel_name(func: tirx.PrimFunc) -> str:
    """Kind of kernel that emission marked the function with (``linear``, ``attention`` ...)."""
    return str(func.attrs["ibert.kernel"]) if "ibert.kernel" in func.attrs else ""


def block_names(sch: s_tir.Schedule, func_name: str = "main") -> list[str]:
    """Names of all blocks below the root, in program order."""
    root = sch.get_sblock("root", func_name=func_name)
    return [sch.get(block).name_hint for block in sch.get_child_blocks(root)]


def extent(sch: s_tir.Schedule, loop: s_tir.schedule.LoopRV) -> int:
    """Constant extent of a loop."""
    return int(sch.get(loop).extent)


def largest_divisor(number: int, limit: int) -> int:
    """Largest divisor of `number` that does not exceed `limit`."""
    return next(divisor for divisor in range(min(number, limit), 0, -1) if number % divisor == 0)


def vectorise_innermost(sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV, lanes: int) -> None:
    """Vectorise the last loop around `block` by `lanes`, or whole where it is short and even.

    Whole registers go before as many lanes as divide the extent: of 48 columns, where `lanes` are
    32, 16 at a time rather than 24. A loop whose extent no vector of at least four lanes divides
    stays scalar: a predicated vector loop costs more than it gains, and such shapes are small.
    """
    loop = sch.get_loops(block)[-1]
    length = extent(sch, loop)
    width = largest_divisor(length, lanes)
    whole = math.gcd(length, lanes)
    if 2 * whole > width:
        width = whole
    if width < 4:
        return
    if width < length:
        _, loop = sch.split(loop, [None, width])
    sch.vectorize(loop)


def reduce_by_lane(
    sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV, steps: int | None = None
) -> s_tir.schedule.LoopRV | None:
    """Vectorise a reduction whose last spatial loop runs over the lanes of a vector.

    Returns
    -------
    LoopRV or None
        A loop over blocks of so many `steps`, where they are given.
    """
    lane, step = sch.get_loops(block)[-2:]
    blocks = None
    if steps is not None:
        blocks, step = sch.split(step, [None, steps])
        sch.reorder(blocks, step, lane)
    else:
        sch.reorder(step, lane)
    sch.vectorize(lane)
    zero = sch.decompose_reduction(block, step if blocks is None else blocks)
    sch.vectorize(sch.get_loops(zero)[-1])
    return blocks


def reduce_lanes(sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV, kind: str) -> None:
    """Reduce the lanes of a vector, the last loop around `block`, by "max" or "sum" at once."""
    lane = sch.get_loops(block)[-1]
    sch.decompose_reduction(block, lane)
    sch.tensorize(lane, reduction_intrinsic(kind, extent(sch, lane)))


def output_blocks(sch: s_tir.Schedule) -> list[s_tir.schedule.SBlockRV]:
    """Blocks that write an output buffer, in program order."""
    root = sch.get_sblock("root")
    return list(sch.get_output_blocks(root))


def inline_elementwise(sch: s_tir.Schedule, keep: set[str]) -> None:
    """Inline every intermediate block that is not in `keep` and writes no output."""
    outputs = {sch.get(block).name_hint for block in output_blocks(sch)}
    for name in block_names(sch):
        if name not in keep and name not in outputs:
            sch.compute_inline(sch.get_sblock(name))
