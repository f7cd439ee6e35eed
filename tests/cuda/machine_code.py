"""Kernels as the CUDA compiler makes them, and what the audit of a build reads off their code."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import tvm
from tvm import tirx

from ibert_tvm.schedules import schedule_kernel
from ibert_tvm.targets import get_target
from ibert_tvm.targets.cuda.audit import KernelAudit
from ibert_tvm.targets.cuda.compile import compile_device_code, kernel_roles, source_modules
from ibert_tvm.targets.cuda.launches import Launch
from ibert_tvm.targets.cuda.pipeline import gpu_pipeline
from tests.cuda.tools import cuda_toolchain


@dataclass(frozen=True)
class MachineCode:
    """Device code of kernels for one architecture: what it is made of, and its listing."""

    source: str
    audits: dict[str, KernelAudit]
    launches: dict[str, Launch]
    listing: str


def machine_code(target: str, kernels: Mapping[str, tirx.PrimFunc]) -> MachineCode:
    """Schedule and compile kernels; none computes with floats, or keeps numbers out of registers.

    Parameters
    ----------
    target
        Name of a target with one architecture.
    kernels
        Unscheduled functions by name.
    """
    cuda_toolchain()
    description = get_target(target)
    functions = {
        name: schedule_kernel(name, func, description).with_attr("global_symbol", name)
        for name, func in kernels.items()
    }
    module = tvm.IRModule(functions)
    launches: dict[str, Launch] = {}
    with source_modules():
        executable = tvm.compile(
            module,
            target=tvm.target.Target(dict(description.tvm_target)),
            tir_pipeline=gpu_pipeline(description, launches),
        )
    with tempfile.TemporaryDirectory() as folder:
        roles = kernel_roles(module)
        code = compile_device_code(executable, description, roles, launches, Path(folder))
        (listing,) = (path.read_text(encoding="utf-8") for path in Path(folder).glob("*.sass"))
    audits = {audit.kernel: audit for audit in code.audits}
    assert audits.keys() == kernels.keys()
    for name, audit in audits.items():
        assert (audit.local, audit.stack_bytes) == (0, 0), name
        assert audit.floating == () == audit.unknown, name
    launched = {name.removesuffix("_kernel"): launch for name, launch in launches.items()}
    return MachineCode(code.source, audits, launched, listing)
