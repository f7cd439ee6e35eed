"""From TVM's CUDA source to an image of machine code for one or several architectures.

TVM leaves CUDA source in the executable, to be compiled where it runs. Here it is compiled at once:
with the device headers in front, by nvcc, for every architecture; the code is audited, and joined
to an image that takes the place of the source when the library is written.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ibert_tvm.common.errors import TargetError
from ibert_tvm.common.strict_json import JsonDict, JsonObject

from ..description import TargetDescription
from .audit import (
    KernelAudit,
    KernelRole,
    check_kernels,
    check_memory,
    disassemble,
    read_kernels,
    spilling_kernels,
)
from .constant_moves import move_constants
from .driver import OLDEST_DRIVER, NeededDriver
from .nvcc import compile_images
from .sass import code_bytes, functions
from .toolchain import CudaToolchain, find_cuda_toolchain

if TYPE_CHECKING:
    import tvm
    from tvm import relax

    from .launches import Launch

DEVICE_CODE = Path(__file__).with_name("device")
"""Folder of the headers that kernels use; what generated source is compiled with ``-I``."""

ImageMaker = Callable[[str, TargetDescription], bytes]

# What TVM makes a module of CUDA source by where its CUDA runtime is loaded.
_CREATE = "ffi.Module.create.cuda"
_KIND = "cuda"
# TVM's registry is one per process.
_REGISTRY_LOCK = threading.RLock()


@dataclass(frozen=True)
class DeviceCode:
    """The compiled kernels of a library.

    Attributes
    ----------
    image
        What the CUDA driver loads.
    source
        What TVM generated; the image takes its place.
    audits
        Of every device kernel and architecture; empty for an image that nvcc did not make.
    report
        For the library's metadata: ``compiler``, ``architectures``, ``ptx`` (whether it holds code
        that only a driver will compile), ``image_bytes``, per architecture ``code_bytes`` and
        ``constant_moves`` (how many were written anew, see
        `ibert_tvm.targets.cuda.constant_moves`), ``driver`` (the oldest that loads it),
        ``launches`` of device kernels by name, and ``kernels``, what the audit found in each.
    needed
        The oldest driver that loads it.
    """

    image: bytes
    source: str
    audits: tuple[KernelAudit, ...] = ()
    report: JsonObject = field(default_factory=dict)
    needed: NeededDriver = OLDEST_DRIVER


@contextlib.contextmanager
def source_modules() -> Iterator[None]:
    """Have TVM keep CUDA source as it is, also where its CUDA runtime is loaded.

    Other threads that build for a GPU wait meanwhile.
    """
    import tvm_ffi

    with _REGISTRY_LOCK:
        create = tvm_ffi.get_global_func(_CREATE, allow_missing=True)
        if create is not None:
            tvm_ffi.registry.remove_global_func(_CREATE)
        try:
            yield
        finally:
            if create is not None:
                tvm_ffi.register_global_func(_CREATE, create, override=True)


def kernel_roles(module: tvm.IRModule) -> dict[str, KernelRole]:
    """What the kernels of a lowered program are, by name.

    Parameters
    ----------
    module
        Lowered and scheduled.
    """
    from tvm import tirx

    return {
        var.name_hint: KernelRole(
            kind=str(function.attrs["ibert.kernel"]),
            layer=str(function.attrs["ibert.layer"]),
            macs=int(function.attrs.get("ibert.macs", 0)),
        )
        for var, function in module.functions_items()
        if isinstance(function, tirx.PrimFunc) and "ibert.kernel" in function.attrs
    }


def compile_device_code(
    executable: relax.VMExecutable | tvm.runtime.Executable,
    description: TargetDescription,
    roles: Mapping[str, KernelRole],
    launches: Mapping[str, Launch],
    dump: Path | None = None,
    make_image: ImageMaker | None = None,
) -> DeviceCode:
    """Compile the CUDA source of an executable, and audit it.

    Parameters
    ----------
    executable
        Built inside `source_modules`.
    description
        The target.
    roles
        Kernels of the program by name, as from `kernel_roles`.
    launches
        How device kernels are launched, by name.
    dump
        Folder that receives the source, and per architecture the disassembly.
    make_image
        What makes an image of the complete source in place of nvcc; it is not audited.

    Raises
    ------
    TargetError
        If the toolchain is missing or fails, or the audit refuses.
    """
    gpu = description.gpu
    if gpu is None:
        raise ValueError(f"target {description.name!r} has no GPU")
    generated = _source(executable.mod)
    source = with_headers(generated)
    _write(dump, "kernels.cu", source)
    if make_image is not None:
        report = {
            "architectures": list(gpu.architectures),
            "ptx": False,
            "launches": _launch_report(launches),
            "kernels": [],
        }
        return DeviceCode(make_image(source, description), generated, report=report)
    toolchain = find_cuda_toolchain(description.name, gpu.architectures)
    made = _machine_code(source, description, toolchain, roles, dump)
    spilling = spilling_kernels(made.audits, roles)
    if spilling:
        source = with_all_registers(source, spilling)
        _write(dump, "kernels.cu", source)
        made = _machine_code(source, description, toolchain, roles, dump)
    check_kernels(made.audits, roles, description.name)
    check_memory(made.audits, launches, gpu, description.name)
    needed = NeededDriver.of(toolchain.version)
    report = {
        "compiler": toolchain.title,
        "driver": needed.to_json(),
        "architectures": list(gpu.architectures),
        "ptx": gpu.ptx,
        "image_bytes": len(made.image),
        "code_bytes": made.code_bytes,
        "constant_moves": made.constant_moves,
        "launches": _launch_report(launches),
        "kernels": [audit.to_json() for audit in made.audits],
    }
    return DeviceCode(made.image, generated, made.audits, report, needed)


def _launch_report(launches: Mapping[str, Launch]) -> JsonDict:
    return {name: launch.to_json() for name, launch in launches.items()}


@dataclass(frozen=True)
class _MachineCode:
    """What became of a source: the image, and by architecture what it is made of."""

    image: bytes
    code_bytes: dict[str, int]
    constant_moves: dict[str, int]
    audits: tuple[KernelAudit, ...]


def _machine_code(
    source: str,
    description: TargetDescription,
    toolchain: CudaToolchain,
    roles: Mapping[str, KernelRole],
    dump: Path | None,
) -> _MachineCode:
    """Compile a source for every architecture, and read what came out; nothing is refused yet."""
    if description.gpu is None:
        raise ValueError(f"target {description.name!r} has no GPU")
    moves: dict[str, int] = {}
    sizes: dict[str, int] = {}
    audits: list[KernelAudit] = []
    with compile_images(source, description.gpu, toolchain, DEVICE_CODE, description.name) as made:
        for architecture, path in made.cubins.items():
            text, moves[architecture] = finish_cubin(path, toolchain)
            _write(dump, f"kernels.{architecture}.sass", text)
            code = path.read_bytes()
            audits += read_kernels(text, code, architecture, roles)
            sizes[architecture] = code_bytes(code)
        return _MachineCode(made.joined(), sizes, moves, tuple(audits))


def with_all_registers(source: str, kernels: Collection[str]) -> str:
    """Let some kernels have as many registers as one block of them alone may take.

    Left to itself the CUDA compiler stores a number or two in local memory where that lets a
    multiprocessor hold one block more. That it need hold one only is said in the launch bounds.

    Parameters
    ----------
    source
        CUDA as TVM generates it.
    kernels
        Names of device kernels.
    """

    def bound(match: re.Match[str]) -> str:
        threads, name = match[1], match[2]
        return f"__launch_bounds__({threads}{', 1' if name in kernels else ''}) {name}("

    return re.sub(r"__launch_bounds__\((\d+)\) (\w+)\(", bound, source)


def with_headers(code: str) -> str:
    """Put the device headers in front of what TVM generated.

    Parameters
    ----------
    code
        CUDA C++ that calls device functions by name.

    Returns
    -------
    str
        To be compiled with ``-I`` of `DEVICE_CODE`.
    """
    headers = sorted(path.name for path in DEVICE_CODE.glob("*.cuh"))
    return "".join(f'#include "{name}"\n' for name in headers) + code


def finish_cubin(path: Path, toolchain: CudaToolchain) -> tuple[str, int]:
    """Take moves of constants from the unit for floats: see `targets.cuda.constant_moves`.

    Parameters
    ----------
    path
        A cubin as nvcc made it, which is written anew.
    toolchain
        The programs.

    Returns
    -------
    disassembly, count
        Of the finished code, and how many moves there were.
    """
    text = disassemble(path, toolchain)
    image, count = move_constants(path.read_bytes(), functions(text))
    if count:
        path.write_bytes(image)
        text = disassemble(path, toolchain)
    return text, count


def _source(module: tvm.runtime.Module) -> str:
    """The CUDA source among what a module imports; there is at most one of that kind."""
    for imported in module.imports:
        if imported.kind == _KIND:
            return str(imported.inspect_source())
        found = _source(imported)
        if found:
            return found
    return ""


def _write(dump: Path | None, name: str, text: str) -> None:
    if dump is None:
        return
    try:
        (dump / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise TargetError(
            what=f"cannot write the device code to {dump}",
            where=name,
            why=error.strerror or str(error),
            todo="choose another folder for --dump-ir",
        ) from error
