"""Targets: descriptions of processors, toolchains, and export to a library."""

from ibert_tvm.common.errors import TargetError

from .description import DotInstruction, Gpu, TargetDescription
from .host import cpu_features, host_target, missing_features
from .machines.record import Machine
from .registry import (
    TargetStatus,
    check_runtime,
    get_target,
    list_targets,
    register_target,
    target_names,
    unregister_target,
)
