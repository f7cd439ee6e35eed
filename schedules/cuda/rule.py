"""What a rule for GPUs is."""

from __future__ import annotations

from tvm import tirx

from ibert_tvm.targets import Gpu, TargetDescription

from ..rule import Rule
from ..stages import NotElementwise


class GpuRule(Rule[tirx.PrimFunc]):
    """Base of the rules that write a kernel anew with its threads."""

    def schedule(self, func: tirx.PrimFunc, target: TargetDescription) -> tirx.PrimFunc:
        """Write the kernel for the GPU of a target that has one."""
        if target.gpu is None:
            raise NotElementwise(f"target {target.name} is no GPU")
        return self.write(func, target.gpu)

    def write(self, func: tirx.PrimFunc, gpu: Gpu) -> tirx.PrimFunc:
        """Write the kernel; NotElementwise says why not."""
        raise NotImplementedError
