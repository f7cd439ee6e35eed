"""One scheduled kernel as a shared library, to be measured on a board."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .description import TargetDescription
from .errors import TargetError
from .toolchain import find_linker

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
    """
    import subprocess

    import tvm

    from .pipeline import cpu_pipeline

    name = str(kernel.attrs["global_symbol"])
    library = tvm.compile(
        tvm.IRModule({name: kernel}),
        target=tvm.target.Target(dict(description.tvm_target)),
        tir_pipeline=cpu_pipeline(description),
    )
    linker = find_linker(description)

    def link(output: str, objects: list[str], **_: object) -> None:
        command = [*linker, "-shared", "-fPIC", "-o", output, *objects, "-pthread"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise TargetError(
                what="cannot link a kernel",
                where=f"target {description.name!r}, {name}",
                why=done.stderr.strip()[-1000:] or f"exit status {done.returncode}",
                todo="check that the C toolchain works for this target; see `ibert doctor`",
            )

    library.export_library(str(path), fcompile=link)
