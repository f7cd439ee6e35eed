"""Kernels that count over a batch, on a GPU: one block of threads instead of loops.

What emission wrote as loops in one block, each number from those before it, is a device function of
the operator's name (``targets/cuda/device/tokens.cuh``) that gives the same numbers.
"""

from __future__ import annotations

from tvm import tirx

from ibert_tvm.targets import Gpu

from ..rule import GpuRule, kernel_name
from ..stages import NotElementwise
from .statements import WARP, address, call, launch, thread

SERIAL = "ibert.serial"
"""Attribute of a kernel that emission wrote as loops: numbers that these depend on besides the
sizes of the first parameter, [sequences, length]."""
_MOST_THREADS = 1024


class SerialRule(GpuRule):
    """Call the device function that does what the loops do."""

    name = "serial"

    def write(self, func: tirx.PrimFunc, gpu: Gpu) -> tirx.PrimFunc:
        """See the module's text."""
        if SERIAL not in func.attrs:
            raise NotElementwise("the kernel is made of stages, not of loops in one block")
        sequences, length = (int(size) for size in func.params[0].ty.shape)
        threads = min(-(-sequences * length // WARP) * WARP, _MOST_THREADS)
        numbers = (sequences, length, threads, *map(int, func.attrs[SERIAL]))
        name = f"ibert::{kernel_name(func)}<{', '.join(map(str, numbers))}>"
        arrays = [address(buffer, *[0] * len(buffer.ty.shape)) for buffer in func.params]
        grid = {thread("blockIdx.x"): 1, thread("threadIdx.x"): threads}
        return func.with_body(launch(tirx.Evaluate(call(name, *arrays)), grid))
