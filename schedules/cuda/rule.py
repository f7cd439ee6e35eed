"""What a rule for GPUs is."""

from __future__ import annotations

from typing import Protocol

from tvm import tirx

from ibert_tvm.targets import TargetDescription

from ..rule import Rejection


class GpuRule(Protocol):
    """One rule: the strategy for one kind of kernel."""

    name: str

    def apply(self, func: tirx.PrimFunc, target: TargetDescription) -> tirx.PrimFunc | Rejection:
        """Write the kernel anew with its threads, or say why not."""
        ...
