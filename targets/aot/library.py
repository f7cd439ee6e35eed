"""A shared library without runtime: plain C functions, weights inside, no dependency but libc.

It has the sections of a library for TVM's runtime, ``.ibert.weights`` and ``.ibert.metadata``, so
that the same tools read both; the metadata say which runtime it needs. The functions of
``ibert_model.h`` are all that it exports, beside the three symbols that lead to those sections.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from ibert_tvm.common.files import marked
from ibert_tvm.common.strict_json import JsonObject

from ..blob import write_blob
from ..description import TargetDescription
from ..library_check import LibraryCheck, check_library
from ..linking import (
    BOARD,
    PARALLEL,
    PLAIN_BRANCHES,
    PROTECTED,
    THREAD_FLAGS,
    THREAD_FUNCTIONS,
    Tools,
    replacing,
    unwritable,
)
from ..seal import seal_library
from ..weights import FETCH, METADATA_ASSEMBLY, METADATA_FILE, write_weights
from .header import ABI_VERSION, GENERATED
from .model import BareModel
from .objects import LAUNCH
from .weights import weights_assembly

HEADER = marked("a header that `ibert compile` wrote", GENERATED.encode())
_DATA_SYMBOLS = ("ibert_metadata", "ibert_weights")
_NAME = "model.so"
DEVICE_CODE = "ibert_device_code"
"""Symbol of the machine code of a GPU's kernels."""
_DEVICE_FUNCTIONS = ("device_report", "release", "set_device")

_FUNCTIONS = (
    *("abi_version", "find_shape", "fingerprint", "get_shape", "init", "input", "num_shapes"),
    *("output", "run", "set_hook", "strerror"),
)
_BOARD_FUNCTIONS = tuple(
    f"__tvm_ffi_ibert_{name}" for name in ("board", "call", "parameters", "threads")
)

# No unwind tables: nothing throws, and on ARM they would need a function of the C++ runtime.
_DRIVER_FLAGS = (
    *("-std=c99", "-O2", "-fPIC", "-ffreestanding", "-ffunction-sections", "-fdata-sections"),
    *("-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-Wall", "-Wextra"),
    *PLAIN_BRANCHES,
)


def weight_functions(external: str) -> tuple[str, ...]:
    """Functions by which a program tells of weights that are not in it."""
    if external == FETCH:
        return ("check_weights", "set_fetch")
    return ("set_weights",) if external else ()


def text_functions(report: Mapping[str, object] | None) -> tuple[str, ...]:
    """Functions of a model's tokenizer, by `TextSources.report`; none without one."""
    if report is None:
        return ()
    pairs = ("embed_pair", "tokenize_pair") if report.get("pairs") else ()
    return ("embed_text", "tokenize", *pairs)


def api_functions(model: BareModel) -> tuple[str, ...]:
    """Names of the functions that ``ibert_model.h`` declares."""
    symbols = (function.symbol for function in model.functions)
    further = (
        *text_functions(model.text.report if model.text else None),
        *weight_functions(model.external),
        *(_DEVICE_FUNCTIONS if model.device else ()),
    )
    return declared_functions(model.interface.prefix, symbols, further)


def declared_functions(
    prefix: str, symbols: Iterable[str], further: Iterable[str] = ()
) -> tuple[str, ...]:
    """Names of the functions that a header declares, whose shapes have functions of their own.

    Parameters
    ----------
    prefix
        What names begin with.
    symbols
        Functions of the shapes.
    further
        Functions that not all headers declare.
    """
    return (*(f"{prefix}_{name}" for name in (*_FUNCTIONS, *further)), *symbols)


def exported_symbols(model: BareModel, description: TargetDescription) -> tuple[str, ...]:
    """What the dynamic linker finds in a library: its interface, its data, and its threads.

    Where there is TVM's runtime, also what its server calls (``targets/board.c``).
    """
    prefix = model.interface.prefix
    threads = [name.replace("ibert", prefix, 1) for name in THREAD_FUNCTIONS]
    return (
        *api_functions(model),
        *_DATA_SYMBOLS,
        *([DEVICE_CODE] if model.device else ()),
        *([*threads, LAUNCH] if model.threads else ()),
        *(_BOARD_FUNCTIONS if _has_server(model, description) else ()),
    )


def _has_server(model: BareModel, description: TargetDescription) -> bool:
    """Whether TVM's server on a board of the target can call the library."""
    return model.threads and "tvm" in description.runtimes


def library_metadata(model: BareModel, metadata: JsonObject) -> JsonObject:
    """What the library says about itself.

    Parameters
    ----------
    model
        The program.
    metadata
        As for a library with TVM's runtime, without the weight table.

    Returns
    -------
    dict
        The same with the weight table, ``runtime``, ``threads``, ``abi_version``, ``prefix``,
        ``alignment``, and for each function its ``symbol`` and ``arena_bytes``.
    """
    functions = {function.name: function for function in model.functions}
    return {
        **metadata,
        "runtime": "none",
        "threads": model.threads,
        "abi_version": ABI_VERSION,
        "prefix": model.interface.prefix,
        "alignment": model.alignment,
        "functions": [
            {
                **row,
                "symbol": functions[row["name"]].symbol,
                "arena_bytes": functions[row["name"]].arena_bytes,
            }
            for row in metadata["functions"]
        ],
        "parameters": [row.to_json() for row in model.weights],
    }


def export_bare_library(
    model: BareModel,
    metadata: JsonObject,
    description: TargetDescription,
    path: Path,
    *,
    require_load: bool = False,
) -> LibraryCheck:
    """Link the shared library, and write its header beside it (``model.so``, ``model.h``).

    Existing files are replaced once the new ones are complete.

    Parameters
    ----------
    model
        The program.
    metadata
        JSON-serialisable; see `library_metadata`.
    description
        Target that it was compiled for.
    path
        Output file.
    require_load
        Fail where a library for another machine cannot be loaded under its emulator.

    Returns
    -------
    LibraryCheck
        Whether it was loaded, by what, and how many symbols were found.

    Raises
    ------
    TargetError
        If the directory cannot be written, a tool is missing or fails, or the result is for another
        processor.
    OutputError
        If something that ibert_tvm did not write is in the place of the library or its header.
    """
    tools = Tools(description)
    header = header_path(path)
    with replacing(header, header.name, HEADER) as folder:
        try:
            (folder / header.name).write_text(model.header, encoding="utf-8")
        except OSError as error:
            raise unwritable(header, error) from error
        return _link(model, metadata, tools, path, require_load)


def header_path(path: Path) -> Path:
    """Where the header of a library is written: ``model.h`` beside ``model.so``."""
    return path.with_suffix(".h")


def _link(
    model: BareModel, metadata: JsonObject, tools: Tools, path: Path, require_load: bool
) -> LibraryCheck:
    description, prefix = tools.description, model.interface.prefix
    with replacing(path, _NAME) as work:
        try:
            objects = _write_sources(model, metadata, description, work)
        except OSError as error:
            raise unwritable(path, error) from error
        assembling = ["-c", "weights.s", "-o", "weights.o"]
        tools.compile(assembling, work, "cannot assemble the weights")
        flags = [*_DRIVER_FLAGS, f"-D{prefix.upper()}_SHARED_LIBRARY"]
        flags += description.machine.general_registers
        sources = tuple(_c_sources(model))
        if model.device is not None:
            assembly = write_blob(model.device.image, DEVICE_CODE, work)
            objects.append("device_code.o")
            assembling = ["-c", assembly.name, "-o", objects[-1]]
            tools.compile(assembling, work, "cannot assemble the device code")
        for name in sources:
            compiling = ["-c", *flags, name, "-o", f"{name[:-2]}.o"]
            tools.compile(compiling, work, f"cannot compile {name}")
        objects += [f"{name[:-2]}.o" for name in sources]
        names = (*THREAD_FUNCTIONS, "ibert_fingerprint", "ibert_init", "ibert_run")
        renamed = (f"-D{name}={name.replace('ibert', prefix, 1)}" for name in names)
        flags = [*THREAD_FLAGS, "-DIBERT_WITHOUT_RUNTIME", *renamed]
        flags += description.machine.general_registers
        for source in _further_sources(model, description):
            objects.append(f"{source.stem}.o")
            compiling = ["-c", *flags, source.name, "-o", objects[-1]]
            tools.compile(compiling, work, f"cannot compile {source.name}")
        linking = [
            # Every model has its own threads, whatever else is linked into a program.
            *("-shared", "-fPIC", "-Wl,-Bsymbolic", "-o", _NAME),
            "-pthread" if model.threads or model.device else "-nostartfiles",
            *("weights.o", *objects),
            *(["-ldl"] if model.device else []),
            *("-Wl,--version-script=exports.map", "-Wl,--gc-sections", "-Wl,--as-needed"),
            *("-Wl,-z,defs", *PROTECTED),
            *(f"-Wl,--undefined={name}" for name in _DATA_SYMBOLS),
        ]
        tools.compile(linking, work, "cannot link the library")
        symbols = exported_symbols(model, description)
        check = check_library(work / _NAME, description, symbols, required=require_load)
        seal_library(work / _NAME)
        return check


def _c_sources(model: BareModel) -> dict[str, str]:
    """Generated sources by name."""
    return {
        "driver.c": model.driver_c,
        **({"device.c": model.device.source} if model.device else {}),
        **(model.text.sources if model.text else {}),
    }


def _further_sources(model: BareModel, description: TargetDescription) -> list[Path]:
    """Sources of the threads, and of what a server calls, where the library has them."""
    threads = [PARALLEL] if model.threads else []
    return [*threads, BOARD] if _has_server(model, description) else threads


def _write_sources(
    model: BareModel, metadata: JsonObject, description: TargetDescription, folder: Path
) -> list[str]:
    """Write what is assembled, compiled and linked; return the names of the objects."""
    text = json.dumps(library_metadata(model, metadata), sort_keys=True)
    (folder / METADATA_FILE).write_text(text, encoding="utf-8")
    write_weights(model.weights, model.parameters, model.weight_bytes, folder)
    assembly = weights_assembly(model, separate=False)
    assembly += METADATA_ASSEMBLY.read_text(encoding="utf-8")
    (folder / "weights.s").write_text(assembly, encoding="utf-8")
    (folder / f"{model.interface.prefix}_model.h").write_text(model.header, encoding="utf-8")
    for name, source in _c_sources(model).items():
        (folder / name).write_text(source, encoding="utf-8")
    for path in _further_sources(model, description):
        (folder / path.name).write_bytes(path.read_bytes())
    exported = "; ".join(exported_symbols(model, description))
    script = f"{{ global: {exported}; local: *; }};\n"
    (folder / "exports.map").write_text(script, encoding="utf-8")
    objects = []
    for index, data in enumerate((*model.objects.values(), *model.support.values())):
        objects.append(f"k{index}.o")
        (folder / objects[-1]).write_bytes(data)
    return objects
