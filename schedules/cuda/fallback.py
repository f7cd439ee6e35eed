"""Any kernel on a GPU: every stage a grid of its own, one thread per entry.

For kernels that no better rule takes. Reductions run in one thread, and stages pass their entries
through device memory. Nothing is inlined: entries of long chains would be computed again and again,
and TVM's analyses take exponential time for the nested let-bindings.
"""

from __future__ import annotations

import logging

from tvm import s_tir, tirx

from ibert_tvm.targets import Gpu

from ..loops import block_names
from ..rule import GpuRule, kernel_name

log = logging.getLogger(__name__)

_THREADS = 128


class FallbackRule(GpuRule):
    """Bind the entries of every stage to threads."""

    name = "fallback"

    def write(self, func: tirx.PrimFunc, gpu: Gpu) -> tirx.PrimFunc:
        """See the module's text."""
        log.info("a kernel of kind %r takes one grid per stage", kernel_name(func))
        sch = s_tir.Schedule(func)
        for name in block_names(sch):
            block = sch.get_sblock(name)
            axes = sch.get(block).iter_vars
            loops = [
                loop
                for loop, axis in zip(sch.get_loops(block), axes, strict=True)
                if int(axis.iter_type) == tirx.IterVar.DataPar
            ]
            fused = sch.fuse(*loops) if len(loops) > 1 else loops[0]
            blocks, threads = sch.split(fused, [None, _THREADS])
            sch.bind(blocks, "blockIdx.x")
            sch.bind(threads, "threadIdx.x")
        return sch.mod["main"]
