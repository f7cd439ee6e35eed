"""Kernels that work row by row or element by element: LayerNorm, pooling, embedding, the rest.

Strategy
--------
Rows run in parallel. Reductions over a row stay plain loops over contiguous integers, which the
compiler vectorises (integer sums and maxima may be reordered); everything elementwise is vectorised
explicitly along channels.
"""

from __future__ import annotations

from tvm import s_tir, tirx

from ibert_tvm.targets import TargetDescription

from .row_guard import mark_row_loop
from .row_sums import split_row_sums, vectorise_row_sums
from .rule import (
    Rejection,
    block_names,
    inline_elementwise,
    is_reduction,
    kernel_name,
    output_blocks,
    vectorise_innermost,
)
from .scalar_rows import SQUARE_GROUPS, unroll_innermost, unroll_row_sums

# Per-row scalars of emission's layer_norm kernel, in program order.
ROW_STATISTICS = (
    "sum",
    "mean",
    "squares",
    "square_sum",
    "half_bits",
    "square_root",
    "root_bits",
    "inverse",
)


# Kernels that count tokens: one number per token, each from the one before.
COUNTING = ("token_slots", "slot_tokens", "slot_starts")


class LayerNormRule:
    """Schedule kernels of kind ``layer_norm``: a row stays in cache from sums to results."""

    name = "layer_norm"

    def apply(self, func: tirx.PrimFunc, target: TargetDescription) -> s_tir.Schedule | Rejection:
        """See the module's strategy."""
        if kernel_name(func) not in ("layer_norm", "layer_norm_short", "released_layer_norm"):
            return Rejection(self.name, f"the kernel is {kernel_name(func)!r}, not 'layer_norm'")
        sch = s_tir.Schedule(func)
        inline_elementwise(sch, keep={*ROW_STATISTICS, SQUARE_GROUPS, "normalised"})
        outputs = output_blocks(sch)
        names = [sch.get(block).name_hint for block in outputs]
        sums = split_row_sums(sch, target.vector_lanes) if target.explicit_row_sums else ()
        first = sch.get_sblock("normalised" if "normalised" in block_names(sch) else names[0])
        row = sch.get_loops(first)[0]
        sch.parallel(row)
        mark_row_loop(sch, row)
        for name, output in zip(names, outputs, strict=True):
            if name != sch.get(first).name_hint:
                sch.reverse_compute_at(output, row, preserve_unit_loops=True)
        for name in reversed(block_names(sch)):
            if name in (*ROW_STATISTICS, *sums):
                sch.compute_at(sch.get_sblock(name), row, preserve_unit_loops=True)
        vectorise_row_sums(sch, sums)
        if target.vector_lanes == 1:
            unroll_row_sums(sch)
        for block in {
            name: sch.get_sblock(name) for name in (sch.get(first).name_hint, *names)
        }.values():
            _innermost(sch, block, target)
        return sch


class PoolingRule:
    """Schedule kernels of kind ``mean_pool``: a sum over tokens, vectorised along channels."""

    name = "mean_pool"

    def apply(self, func: tirx.PrimFunc, target: TargetDescription) -> s_tir.Schedule | Rejection:
        """See the module's strategy."""
        if kernel_name(func) != "mean_pool":
            return Rejection(self.name, f"the kernel is {kernel_name(func)!r}, not 'mean_pool'")
        sch = s_tir.Schedule(func)
        inline_elementwise(sch, keep={"token_sum", "count", "reciprocal"})
        total = sch.get_sblock("token_sum")
        batch, channel, token = sch.get_loops(total)
        sch.reorder(batch, token, channel)
        vectorise_innermost(sch, total, target.vector_lanes)
        zero = sch.decompose_reduction(total, token)
        vectorise_innermost(sch, zero, target.vector_lanes)
        for output in output_blocks(sch):
            vectorise_innermost(sch, output, target.vector_lanes)
        return sch


class ElementwiseRule:
    """Schedule whatever has no reduction: rows in parallel, channels vectorised."""

    name = "elementwise"

    def apply(self, func: tirx.PrimFunc, target: TargetDescription) -> s_tir.Schedule | Rejection:
        """See the module's strategy."""
        if kernel_name(func) in COUNTING:
            return Rejection(self.name, "an iteration depends on those before it")
        sch = s_tir.Schedule(func)
        for name in block_names(sch):
            if is_reduction(sch, name):
                return Rejection(self.name, f"block {name!r} is a reduction")
        inline_elementwise(sch, keep=set())
        for output in output_blocks(sch):
            loops = sch.get_loops(output)
            if len(loops) > 1:
                sch.parallel(loops[0])
                mark_row_loop(sch, loops[0])
            _innermost(sch, output, target)
        return sch


# Kernels that are small enough to run as they are.
SERIAL = ("position_ids", *COUNTING)


class SerialRule:
    """Leave a kernel as emission wrote it: for the tiny ones, such as position ids."""

    name = "serial"

    def apply(self, func: tirx.PrimFunc, target: TargetDescription) -> s_tir.Schedule | Rejection:
        """Accept kernels in `SERIAL` only: others deserve a rule of their own."""
        if kernel_name(func) not in SERIAL:
            return Rejection(
                self.name, f"the kernel is {kernel_name(func)!r}, not one of {', '.join(SERIAL)}"
            )
        return s_tir.Schedule(func)


def _innermost(
    sch: s_tir.Schedule, block: s_tir.schedule.SBlockRV, target: TargetDescription
) -> None:
    """Vectorise the channels of a row, or unroll them where a register holds one number."""
    if target.vector_lanes == 1:
        unroll_innermost(sch, block)
    else:
        vectorise_innermost(sch, block, target.vector_lanes)
