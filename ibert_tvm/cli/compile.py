"""`ibert compile`: a quantised model to one shared library, or to a package to link."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from ..common.strict_json import JsonDict
from .bare_metal import Microcontroller, memory_rows, package_facts, package_options
from .options import Shapes, TargetOption
from .result import CommandResult

if TYPE_CHECKING:
    from ..model.artefact import QuantizedModel
    from ..progress import Line

# About what each takes.
_IMPORT_SHARES = {"importing the model": 8, "calibrating": 30}
_SHARES = {"loading": 1, "lower": 2, "schedule": 8, "build": 8, "link": 2}
_FORMS = {
    "objects": "a static library",
    "c": "C sources",
    "c-arrays": "C sources",
    "wasm": "a package for browsers and Node.js",
}


def command(
    model: Path,
    *,
    output: Path,
    target: TargetOption = "host",
    shapes: Shapes,
    runtime: str | None = None,
    microcontroller: Microcontroller,
    require_load: bool = False,
    prefix: str | None = None,
    tokenizer: bool = False,
    database: Path | None = None,
    dump_ir: Path | None = None,
) -> CommandResult:
    """Compile a model to a shared library, or to a package for a microcontroller or browsers.

    Of a model folder this is `ibert quantize` by default, then `ibert compile`.
    Quantise first to choose texts, head and preset, or for several targets.

    Parameters
    ----------
    model
        A NAME.ibert folder from `ibert quantize`; or a Hugging Face folder or an ONNX file, which
        is quantised on the way as `ibert quantize` does by default.
    output
        The library to write.
    runtime
        What runs it: none (plain C functions that need nothing else), or tvm (TVM's runtime).
        [default: none; tvm for a GPU]

    Other Parameters
    ----------------
    require_load
        Fail where the library of another machine cannot be loaded under its emulator.
    prefix
        Without runtime: what C names and files begin with. [default: from the name of the
        NAME.ibert folder]
    tokenizer
        Without runtime: add the model's tokenizer in C, for text in and vectors out.
    database
        Use what `ibert tune` measured in this folder. [default: measurements that come with the
        package, if there are any of the target]
    dump_ir
        Write the module after every phase to this folder.

    Examples
    --------
    ibert compile minilm.ibert -o minilm.so --batch 1,8 --seq-len 32,128
    ibert compile minilm.ibert -o board.so --target armv7-neon --seq-len 32
    ibert compile minilm.ibert -o firmware --target cortex-m4 --seq-len 32
    ibert compile minilm.ibert -o package --target wasm32 --seq-len 32,128
    """
    from ..frontend.sources import is_source
    from ..runtime.tvm_runtime import import_tvm

    float_model = is_source(model)
    if not float_model:
        import_tvm()
    from ibert_tvm.targets import check_runtime, get_target
    from ibert_tvm.targets.aot.c_text import prefix_of
    from ibert_tvm.targets.aot.library import HEADER, header_path
    from ibert_tvm.targets.bare_metal import PACKAGE
    from ibert_tvm.targets.cuda.toolchain import check_toolchain
    from ibert_tvm.targets.emulation import emulator_command
    from ibert_tvm.targets.library_check import sysroot_of
    from ibert_tvm.targets.linking import LIBRARY
    from ibert_tvm.targets.toolchain import find_linker

    from ..common.files import check_writable
    from ..compiler import compile as compile_model
    from ..compiler import statements
    from ..compiler.driver import DUMP, check_tokenizer, checked_prefix
    from ..compiler.layer_widths import width_statements
    from ..model.artefact import read_info
    from ..progress import progress

    description = get_target(target)
    # What a float model has positions for, importing will show.
    pairs = [] if float_model else shapes.of(read_info(model), model)
    runtime = check_runtime(description, runtime)
    if prefix is None and runtime == "none":
        prefix = prefix_of(model.resolve().stem)
    checked_prefix(prefix, runtime)
    check_tokenizer(tokenizer, runtime)
    options = package_options(description, microcontroller)
    fetch_buffer = microcontroller.fetch_bytes
    check_writable(output, LIBRARY if options is None else PACKAGE)
    if runtime == "none" and options is None:
        check_writable(header_path(output), HEADER)
    if dump_ir is not None:
        check_writable(dump_ir, DUMP)
    find_linker(description)  # before minutes are spent on what it shall link
    check_toolchain(description)
    if require_load and description.system == "linux" and description.emulator is not None:
        emulator_command(description, sysroot_of(description))

    started = time.perf_counter()
    on_the_way: JsonDict = {}
    with progress(_IMPORT_SHARES | _SHARES if float_model else _SHARES) as line:
        from ..model.artefact import QuantizedModel

        if float_model:
            pairs, quantized, on_the_way = _quantized(model, shapes, line)
        else:
            quantized = QuantizedModel.load(model)
        compiled = compile_model(
            quantized,
            target,
            pairs,
            dump_ir=dump_ir,
            progress=lambda phase: line.step(phase, f"{phase} for {target}"),
            runtime=runtime,
            database=database,
            prefix=prefix,
            tokenizer=tokenizer,
            external_weights=microcontroller.external_weights or "",
            fetch_buffer=fetch_buffer,
            emit="objects" if options is None else options.kernels,
        )
        line.step("link")
        _, check = compiled.export_checked(output, options, require_load)
    seconds = round(time.perf_counter() - started, 3)
    document: JsonDict = {
        "output": str(output),
        "target": target,
        "runtime": compiled.runtime,
        "shapes": [{"batch": b, "seq_len": s} for b, s in pairs],
        "seconds": seconds,
        "report": dict(compiled.report),
        **on_the_way,
    }
    report = compiled.report
    if options is not None:
        document |= package_facts(output)
        facts = [f"{label}: {text}" for label, text in memory_rows(document)]
    else:
        document |= {
            "bytes": output.stat().st_size,
            "load_check": None if check is None else check.to_json(),
        }
        facts = [
            statements.integer_only_statement(report),
            *statements.device_statements(report.get("cuda", {})),
        ]
        if "tuning" in report:
            facts.append(statements.tuning_statement(report["tuning"]))
        if compiled.bare is not None:
            header = header_path(output)
            document |= {"header": str(header), "prefix": prefix}
            facts += [
                statements.memory_statement(compiled.bare.report),
                f"C interface: {header}, {prefix}_init and others",
            ]
        if check is not None:
            facts.append(f"library {check}")
    if "text" in report:
        facts.append(statements.tokenizer_statement(report["text"]))

    listed = ", ".join(f"{b}x{s}" for b, s in pairs)
    metadata = compiled.metadata
    machine = statements.target_words(metadata["target"], metadata["required_cpu_features"])
    form = "" if options is None else f" as {_FORMS[options.emit]}"
    lines = [
        *statements.quantization_lines(on_the_way),
        f"wrote {output}: {document['bytes'] / 1e6:.1f} MB{form} for {machine}, shapes {listed} "
        f"(batch x tokens), in {seconds:.1f} s",
        *facts,
        *width_statements(report),
    ]
    return CommandResult(document, lines)


def _quantized(
    model: Path, shapes: Shapes, line: Line
) -> tuple[list[tuple[int, int]], QuantizedModel, JsonDict]:
    """Import and quantise a float model: the shapes to compile it for, it, and what to say."""
    from ..frontend import load
    from ..quantization.post_training import default_texts, quantize_by_default

    started = time.perf_counter()
    source = load(model)
    pairs = shapes.of(source.info, model)
    line.step("calibrating")
    quantized = quantize_by_default(source, line.advance)
    summary = {
        "preset": quantized.preset,
        "head": quantized.info.head,
        "calibration_texts": len(default_texts(source) or ()),
        "notes": list(quantized.info.notes),
        "seconds": round(time.perf_counter() - started, 3),
    }
    return pairs, quantized, {"quantized": summary}
