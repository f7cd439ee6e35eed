"""Writing the package of a microcontroller: a folder that any C project can link.

=====================  ==========================================================================
libPREFIX_model.a      kernels, driver, weights (each in a section of its own), memory functions
PREFIX_model.h         the C interface, with the sizes of arena, stack, code and weights
ibert_model.json       the same and more for programs: inputs, outputs, scales, memory, layers
README.md              how to link and call it
manifest.json          size and SHA-256 of each of these
=====================  ==========================================================================

With ``emit="c"`` sources and a Makefile take the place of the library. Nothing is given out that
has not been linked and checked first (`ibert_tvm.targets.bare_metal.verification`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ibert_tvm.common.integrity import write_manifest
from ibert_tvm.common.strict_json import JsonObject

from ..aot.c_source import kernels_source
from ..aot.c_text import prefixed, rendered
from ..aot.interface import TensorSpec, item_size
from ..aot.library import api_functions
from ..aot.weights import weights_assembly
from ..description import TargetDescription
from ..elf import opened
from ..linking import PLAIN_BRANCHES, Tools
from ..weights import WEIGHTS_FILE, external_bytes, write_weights
from .c_weights import weights_c
from .document import DOCUMENT, FORMAT, KIND, FileNames
from .guide import makefile, readme
from .integration import write_integration
from .memory_use import FunctionPeak, MemoryUse, check_limits
from .options import C_ARRAYS, C_SOURCES, OBJECTS, PackageOptions, forms_of
from .verification import Verified, bare_metal, stack_of_sources, verify_package

if TYPE_CHECKING:
    from ..aot.model import BareModel

# -Os would halve the driver's few kilobytes, but memory functions are worth their speed.
# The arena's bytes change their type from value to value, which C's rules of aliasing forbid.
# Weights are included as they are; the preprocessor of C compilers sees this before the assembler.
_LITTLE_ENDIAN = """\
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "weights.bin is little-endian, and this processor is not: compile with --emit c-arrays"
#endif
"""
CFLAGS = (
    *("-O2", "-std=c99", "-ffreestanding", "-ffunction-sections", "-fdata-sections"),
    *("-fno-strict-aliasing", "-Wall", *PLAIN_BRANCHES),
)
# Calls as the sources have them.
_APART = ("-fno-inline", "-fno-partial-inlining")
_MEMORY_SOURCE = Path(__file__).with_name("memory.c")
_SIZES = Path(__file__).with_name("sizes.h.in")
# What the bound of the stack was measured on; on another processor the header's is none at all.
_STACK_CHECK = Path(__file__).with_name("stack_check.h.in")


def write_package(
    bare: BareModel,
    metadata: JsonObject,
    description: TargetDescription,
    folder: Path,
    options: PackageOptions | None = None,
) -> JsonObject:
    """Fill a folder with a package.

    Parameters
    ----------
    bare
        Compiled without runtime.
    metadata
        JSON-serialisable facts about the model; the tokenizer is left out.
    description
        A target without operating system.
    folder
        Empty; what is in it after an error is of no use.
    options
        Form and limits.

    Returns
    -------
    dict
        The content of ``ibert_model.json``.

    Raises
    ------
    MemoryLimitError
        If it needs more flash or RAM than `options` allow.
    PackageError
        If it lacks a property that packages have.
    TargetError
        If a tool is missing or fails.
    OSError
        If the folder cannot be written.
    """
    options = options or PackageOptions(forms_of(description)[0])
    work = folder / ".build"
    work.mkdir()
    names = FileNames(bare.interface.prefix)
    sources = _write_sources(bare, names, work, options)
    objects = _build_objects(bare, sources, work, description, options)
    driver = (work / names.driver).with_suffix(".o")
    verified = verify_package(objects, driver, api_functions(bare), work, description)
    limits: dict[Path, int] = {}
    if options.emit != OBJECTS:
        objects_apart = compile_sources(sources, work, description, _APART, ".apart.o")
        driver = (work / names.driver).with_suffix(".apart.o")
        stack, limits = stack_of_sources(
            objects_apart, driver, api_functions(bare), work, description, verified.frames
        )
        verified = replace(verified, stack=stack)
    use = memory_use(bare, verified)
    check_limits(use, options, description, bare.arena_at)
    header = _with_sizes(bare, use, description, options)
    (folder / names.header).write_text(header, encoding="utf-8")
    document = package_document(bare, metadata, description, options.emit, use, verified)
    document = {**document, "build_systems": list(options.build_systems)}
    (folder / DOCUMENT).write_text(json.dumps(document, indent=1), encoding="utf-8")
    (folder / "README.md").write_text(readme(document), encoding="utf-8")
    if bare.external:
        apart = [weight for weight in bare.weights if weight.external]
        nbytes = external_bytes(apart, bare.alignment)
        write_weights(apart, bare.parameters, nbytes, folder, names.external_weights)
    if options.emit == OBJECTS:
        tools, members = Tools(description), [path.name for path in objects]
        archiving = [tools.binary("ar"), "rcsD", names.library, *members]
        tools.run(archiving, work, "cannot pack the library")
        (work / names.library).rename(folder / names.library)
    else:
        for path in sources:
            if path.suffix == ".c":
                limit = limits[path.with_suffix(".apart.o")]
                compilers = bare_metal(description).compilers
                text = rendered(_STACK_CHECK, limit=limit, compilers=compilers)
                check = prefixed(text, names.prefix)
                path.write_text(check + path.read_text(encoding="utf-8"), encoding="utf-8")
            path.rename(folder / path.name)
        if options.emit == C_SOURCES:
            (work / WEIGHTS_FILE).rename(folder / WEIGHTS_FILE)
        files = [path.name for path in sources]
        text = makefile(names.prefix, files, *_compiler(description))
        (folder / "Makefile").write_text(text, encoding="utf-8")
    names_of_sources = [] if options.emit == OBJECTS else [path.name for path in sources]
    for system in options.build_systems:
        write_integration(folder, system, document, names_of_sources)
    for path in work.iterdir():
        path.unlink()
    work.rmdir()
    write_manifest(folder)
    return document


def _compiler(description: TargetDescription) -> tuple[str, tuple[str, ...]]:
    """Command of the compiler that a package is for, and flags that choose the processor."""
    toolchain = description.toolchain
    if toolchain is None or OBJECTS not in forms_of(description):
        return "cc", ()
    return toolchain.compiler, toolchain.flags


def _write_sources(
    bare: BareModel, names: FileNames, work: Path, options: PackageOptions
) -> list[Path]:
    """Write everything that the C compiler translates; kernels only where they are C too."""
    sources = {names.header: bare.header, names.driver: bare.driver_c}
    sources[names.memory] = _MEMORY_SOURCE.read_text(encoding="utf-8")
    sources |= bare.text.sources if bare.text else {}
    if options.emit != OBJECTS:
        sources[names.kernels] = kernels_source(bare)
        for path in bare.support_sources:
            sources[path.name] = path.read_text(encoding="utf-8")
    if options.emit == C_ARRAYS:
        sources[names.weights] = weights_c(bare)
    else:
        sources[names.assembled_weights] = _LITTLE_ENDIAN + weights_assembly(bare, separate=True)
        write_weights(bare.linked, bare.parameters, bare.weight_bytes, work)
    for name, text in sources.items():
        (work / name).write_text(text, encoding="utf-8")
    return [work / name for name in sources if name != names.header]


def _build_objects(
    bare: BareModel,
    sources: Sequence[Path],
    work: Path,
    description: TargetDescription,
    options: PackageOptions,
) -> list[Path]:
    """Translate the sources; together with the kernels' objects where these are no sources."""
    objects = compile_sources(sources, work, description)
    if options.emit == OBJECTS:
        for symbol, content in {**bare.objects, **bare.support}.items():
            objects.append(work / f"{symbol}.o")
            objects[-1].write_bytes(content)
        _mark(objects, work, description)
    return objects


def compile_sources(
    sources: Sequence[Path],
    work: Path,
    description: TargetDescription,
    flags: Sequence[str] = (),
    suffix: str = ".o",
) -> list[Path]:
    """Translate a package's sources, which lie in a folder with its header.

    Parameters
    ----------
    sources
        C and assembly.
    work
        Their folder; the objects are written there.
    description
        The target.
    flags, suffix
        More flags, and what the objects' names end with.

    Raises
    ------
    TargetError
        If the compiler is missing or fails.
    """
    tools = Tools(description)
    for path in sources:
        arguments = [*CFLAGS, *flags, "-c", path.name, "-o", path.with_suffix(suffix).name]
        tools.compile(arguments, work, f"cannot compile {path.name}")
    return [path.with_suffix(suffix) for path in sources]


def _mark(objects: Sequence[Path], work: Path, description: TargetDescription) -> None:
    """Let objects link with code of any floating-point convention: they use none."""
    neutral = bare_metal(description).neutral
    if neutral is None:
        return
    section, rewrite = neutral
    tools = Tools(description)
    copier = tools.binary("objcopy")
    changed = work / "attributes"
    for path in objects:
        with opened(path) as elf:
            attributes = elf.get_section_by_name(section)
            content = None if attributes is None else rewrite(attributes.data())
        if content is not None:
            changed.write_bytes(content)
            update = f"--update-section={section}={changed.name}"
            tools.run([copier, update, path.name], work, f"cannot mark {path.name}")


def memory_use(bare: BareModel, verified: Verified) -> MemoryUse:
    """What a package takes of memory, from what was found in it."""
    weights = sorted(((w.name, w.nbytes) for w in bare.linked), key=lambda row: -row[1])
    largest = max(bare.functions, key=lambda function: function.arena_bytes)
    return MemoryUse(
        code=verified.code_bytes,
        constants=verified.constant_bytes,
        weights=verified.weight_bytes,
        arena=largest.arena_bytes,
        stack=verified.stack.total,
        data=verified.data_bytes,
        largest_weights=tuple(weights),
        peak=FunctionPeak(largest.batch, largest.seq_len, largest.peak),
    )


def _largest_bytes(specs: Sequence[TensorSpec], bare: BareModel) -> int:
    """Bytes of all inputs, or outputs, of the shape that has most, each at a multiple of 8."""
    return max(
        sum(-(-s.elements(f.batch, f.seq_len) * item_size(s.dtype) // 8) * 8 for s in specs)
        for f in bare.functions
    )


def _with_sizes(
    bare: BareModel, use: MemoryUse, description: TargetDescription, options: PackageOptions
) -> str:
    """The header with what is known after linking, before the end of its guard."""
    start, end, guard = bare.header.rpartition("#endif")
    inputs = _largest_bytes(bare.interface.inputs, bare)
    outputs = _largest_bytes(bare.interface.outputs, bare)
    from_sources = options.emit != OBJECTS
    text = rendered(
        _SIZES,
        use=use,
        inputs=inputs,
        outputs=outputs,
        from_sources=from_sources,
        target=description.name,
        compilers=bare_metal(description).compilers,
        runs_on="" if from_sources else description.runs_on,
    )
    sizes = prefixed(text, bare.interface.prefix)
    return f"{start}{sizes}{end}{guard}"


def _tensor(spec: TensorSpec) -> JsonObject:
    """An input for the document; those that count or point at something have no scale."""
    row: dict[str, object] = {"name": spec.name, "dtype": spec.dtype, "shape": list(spec.shape)}
    if spec.scale:
        row |= {"scale": spec.scale, "zero_point": spec.zero_point}
    return row | {"low": spec.low, "high": spec.high}


def package_document(
    bare: BareModel,
    metadata: JsonObject,
    description: TargetDescription,
    emit: str,
    use: MemoryUse,
    verified: Verified,
) -> JsonObject:
    """The content of ``ibert_model.json`` of a package of the form `emit`."""
    kernels = {kernel.symbol: kernel for kernel in bare.kernels}
    compiler, flags = _compiler(description)
    facts = {key: value for key, value in metadata.items() if key != "tokenizer"}
    return {
        **facts,
        "format": FORMAT,
        "kind": KIND,
        "prefix": bare.interface.prefix,
        "emit": emit,
        "toolchain": {"compiler": compiler, "flags": list(flags)},
        "memory": use.to_json(),
        **({} if bare.text is None else {"text": dict(bare.text.report)}),
        **({"external": bare.external} if bare.external else {}),
        "verified": {
            "instructions": verified.instructions,
            "floating_point_instructions": 0,
            "compiler_helpers": list(verified.helpers),
            "deepest_stack": list(verified.stack.path),
        },
        "alignment": bare.alignment,
        "inputs": [_tensor(spec) for spec in bare.interface.inputs],
        "functions": [
            {
                "symbol": function.symbol,
                "batch": function.batch,
                "seq_len": function.seq_len,
                "arena_bytes": function.arena_bytes,
                "kernels": [
                    {
                        "symbol": call.symbol,
                        "layer": call.layer,
                        "kind": kernels[call.symbol].kind,
                        "macs": kernels[call.symbol].macs,
                    }
                    for call in function.calls
                ],
            }
            for function in bare.functions
        ],
        "weights": [
            {
                "name": weight.name,
                "symbol": weight.symbol,
                **({"offset": weight.offset} if weight.external else {"section": weight.section}),
                "dtype": weight.dtype,
                "shape": list(weight.shape),
                "bytes": weight.nbytes,
            }
            for weight in bare.weights
        ],
    }
