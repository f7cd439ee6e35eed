"""What a schedule rule is."""

from __future__ import annotations

from typing import ClassVar, Generic, TypeVar

from tvm import tirx

from ibert_tvm.targets import Gpu, TargetDescription

from .stages import NotElementwise

Scheduled = TypeVar("Scheduled")


class Rule(Generic[Scheduled]):
    """Base of the rules: the strategy for one structure of a kernel."""

    name: ClassVar[str]

    def schedule(self, func: tirx.PrimFunc, target: TargetDescription) -> Scheduled:
        """Schedule `func` for `target`; NotElementwise says why not."""
        raise NotImplementedError


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


def kernel_name(func: tirx.PrimFunc) -> str:
    """Kind of kernel that emission marked the function with (``linear``, ``attention`` ...)."""
    return str(func.attrs["ibert.kernel"]) if "ibert.kernel" in func.attrs else ""
