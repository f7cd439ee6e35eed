"""Targets: descriptions of processors, toolchains, and export to a library."""

from ibert_tvm.common.errors import TargetError

from .description import DotInstruction, Gpu, TargetDescription
from .host import cpu_features, host_target, missing_features
from .registry import TargetStatus, check_runtime, get_target, list_targets, target_names

__all__ = [
    "DotInstruction",
    "Gpu",
    "TargetDescription",
    "TargetError",
    "TargetStatus",
    "check_runtime",
    "cpu_features",
    "get_target",
    "host_target",
    "list_targets",
    "missing_features",
    "target_names",
]
