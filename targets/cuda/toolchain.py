"""Finding the CUDA compiler, and the programs that join and disassemble what it makes.

Nothing here needs a GPU or its driver. The packages of the extras come first, because they are the
versions that this project is tested with: those of ``cuda12``, whose code older drivers load, then
those of ``cuda``. An installation of CUDA serves as well.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ibert_tvm.common.errors import TargetError

from ..programs import run

if TYPE_CHECKING:
    from ..description import TargetDescription

CUDA_VARIABLE = "IBERT_CUDA_HOME"
_VARIABLES = ("CUDA_HOME", "CUDA_PATH")
_INSTALLED = Path("/usr/local/cuda")
# Where the packages of CUDA 13 put everything, and where ptxas' larger sibling looks for itself.
_PACKAGES = Path("nvidia") / "cu13"
# Packages of CUDA 12: libraries, which a program of ours makes programs of.
_LIBRARIES = {
    "nvcc": Path("nvidia") / "cuda_nvrtc" / "lib" / "libnvrtc.so.12",
    "fatbinary": Path("nvidia") / "nvfatbin" / "lib" / "libnvfatbin.so.12",
}
_PROGRAM = Path(__file__).with_name("nvrtc.py")
# C++17, every architecture that the named targets need, and cp.async in PTX.
_OLDEST = (12, 0)
_INSTALL = (
    "pip install 'ibert-tvm[cuda]' (which needs neither a GPU nor root), or install CUDA 13 and "
    "set CUDA_HOME to its folder"
)
_ANSWER_SECONDS = 60


@dataclass(frozen=True)
class CudaToolchain:
    """The programs that make and check device code.

    Attributes
    ----------
    nvcc, fatbinary, nvdisasm
        Paths: the compiler, what joins the code of several architectures, the disassembler. The
        first two are libraries where they are of packages of CUDA 12; `command` runs either.
    version
        Of the compiler, for example ``(13, 5)``.
    found
        Where: ``"Python packages"``, the name of a variable, ``"PATH"``, or the folder.
    """

    nvcc: str
    fatbinary: str
    nvdisasm: str
    version: tuple[int, int]
    found: str

    @property
    def architectures(self) -> tuple[int, ...]:
        """Numbers of the architectures that it compiles for, ascending: 75 for ``sm_75``."""
        return _architectures(self.nvcc)

    @property
    def title(self) -> str:
        """The compiler and its version: ``nvcc 13.5``."""
        name = "NVRTC" if _is_library(self.nvcc) else "nvcc"
        return f"{name} {'.'.join(map(str, self.version))}"

    def __str__(self) -> str:
        return f"{self.title} ({self.found}: {self.nvcc})"


def command(path: str) -> list[str]:
    """How `CudaToolchain.nvcc` or ``fatbinary`` is run; options follow."""
    return [sys.executable, str(_PROGRAM), path] if _is_library(path) else [path]


def _is_library(path: str) -> bool:
    return Path(path).name in {library.name for library in _LIBRARIES.values()}


def find_cuda_toolchain(target: str = "cuda", architectures: tuple[str, ...] = ()) -> CudaToolchain:
    """Find the compiler, fatbinary and nvdisasm.

    The first of these that has an ``nvcc``:

    1. the folder that the variable ``IBERT_CUDA_HOME`` names, which must be right;
    2. the Python packages of the ``cuda12`` extra, if they know the architectures;
    3. those of the ``cuda`` extra, beside this Python's other packages, too;
    4. the folders that ``CUDA_HOME`` and ``CUDA_PATH`` name;
    5. ``PATH``;
    6. ``/usr/local/cuda``.

    ``fatbinary`` and ``nvdisasm`` are taken from the same folder, or from the next that has them.

    Parameters
    ----------
    target
        Name of the target that it is needed for, for errors.
    architectures
        "sm_75", ...: those that it has to compile for; see `check_architectures`.

    Raises
    ------
    TargetError
        If a program is missing or too old; the message says what to install.
    """
    chosen = os.environ.get(CUDA_VARIABLE)
    if chosen and not _program(Path(chosen) / "bin", "nvcc"):
        raise TargetError(
            what=f"no CUDA compiler for target {target!r}",
            where=f"environment variable {CUDA_VARIABLE}={chosen!r}",
            why="there is no bin/nvcc in that folder",
            todo=f"name a folder with one, or unset {CUDA_VARIABLE}",
        )
    folders = list(_folders())
    libraries = {} if chosen else _libraries(architectures)
    compilers = ((found, _program(folder, "nvcc")) for found, folder in folders)
    found, nvcc = next((pair for pair in compilers if pair[1]), ("", ""))
    if libraries:
        found, nvcc = "Python packages", libraries["nvcc"]
    if not nvcc:
        raise TargetError(
            what=f"no CUDA compiler for target {target!r}",
            where=f"Python packages, {', '.join(_VARIABLES)}, PATH, {_INSTALLED}",
            why="the kernels of a GPU are compiled by nvcc, which is in none of them",
            todo=_INSTALL,
        )
    version = _version(nvcc)
    if version < _OLDEST:
        raise TargetError(
            what=f"the CUDA compiler is too old for target {target!r}",
            where=nvcc,
            why=f"it is of CUDA {'.'.join(map(str, version))}; "
            f"{'.'.join(map(str, _OLDEST))} or newer is needed",
            todo=_INSTALL,
        )
    others = [Path(nvcc).parent, *(folder for _, folder in folders)]
    toolchain = CudaToolchain(
        nvcc=nvcc,
        fatbinary=libraries.get("fatbinary")
        or _companion("fatbinary", others, target, "joins the code of architectures"),
        nvdisasm=_companion(
            "nvdisasm", others, target, "shows that compiled kernels hold no floating point"
        ),
        version=version,
        found=found,
    )
    check_architectures(toolchain, architectures, target)
    return toolchain


def check_architectures(toolchain: CudaToolchain, names: tuple[str, ...], target: str) -> None:
    """Refuse architectures that the compiler does not know.

    Parameters
    ----------
    toolchain
        The programs.
    names
        For example ``("sm_75", "sm_90")``.
    target
        Name of the target, for the error.

    Raises
    ------
    TargetError
        With those that it knows.
    """
    known = toolchain.architectures
    wrong = [name for name in names if _number(name) not in known]
    if wrong:
        version = ".".join(map(str, toolchain.version))
        raise TargetError(
            what=f"cannot compile for target {target!r}",
            where=f"{', '.join(wrong)}, with {toolchain.nvcc}",
            why=f"nvcc {version} does not know {'them' if len(wrong) > 1 else 'it'}",
            todo=f"use one of: {', '.join(f'sm_{number}' for number in known)}; "
            "or another version of CUDA",
        )


def _folders() -> Iterator[tuple[str, Path]]:
    """Folders of programs in the order in which they are looked at, and what to call them."""
    if os.environ.get(CUDA_VARIABLE):
        yield CUDA_VARIABLE, Path(os.environ[CUDA_VARIABLE]) / "bin"
    for place in dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib")):
        yield "Python packages", Path(place) / _PACKAGES / "bin"
    for variable in _VARIABLES:
        if os.environ.get(variable):
            yield variable, Path(os.environ[variable]) / "bin"
    on_path = shutil.which("nvcc")
    if on_path is not None:
        yield "PATH", Path(on_path).parent
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        if folder:
            yield "PATH", Path(folder)
    yield str(_INSTALLED), _INSTALLED / "bin"


def _libraries(architectures: tuple[str, ...]) -> dict[str, str]:
    """CUDA 12's libraries by the program that they stand for, if all are there and serve."""
    for place in dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib")):
        found = {name: str(Path(place) / path) for name, path in _LIBRARIES.items()}
        if all(Path(path).is_file() for path in found.values()):
            known = _architectures(found["nvcc"])
            return found if all(_number(name) in known for name in architectures) else {}
    return {}


def _number(architecture: str) -> int:
    return int(architecture.removeprefix("sm_"))


def _program(folder: Path, name: str) -> str:
    """Path of a program in a folder; empty if there is none."""
    return shutil.which(name, path=str(folder)) or ""


def _companion(name: str, folders: list[Path], target: str, purpose: str) -> str:
    for folder in folders:
        path = _program(folder, name)
        if path:
            return path
    raise TargetError(
        what=f"no {name} for target {target!r}",
        where=str(folders[0]),
        why=f"it {purpose}",
        todo=_INSTALL,
    )


@functools.cache
def _version(nvcc: str) -> tuple[int, int]:
    text = _asked(nvcc, "--version")
    match = re.search(r"release (\d+)\.(\d+)", text)
    if match is None:
        raise TargetError(
            what="the CUDA compiler does not work",
            where=nvcc,
            why=f"asked --version it says: {text.strip()[-500:] or 'nothing'}",
            todo=_INSTALL,
        )
    return int(match[1]), int(match[2])


@functools.cache
def _architectures(nvcc: str) -> tuple[int, ...]:
    numbers = re.findall(r"^sm_(\d+)$", _asked(nvcc, "--list-gpu-code"), re.M)
    return tuple(sorted(map(int, numbers)))


def _asked(nvcc: str, option: str) -> str:
    done = run([*command(nvcc), option], seconds=_ANSWER_SECONDS)
    return done.stdout or done.stderr


def check_toolchain(description: TargetDescription) -> None:
    """Refuse a target with a GPU for which nothing here compiles; nothing for other targets.

    Parameters
    ----------
    description
        The target.

    Raises
    ------
    TargetError
        If a program is missing, or does not know the architecture.
    """
    if description.gpu is not None:
        find_cuda_toolchain(description.name, description.gpu.architectures)
