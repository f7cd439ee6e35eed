"""Writing the package of a model for browsers and Node.js: a folder that npm takes as it is.

=================  ==============================================================================
index.js           the ES module that programs import; index.d.ts has its types
worker.js          what further threads run
model.js           what the model takes and gives, and the digests of the next two
model.wasm         driver and kernels
weights.bin        the weights, fetched once and kept in the browser's cache
package.json       for npm
ibert_model.json   the same as for microcontrollers, for programs
README.md          how to call it
manifest.json      size and SHA-256 of each of these
=================  ==============================================================================
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ibert_tvm.common.errors import TargetError
from ibert_tvm.common.integrity import write_manifest
from ibert_tvm.common.strict_json import JsonObject

from ..aot.c_text import prefixed, rendered
from ..aot.header import STATUSES
from ..aot.interface import TensorSpec, item_size
from ..bare_metal.document import DOCUMENT, FileNames
from ..bare_metal.firmware import run_on_files
from ..bare_metal.options import WASM
from ..bare_metal.package import memory_use, package_document
from ..bare_metal.stack import StackUse
from ..bare_metal.verification import Verified
from ..description import TargetDescription
from ..emulation import find_emulator
from ..library_audit import LibraryAudit
from ..linking import PARALLEL, Tools
from ..weights import WEIGHTS_FILE, write_weights
from .audit import SHARED, UNSHARED, Module, audit_module, stack_bytes

if TYPE_CHECKING:
    from ..aot.model import BareModel

# Running a package for browsers in Node.js.

_SCRIPT = Path(__file__).with_name("run.mjs")


def run_in_node(
    package: Path,
    document: JsonObject,
    index: int,
    inputs: Mapping[str, np.ndarray],
    folder: Path,
    description: TargetDescription,
) -> dict[str, np.ndarray]:
    """Run a shape of a package.

    Parameters
    ----------
    package
        Its folder.
    document
        Its ``ibert_model.json``.
    index
        Number of the shape.
    inputs
        By name.
    folder
        Where files are made.
    description
        The target.

    Returns
    -------
    dict of str to numpy.ndarray
        Integers of the outputs.

    Raises
    ------
    TargetError
        If Node.js is not installed, or the model refuses the inputs.
    """
    function = document["functions"][index]
    shape = (str(function["batch"]), str(function["seq_len"]))
    command = [find_emulator(description), str(_SCRIPT), str(package.resolve()), *shape]
    return run_on_files(command, document, index, inputs, folder, description)


MODULE = "model.wasm"
_FOLDER = Path(__file__).parent
_SCRIPTS = ("index.js", "worker.js", "index.d.ts")
_CFLAGS = ("-O2", "-std=c99", "-ffreestanding", "-fno-strict-aliasing", "-Wall", "-Wextra")
STACK_BYTES = 128 * 1024
"""At the start of the memory, so that a deeper stack ends in a trap; of workers behind its end."""
MOST_THREADS = 16
_DATA = ("inputs", "outputs", "weights", "message", "__stack_pointer")
_THREADS = ("share", "serve", "abandon")
_TEXT_DATA = ("text", "ids", "types")
TEXT_BYTES = 64 * 1024
"""Room for one text, in UTF-8."""
PAGE_BYTES = 64 * 1024


def exports(document: JsonObject) -> tuple[str, ...]:
    """Names that the module of a package exports, by what its ``ibert_model.json`` says."""
    text = document.get("text")
    pairs = () if text is None or not text.get("pairs") else ("tokenize_pair",)
    functions = () if text is None else (*_TEXT_DATA, "tokenize", *pairs)
    return ("run", *_DATA, *_THREADS, *functions)


def write_web_package(
    bare: BareModel, metadata: JsonObject, description: TargetDescription, folder: Path
) -> JsonObject:
    """Fill a folder with a package.

    Parameters
    ----------
    bare
        Compiled without runtime.
    metadata
        JSON-serialisable facts about the model; the tokenizer is left out.
    description
        The target.
    folder
        Empty; what is in it after an error is of no use.

    Returns
    -------
    dict
        The content of ``ibert_model.json``.

    Raises
    ------
    TargetError
        If a tool is missing or fails, or the module is not what modules must be.
    OSError
        If the folder cannot be written.
    """
    work = folder / ".build"
    work.mkdir()
    room = {
        "inputs": _room(bare.interface.inputs, bare),
        "outputs": _room(bare.interface.outputs, bare),
        "message": 256,
    }
    if bare.text is not None:
        room["text"] = TEXT_BYTES
    _link(bare, room, work, Tools(description))
    (work / MODULE).rename(folder / MODULE)
    for path in work.iterdir():
        path.unlink()
    work.rmdir()
    layers = {kernel.symbol: kernel.layer for kernel in bare.kernels}
    said = {} if bare.text is None else {"text": bare.text.report}
    audit = audit_module(folder / MODULE, description, exports(said), layers)
    if audit.findings:
        raise TargetError(
            "the module computes with floating-point numbers, or is not closed",
            where=f"target {description.name!r}",
            why="; ".join(audit.findings[:5]),
            todo="this is a defect of the compiler: please report it",
        )
    module = Module((folder / MODULE).read_bytes())
    if (needed := stack_bytes(module)) > STACK_BYTES:
        raise TargetError(
            "the kernels of the model need too much of the stack",
            where=f"target {description.name!r}",
            why=f"threads have {STACK_BYTES} bytes, and calls may take {needed}",
            todo="report this model; fewer tokens may take less",
        )
    write_weights(bare.weights, bare.parameters, bare.weight_bytes, folder)
    verified = _verified(bare, module, room, audit)
    use = memory_use(bare, verified)
    document = package_document(bare, metadata, description, WASM, use, verified)
    _write_texts(bare, document, room, module, folder)
    write_manifest(folder)
    return document


def _room(specs: Sequence[TensorSpec], bare: BareModel) -> int:
    """Bytes that each input, or output, fits into at every shape."""
    most = max(
        spec.elements(function.batch, function.seq_len) * item_size(spec.dtype)
        for spec in specs
        for function in bare.functions
    )
    return -(-most // bare.alignment) * bare.alignment


def _link(bare: BareModel, room: JsonObject, work: Path, tools: Tools) -> None:
    """Write sources and objects, and link them. The page makes the memory, of a fixed size."""
    names = FileNames(bare.interface.prefix)
    reserved = {"weights": bare.weights, "nbytes": bare.weight_bytes, "alignment": bare.alignment}
    module = (_FOLDER / "module.c").read_text(encoding="utf-8")
    module = module.replace("ibert_model.h", names.header)
    sources = {
        names.header: bare.header,
        names.driver: bare.driver_c,
        "module.c": prefixed(module, bare.interface.prefix),
        "weights.s": rendered(_FOLDER / "weights.s.in", **reserved),
    }
    sources |= bare.text.sources if bare.text else {}
    sources[PARALLEL.name] = PARALLEL.read_text(encoding="utf-8")
    for name, text in sources.items():
        (work / name).write_text(text, encoding="utf-8")
    objects = []
    for symbol, content in bare.objects.items():
        objects.append(f"{symbol}.o")
        (work / objects[-1]).write_bytes(content)
    sizes = [f"-DINPUT_BYTES={room['inputs']}", f"-DOUTPUT_BYTES={room['outputs']}"]
    sizes += [f"-DMESSAGE_BYTES={room['message']}", "-DIBERT_WITHOUT_RUNTIME"]
    exported = [*_DATA]
    if bare.text is not None:
        tokens = max(function.seq_len for function in bare.functions)
        sizes += [f"-DTEXT_BYTES={TEXT_BYTES}", f"-DTOKENS={tokens}"]
        sizes += ["-DPAIRS"] if bare.text.report.get("pairs") else []
        exported += _TEXT_DATA
    for name in sources:
        if name == names.header:
            continue
        objects.append(f"{Path(name).stem}.o")
        flags = () if name.endswith(".s") else (*_CFLAGS, *sizes)
        arguments = [*flags, "-c", name, "-o", objects[-1]]
        tools.compile(arguments, work, f"cannot compile {name}")
    linking = [
        *("-nostdlib", "-Wl,--no-entry", "-Wl,--gc-sections", "-Wl,--strip-debug"),
        *("-Wl,--stack-first", f"-Wl,-z,stack-size={STACK_BYTES}"),
        *("-Wl,--import-memory", "-Wl,--shared-memory", f"-Wl,--max-memory={1 << 32}"),
        *(f"-Wl,--export={name}" for name in exported),
        *(*objects, "-o", MODULE),
    ]
    tools.compile(linking, work, "cannot link the module")


def _verified(bare: BareModel, module: Module, room: JsonObject, audit: LibraryAudit) -> Verified:
    variables = len(bare.interface.inputs) * room["inputs"]
    variables += len(bare.interface.outputs) * room["outputs"] + room.get("text", 0)
    return Verified(
        code_bytes=module.section_bytes["code"],
        constant_bytes=module.section_bytes.get("data", 0),
        data_bytes=variables,
        weight_bytes=bare.weight_bytes,
        instructions=audit.instructions,
        helpers=(),
        stack=StackUse(STACK_BYTES, ()),
        frames={},
    )


def _write_texts(
    bare: BareModel, document: JsonObject, room: JsonObject, module: Module, folder: Path
) -> None:
    (folder / DOCUMENT).write_text(json.dumps(document, indent=1), encoding="utf-8")
    shapes = [(function.batch, function.seq_len) for function in bare.functions]
    facts: JsonObject = {
        "module": _module(folder / MODULE, module),
        "weights": _file(folder / WEIGHTS_FILE),
        "inputs": [_tensor(row) for row in document["inputs"]],
        "outputs": [_tensor(row) for row in document["outputs"]],
        "shapes": [{"batch": batch, "seqLen": seq_len} for batch, seq_len in shapes],
        "padTokenId": bare.interface.pad_token_id,
        "room": room,
        "mostThreads": MOST_THREADS,
        "statuses": {str(code): text for code, _, text in STATUSES},
        "kernelFailed": next(code for code, name, _ in STATUSES if name == "IBERT_ERROR_KERNEL"),
    }
    text = f"export const MODEL = {json.dumps(facts, indent=1)};\n"
    (folder / "model.js").write_text(text, encoding="utf-8")
    for name in _SCRIPTS:
        (folder / name).write_bytes((_FOLDER / name).read_bytes())
    name = bare.interface.prefix.replace("_", "-")
    described = {
        "name": name,
        "version": document["versions"]["ibert_tvm"],
        "description": "A transformer in integers, for browsers and Node.js",
        "type": "module",
        "exports": {".": {"types": "./index.d.ts", "default": "./index.js"}},
        "types": "./index.d.ts",
        "files": [*_SCRIPTS, "model.js", MODULE, WEIGHTS_FILE],
        "engines": {"node": ">=18"},
    }
    text = json.dumps(described, indent=2) + "\n"
    (folder / "package.json").write_text(text, encoding="utf-8")
    text = rendered(
        _FOLDER / "README.md.in",
        name=name,
        texts=bare.interface.pad_token_id is not None,
        tokenizer=bare.text is not None,
        pairs=bare.text is not None and bool(bare.text.report.get("pairs")),
        shapes=shapes,
        module_bytes=facts["module"]["bytes"],
        weight_bytes=facts["weights"]["bytes"],
        instructions=document["verified"]["instructions"],
        memory_bytes=module.pages * PAGE_BYTES,
    )
    (folder / "README.md").write_text(text, encoding="utf-8")


def _file(path: Path) -> dict[str, object]:
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    return {"name": path.name, "bytes": len(content), "sha256": digest}


def _module(path: Path, module: Module) -> dict[str, object]:
    """The same, the pages of its memory, and which byte says whether workers share that."""
    marked = b"\3env\6memory\2"
    return {
        **_file(path),
        "pages": module.pages,
        "stackPages": STACK_BYTES // PAGE_BYTES,
        "sharedAt": path.read_bytes().index(marked) + len(marked),
        "shared": SHARED,
        "unshared": UNSHARED,
    }


def _tensor(row: JsonObject) -> dict[str, object]:
    kept = ("name", "dtype", "shape", "scale")
    return {"scale": 1, **{key: row[key] for key in kept if key in row}}
