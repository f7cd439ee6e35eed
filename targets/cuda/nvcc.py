"""Running nvcc: one process per architecture, as many at a time as there are processors.

The processes are groups of their own. Whatever ends the compilation, an error or an interrupt from
the keyboard, ends them as well, and all temporary files lie in one folder that is removed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ibert_tvm.common.errors import TargetError

from ..description import Gpu
from ..programs import output_of
from .toolchain import CudaToolchain
from .toolchain import command as as_command

# C++17 as generated code is written in it; host compilers newer than the toolkit do no harm, since
# they only preprocess.
_FLAGS = ("-std=c++17", "-O3", "--expt-relaxed-constexpr", "-allow-unsupported-compiler")
_SOURCE = "kernels.cu"
_POLL_SECONDS = 0.02
_SHOWN_ERRORS = 4


@dataclass(frozen=True)
class Images:
    """What nvcc made, in a folder that lives as long as the context it came from.

    Attributes
    ----------
    cubins
        Files by architecture, ``"sm_75"``.
    ptx
        By architecture the portable code for newer GPUs; empty if none was asked for.
    toolchain
        What made them.
    target
        Name of the target, for errors.
    """

    cubins: Mapping[str, Path]
    ptx: Mapping[str, Path]
    toolchain: CudaToolchain
    target: str

    def joined(self) -> bytes:
        """All of them as one image, of which the CUDA driver takes what fits its GPU."""
        folder = next(iter(self.cubins.values())).parent
        parts = [("elf", name, path) for name, path in self.cubins.items()]
        parts += [("ptx", name, path) for name, path in self.ptx.items()]
        # What is compressed could not be read back from a library to be audited.
        command = [
            *as_command(self.toolchain.fatbinary),
            "--create=kernels.fatbin",
            "-64",
            "--compress=false",
        ]
        for kind, name, path in parts:
            number = name.removeprefix("sm_")
            command.append(f"--image3=kind={kind},sm={number},file={path.name}")
        output_of(
            command,
            what="cannot join the device code of the architectures",
            where=f"target {self.target!r}, {self.toolchain.fatbinary}",
            todo="check the installation of CUDA; see `ibert doctor`",
            folder=folder,
        )
        return (folder / "kernels.fatbin").read_bytes()


@contextlib.contextmanager
def compile_images(
    source: str, gpu: Gpu, toolchain: CudaToolchain, include: Path, target: str
) -> Iterator[Images]:
    """Compile one source for every architecture of a GPU.

    Parameters
    ----------
    source
        CUDA C++.
    gpu
        Its architectures, and whether portable code of the newest is wanted.
    toolchain
        The programs.
    include
        Folder of headers.
    target
        Name of the target, for errors.

    Yields
    ------
    Images

    Raises
    ------
    TargetError
        With the compiler's first complaints, if it fails; the source is kept in a file that the
        message names.
    """
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ibert-cuda-"))
            work = Path(folder)
            (work / _SOURCE).write_text(source, encoding="utf-8")
        except OSError as error:
            raise TargetError(
                what="cannot write the device code to be compiled",
                where=f"target {target!r}, folder for temporary files",
                why=error.strerror or str(error),
                todo="free space there, or set TMPDIR to another folder",
            ) from error
        cubins = {name: work / f"{name}.cubin" for name in gpu.architectures}
        ptx = {name: work / f"{name}.ptx" for name in gpu.architectures[-1:] if gpu.ptx}
        base = [*as_command(toolchain.nvcc), *_host_compiler(), *_FLAGS, "-I", str(include)]
        jobs = {
            name: [*base, f"-arch={name}", "-cubin", "-o", path.name, _SOURCE]
            for name, path in cubins.items()
        }
        for name, path in ptx.items():
            portable = name.replace("sm_", "compute_")
            jobs[portable] = [*base, f"-arch={portable}", "-ptx", "-o", path.name, _SOURCE]
        failed = _run(jobs, work)
        if failed is not None:
            name, complaint = failed
            raise TargetError(
                what=f"{toolchain.title.partition(' ')[0]} cannot compile the kernels for {name}",
                where=f"target {target!r}; the source is kept in {_kept(work / _SOURCE)}",
                why=_shortened(complaint),
                todo="this is a defect of ibert_tvm, or of the CUDA installation "
                f"({toolchain.nvcc}): see `ibert doctor`",
            )
        yield Images(cubins, ptx, toolchain, target)


def _host_compiler() -> list[str]:
    """What nvcc preprocesses with where there is no gcc; by itself it looks for that only."""
    if os.environ.get("NVCC_CCBIN") or shutil.which("gcc"):
        return []
    clang = shutil.which("clang")
    return ["-ccbin", clang] if clang else []


def _run(jobs: Mapping[str, Sequence[str]], work: Path) -> tuple[str, str] | None:
    """Run commands side by side; the first that fails, by name, and what it said."""
    waiting = list(jobs.items())
    running: dict[str, subprocess.Popen[bytes]] = {}
    at_once = os.cpu_count() or 1
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                name, command = waiting.pop(0)
                running[name] = _start(command, work, name)
            for name, process in list(running.items()):
                status = process.poll()
                if status is None:
                    continue
                del running[name]
                if status != 0:
                    said = (work / f"{name}.log").read_text(encoding="utf-8", errors="replace")
                    return name, said.strip() or f"exit status {status}"
            if running:
                time.sleep(_POLL_SECONDS)
        return None
    finally:
        for process in running.values():
            _end(process)


def _start(command: Sequence[str], work: Path, name: str) -> subprocess.Popen[bytes]:
    with (work / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            command,
            cwd=work,
            env={**os.environ, "TMPDIR": str(work)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # nvcc starts others, which have to end with it
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _shortened(complaint: str) -> str:
    """The compiler's errors without its warnings and notes; all of it where it names none."""
    lines = [line for line in complaint.splitlines() if re.search(r"\b(?:error|fatal)\b.*:", line)]
    shown = [line.strip() for line in lines[:_SHOWN_ERRORS]]
    if len(lines) > _SHOWN_ERRORS:
        shown.append(f"... and {len(lines) - _SHOWN_ERRORS} more")
    return "; ".join(shown) or complaint[-1000:]


def _kept(source: Path) -> Path:
    """Copy a source out of the folder that is about to be removed."""
    handle, name = tempfile.mkstemp(prefix="ibert-", suffix=".cu")
    with open(handle, "wb") as stream:
        stream.write(source.read_bytes())
    return Path(name)
