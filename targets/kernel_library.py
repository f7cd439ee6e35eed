"""One scheduled kernel as a shared library, to be measured on a board or a GPU."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from .description import TargetDescription
from .linking import Tools
from .microkernels import write_microkernels

if TYPE_CHECKING:
    from tvm import tirx


def build_kernel(kernel: tirx.PrimFunc, description: TargetDescription, path: Path) -> None:
    """Compile one kernel as the compiler compiles kernels of a model, and link it.

    Parameters
    ----------
    kernel
        Scheduled; its ``global_symbol`` is the name of the function in the library.
    description
        The target.
    path
        The library to write.

    Raises
    ------
    TargetError
        If a tool is missing or fails, or the audit of device code refuses it.
    """
    import tvm

    from .pipeline import cpu_pipeline

    name = str(kernel.attrs["global_symbol"])
    module = tvm.IRModule({name: kernel})
    target = tvm.target.Target(dict(description.tvm_target))
    tools = Tools(description)
    microkernels: list[str] = []  # a GPU has none

    def link(output: str, objects: list[str], **_: object) -> None:
        arguments = ["-shared", "-fPIC", "-o", output, *objects, *microkernels, "-pthread"]
        tools.compile(arguments, path.parent, f"cannot link the kernel {name}")

    if description.gpu is None:
        library = tvm.compile(module, target=target, tir_pipeline=cpu_pipeline(description))
        with tempfile.TemporaryDirectory(prefix="ibert-kernel-") as folder:
            microkernels = write_microkernels(description, Path(folder))
            library.export_library(str(path), fcompile=link)
        return
    from .cuda.compile import compile_device_code, kernel_roles, source_modules
    from .cuda.launches import Launch
    from .cuda.pipeline import gpu_pipeline
    from .export import pack_device_code

    launches: dict[str, Launch] = {}
    with source_modules():
        pipeline = gpu_pipeline(description, launches)
        library = tvm.compile(module, target=target, tir_pipeline=pipeline)
    device = compile_device_code(library, description, kernel_roles(module), launches)
    with tempfile.TemporaryDirectory(prefix="ibert-kernel-") as folder:
        work = Path(folder)

        def pack(modules: tvm.runtime.Module, *_: object) -> str:
            return pack_device_code(modules, device, work, tools)

        library.export_library(
            str(path), fcompile=link, fpack_imports=pack, workspace_dir=str(work)
        )
