"""`ibert inspect`: what an artefact holds, without running it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..common.errors import UsageError
from ..common.files import marked, write_file
from ..common.strict_json import JsonDict, JsonObject
from ..model.model_info import ModelInfo
from .bare_metal import inspect_package
from .inspect_model import after_rows, inspect_model, model_row, tokenizer_rows
from .options import HeadOptions
from .result import CommandResult
from .tables import Table

_BILL = marked("a bill of materials", b'"bomFormat": "CycloneDX"')
_RUNTIMES = {"tvm": "TVM", "none": "none: plain C functions (docs/c-api.md)"}


def command(
    path: Path,
    *,
    all: bool = False,
    source: HeadOptions,
    sbom: Path | None = None,
    verbose: bool = False,
) -> CommandResult:
    """Show what a quantised model or a library holds, or what importing a model would match.

    Parameters
    ----------
    path
        A NAME.ibert folder, a compiled library or package, or a model to import: a Hugging Face
        folder, an ONNX file, an exported torch program (.pt2).
    all
        Show every value, parameter and kernel; -v adds every node of a model to import.
    sbom
        Write a bill of materials (CycloneDX) of an artefact to this file.

    Examples
    --------
    ibert inspect minilm.so
    ibert inspect minilm.so --sbom minilm.cdx.json
    ibert inspect model.onnx
    """
    from ibert_tvm.targets.bare_metal import is_package

    from ..frontend.sources import is_source

    if not path.exists():
        raise UsageError(
            f"there is nothing at {path}",
            todo="give a model, a NAME.ibert folder or a library of `ibert compile`",
        )
    if is_source(path):
        if sbom is not None:
            raise UsageError(
                f"there is no bill of materials of {path}",
                why="it is no artefact of ibert_tvm, but a model to import",
                todo="give a NAME.ibert folder, a library or a package",
            )
        return inspect_model(path, source, all, verbose)
    package = path.is_dir() and is_package(path)
    result = inspect_package(path) if package else _inspect_artefact(path, all or verbose)
    if sbom is None:
        return result
    from ..verification.materials import bill_of_materials

    with write_file(sbom, _BILL) as temporary:
        text = json.dumps(bill_of_materials(path, result.document), indent=1) + "\n"
        temporary.write_text(text, encoding="utf-8")
    return replace(result, shown=[*result.shown, f"wrote {sbom}"])


def _inspect_artefact(path: Path, every: bool) -> CommandResult:
    document = document_of(path)
    shown: list[str | Table] = [Table((), _lines(document, every))]
    if every and document.get("device_code", {}).get("kernels"):
        shown += ["", _kernel_table(document["device_code"])]
    return CommandResult(document, shown)


def document_of(path: Path) -> JsonDict:
    """What a quantised model or a library holds."""
    from ..model.artefact import QuantizedModel
    from ..runtime.library_file import read_metadata

    if path.is_dir():
        return QuantizedModel.load(path).document(path)
    return read_metadata(path).document()


def _lines(document: JsonDict, every: bool) -> list[tuple[str, str]]:
    """Label and text of every line of the human form."""
    from ..compiler.statements import device_statements, target_words
    from ..quantization.source_scales import artefact_lines

    info = document["info"]
    lines = [
        (document["kind"], document["path"]),
        model_row(info),
        *tokenizer_rows(info),
        ("source", f"{info.get('source', '')} (sha256 {info.get('source_sha256', '')[:16]})"),
        (
            "size",
            f"{document['bytes'] / 1e6:.1f} MB, of which weights "
            f"{document['weight_bytes'] / 1e6:.1f} MB in {len(document['parameters'])} "
            "arrays",
        ),
    ]
    if document["kind"] == "compiled library":
        target = document["target"]
        lines += [
            ("digest", document["digest"]),
            ("target", target_words(target, document["required_cpu_features"])),
            ("runtime", _RUNTIMES.get(document["runtime"], document["runtime"])),
            ("runs on", _device_line(document)),
            ("needs", ", ".join(document["required_cpu_features"]) or "nothing special"),
            (
                "shapes",
                ", ".join(f"{f['batch']}x{f['seq_len']}" for f in document["functions"])
                + " (batch x tokens)",
            ),
            ("inputs", ", ".join(i["name"] for i in document["inputs"])),
        ]
        lines += [("gpu", line) for line in device_statements(document.get("device_code", {}))]
        lines += [
            ("arena", f"{f['batch']}x{f['seq_len']}: {f['arena_bytes']} bytes, {f['symbol']}")
            for f in document["functions"]
            if "symbol" in f
        ]
        lines += [
            (
                "output",
                f"{o['name']}: {o['dtype']} [{', '.join(map(str, o['shape']))}], "
                f"scale {o['scale']:.6g}",
            )
            for o in document["outputs"]
        ]
        lines += [
            ("tokenizer", ", ".join(document["tokenizer"]) or "none"),
            ("made with", ", ".join(f"{k} {v}" for k, v in sorted(document["versions"].items()))),
        ]
    else:
        lines += [
            ("preset", str(document.get("preset", ""))),
            ("inputs", ", ".join(info["inputs"])),
            ("outputs", ", ".join(o["name"] for o in info["outputs"])),
            ("calibration", _flat(document.get("calibration", {})) or "none"),
        ]
        if "source_scales" in document:
            lines += artefact_lines(document["source_scales"], every)
    lines += after_rows(ModelInfo.from_json(info))
    if every:
        lines += [
            ("parameter", f"{p['name']}: {p['dtype']} {p['shape']}") for p in document["parameters"]
        ]
    return lines


def _device_line(document: JsonDict) -> str:
    """What kernels run on."""
    if document["device"] == "cpu":
        return "the processor"
    return f"an NVIDIA GPU with code for {', '.join(document['architectures'])}"


def _flat(summary: Any) -> str:
    if not isinstance(summary, dict):
        return str(summary)
    return ", ".join(
        f"{key} {value}" for key, value in summary.items() if isinstance(value, (str, int, float))
    )


def _kernel_table(cuda: JsonObject) -> Table:
    """Make a table of device kernels; numbers of several architectures stand side by side.

    Parameters
    ----------
    cuda : mapping
        As for `device_statements`.
    """
    rows: dict[str, list[JsonObject]] = {}
    for kernel in cuda["kernels"]:
        rows.setdefault(kernel["name"], []).append(kernel)
    headers = (
        *("kind", "layer", "blocks", "threads", "shared bytes", "registers", "instructions"),
        *("tensor core", "local memory"),
    )
    return Table(headers, [_row(name, kernels, cuda) for name, kernels in rows.items()])


def _row(name: str, kernels: Sequence[JsonObject], cuda: JsonObject) -> tuple[str, ...]:
    launch = cuda.get("launches", {}).get(name)
    dynamic = launch["dynamic_shared_bytes"] if launch else 0
    return (
        kernels[0]["kind"] or name,
        kernels[0]["layer"],
        _extents(launch["blocks"]) if launch else "",
        _extents(launch["threads"]) if launch else "",
        _side_by_side(kernel["shared_bytes"] + dynamic for kernel in kernels),
        *(
            _side_by_side(kernel[key] for kernel in kernels)
            for key in ("registers", "instructions", "matrix", "local")
        ),
    )


def _extents(sizes: Sequence[int]) -> str:
    """Sizes along x, y and z, without what is 1 at the end."""
    used = list(sizes)
    while len(used) > 1 and used[-1] == 1:
        used.pop()
    return " x ".join(map(str, used))


def _side_by_side(values: Any) -> str:
    """Values of the architectures; one where all are equal."""
    texts = [str(value) for value in values]
    return texts[0] if len(set(texts)) == 1 else " / ".join(texts)
