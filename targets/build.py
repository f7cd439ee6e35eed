"""From scheduled kernels to an executable: what TVM does after our passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tvm
from tvm import relax

from .description import TargetDescription
from .pipeline import cpu_pipeline

if TYPE_CHECKING:
    from .cuda.compile import DeviceCode
    from .cuda.launches import Launch


def build_executable(module: tvm.IRModule, description: TargetDescription) -> relax.VMExecutable:
    """Build a module whose Relax functions consist of ``call_tir`` on scheduled kernels.

    The Relax pipeline is listed here: the stock one would first legalise operators, and with that
    could bring back what the integer-only check has ruled out.

    Parameters
    ----------
    module
        Lowered and scheduled, for a processor.
    description
        Target to generate code for.

    Returns
    -------
    tvm.relax.VMExecutable
        Not yet linked.
    """
    # Copies that only change a shape become views. Kernels for a GPU have a form which that pass
    # cannot look into, and emission makes no such copies.
    views = relax.transform.RewriteDataflowReshape()
    return _build(views(module), description, [], cpu_pipeline(description))


@dataclass(frozen=True)
class GpuBuild:
    """A program with device code.

    Attributes
    ----------
    executable
        Not yet linked; it holds source, which `device` replaces when the library is written.
    device
        The compiled and audited kernels.
    storage_bytes
        Device memory for the values between kernels, which all functions share.
    tokens
        As of `ibert_tvm.targets.cuda.launches.token_records`.
    """

    executable: relax.VMExecutable
    device: DeviceCode
    storage_bytes: int
    tokens: Mapping[str, Mapping[str, object]]

    @property
    def report(self) -> dict[str, object]:
        """What the library says about its device code: `DeviceCode.report`, `storage_bytes`."""
        return {**self.device.report, "storage_bytes": self.storage_bytes}


def build_for_gpu(
    module: tvm.IRModule, description: TargetDescription, dump: Path | None = None
) -> GpuBuild:
    """Build a module for a GPU, as `build_executable` does for a processor.

    The values between kernels get storages that stay where they are, so that a run can be captured
    as a graph: see `ibert_tvm.targets.cuda.storage`.

    Parameters
    ----------
    module
        Lowered and scheduled, with threads.
    description
        Target with a GPU.
    dump
        Folder that receives the device code's source and disassembly.

    Raises
    ------
    TargetError
        If the CUDA compiler is missing or fails, or the audit refuses its code.
    """
    from .cuda.compile import compile_device_code, kernel_roles, source_modules
    from .cuda.launches import add_rows, token_records
    from .cuda.pipeline import gpu_pipeline
    from .cuda.storage import KeepStorages, storage_bytes
    from .cuda.workspaces import LiftWorkspaces

    planned: list[tvm.IRModule] = []
    launches: dict[str, Launch] = {}

    @tvm.transform.module_pass(opt_level=0, name="ObservePlan")
    def observe(module: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        planned.append(module)
        return module

    with source_modules():
        executable = _build(
            tvm.transform.Sequential([LiftWorkspaces()])(module),
            description,
            [KeepStorages(), observe],
            gpu_pipeline(description, launches),
        )
    add_rows(launches, module)
    roles = kernel_roles(module)
    device = compile_device_code(executable, description, roles, launches, dump)
    tokens = token_records(module, launches)
    return GpuBuild(executable, device, storage_bytes(planned[0]), tokens)


def _build(
    module: tvm.IRModule,
    description: TargetDescription,
    after_planning: Sequence[tvm.transform.Pass],
    tir_pipeline: str,
) -> relax.VMExecutable:
    passes = [
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
        relax.transform.StaticPlanBlockMemory(),
        *after_planning,
        relax.transform.LowerAllocTensor(),
        relax.transform.KillAfterLastUse(),
        relax.transform.LowerRuntimeBuiltin(),
        relax.transform.ComputePrimValue(),
        relax.transform.VMShapeLower(),
        relax.transform.AttachGlobalSymbol(),
    ]
    target = tvm.target.Target(dict(description.tvm_target))
    with target:
        return relax.build(
            module,
            target,
            relax_pipeline=tvm.transform.Sequential(passes),
            tir_pipeline=tir_pipeline,
        )
