"""Linking a compiled program, its weights and its metadata into one shared library.

The library is an ordinary TVM module (``tvm.runtime.load_module`` loads it) with two sections more:

``.ibert.weights``
    Every weight once, whatever number of shapes the library serves, each aligned to a cache line.
    The section is mapped, not read: loading costs no copy, and the kernel shares its pages between
    processes.
``.ibert.metadata``
    UTF-8 JSON, readable with any ELF reader without running the library.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ibert_tvm.common.strict_json import JsonObject

from .description import TargetDescription
from .library_check import LibraryCheck, check_elf, check_library
from .linking import (
    BOARD,
    PARALLEL,
    PROTECTED,
    THREAD_FLAGS,
    THREAD_FUNCTIONS,
    Tools,
    kept_in_memory,
    replacing,
    unwritable,
)
from .microkernels import write_microkernels
from .registry import check_runtime
from .seal import seal_library
from .weights import METADATA_ASSEMBLY, METADATA_FILE, weight_rows, write_weights

if TYPE_CHECKING:
    import tvm
    from tvm import relax

    from .cuda.compile import DeviceCode

# Of each source what failed if it is not translated.
_SOURCES = {
    "weights.s": "cannot assemble the weights",
    METADATA_ASSEMBLY.name: "cannot assemble the metadata",
    PARALLEL.name: "cannot compile the thread pool",
    BOARD.name: "cannot compile the description of the board",
}

ALIGNMENT = 64
_OUR_SYMBOLS = ("ibert_weights", "ibert_metadata", *THREAD_FUNCTIONS)
_LOADED_SYMBOLS = ("__tvm_ffi__library_bin", *_OUR_SYMBOLS)
# What a loader looks for; everything else stays local, so that what nothing calls can be dropped.
_VERSION_SCRIPT = "{ global: __tvm*; __TVM*; TVM*; ibert_*; local: *; };\n"


def _write_sources(
    folder: Path, parameters: Mapping[str, np.ndarray], metadata: JsonObject
) -> None:
    """Write what is assembled and linked besides TVM's object files."""
    rows, size = weight_rows(parameters, ALIGNMENT)
    size = max(size, ALIGNMENT)  # a section is never empty
    write_weights(rows, parameters, size, folder)
    document = {**metadata, "parameters": [row.to_json() for row in rows]}
    text = json.dumps(document, sort_keys=True)
    (folder / METADATA_FILE).write_text(text, encoding="utf-8")
    for source in _SOURCES:
        (folder / source).write_bytes(METADATA_ASSEMBLY.with_name(source).read_bytes())
    (folder / "exports.map").write_text(_VERSION_SCRIPT, encoding="utf-8")


def _needed_symbols(metadata: JsonObject) -> list[str]:
    """What TVM's runtime and ours look up in the library: its program, its kernels, its weights."""
    kernels = {
        kernel["name"]
        for function in metadata.get("functions", ())
        for kernel in function.get("kernels", ())
    }
    return [*_LOADED_SYMBOLS, *(f"__tvm_ffi_{kernel}" for kernel in sorted(kernels))]


def export_library(
    executable: relax.VMExecutable,
    parameters: Mapping[str, np.ndarray],
    metadata: JsonObject,
    description: TargetDescription,
    path: Path,
    *,
    require_load: bool = False,
    device: DeviceCode | None = None,
) -> LibraryCheck | None:
    """Write the shared library; an existing file is replaced only once the new one is complete.

    Parameters
    ----------
    executable
        Compiled Relax program whose functions take the inputs, then all of `parameters` in order.
    parameters
        Integer weights by name, in that order.
    metadata
        JSON-serialisable; the weight table is added under ``"parameters"``.
    description
        Target that `executable` was compiled for.
    path
        Output file.
    require_load
        Fail where a library for another machine cannot be loaded under its emulator.
    device
        Machine code of a GPU's kernels, which takes the place of the source in `executable`.

    Returns
    -------
    LibraryCheck or None
        Whether it was loaded as on its board; None for targets without emulator, x86-64, whose
        libraries are checked by their headers only.

    Raises
    ------
    TargetError
        If the directory cannot be written, a tool is missing or fails, or the result is for another
        processor or cannot be loaded; or if the target has no TVM runtime.
    """
    check_runtime(description, "tvm")
    tools = Tools(description)
    with replacing(path, "model.so") as work:
        try:
            _write_sources(work, parameters, metadata)
        except OSError as error:
            raise unwritable(path, error) from error
        objects = []
        compiled = (*THREAD_FLAGS, *description.machine.general_registers)
        for source, what in _SOURCES.items():
            objects.append(f"{Path(source).stem}.o")
            flags = compiled if source.endswith(".c") else ()
            tools.compile(["-c", *flags, source, "-o", objects[-1]], work, what)

        microkernels = write_microkernels(description, work)

        def link(output: str, objects: list[str], **_: object) -> None:
            # --gc-sections drops the half-float conversions that TVM adds to every module: nothing
            # calls them, and no floating-point instruction shall be left in the library.
            flags = [
                *("-Wl,--version-script=exports.map", "-Wl,--gc-sections"),
                *(f"-Wl,--undefined={symbol}" for symbol in _OUR_SYMBOLS),
            ]
            arguments = ["-shared", "-fPIC", "-o", output, *objects, "-pthread", *flags, *PROTECTED]
            tools.compile(arguments, work, "cannot link the library")

        def pack(module: tvm.runtime.Module, *_: object) -> str:
            return pack_device_code(module, device, work, tools)

        # Names that TVM gives the objects of a module, and of what it imports.
        with kept_in_memory(work / "lib0.o", work / "devc.o"):
            executable.export_library(
                str(work / "model.so"),
                fcompile=link,
                fpack_imports=None if device is None else pack,
                addons=[*(str(work / name) for name in objects), *microkernels],
                workspace_dir=str(work),
            )
        made, check = work / "model.so", None
        if description.emulator is None:
            check_elf(made, description)
        else:
            check = check_library(
                made, description, _needed_symbols(metadata), required=require_load
            )
        seal_library(made)
        return check


def pack_device_code(
    module: tvm.runtime.Module, device: DeviceCode | None, work: Path, tools: Tools
) -> str:
    """Object file with what TVM's runtime loads besides the library's own functions."""
    import tvm_ffi

    from .cuda.packing import write_modules

    if device is None:
        raise ValueError("no device code to pack")
    packed = tvm_ffi.get_global_func("runtime.ModulePackImportsToTensor")(module)
    symbol = str(tvm_ffi.get_global_func("runtime.ModuleImportsBlobName")())
    assembly = write_modules(packed.numpy().tobytes(), device, symbol, work)
    arguments = ["-c", assembly.name, "-o", "modules.o"]
    tools.compile(arguments, work, "cannot assemble the device code")
    return str(work / "modules.o")
