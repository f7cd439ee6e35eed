"""MiniLM in Node.js, on one thread, and beside onnxruntime-web where that is installed.

    python -m benchmarks.web
    python -m benchmarks.web --onnxruntime-web node_modules/onnxruntime-web

Both take turns, run by run. Of onnxruntime-web the INT8 model is that of the peer
``onnxruntime-int8-dynamic``. The result is written after all cells.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
from pathlib import Path
from typing import Any

from .machine import describe_machine, describe_software
from .models import MODELS, Cell, ModelSpec, model_folder
from .peers.ibert import IbertPeer
from .peers.onnx_runtime import OnnxRuntimeInt8Dynamic
from .report import machine_lines, table
from .store import save_with_text

__all__ = ["main"]

ROOT = Path(__file__).resolve().parent.parent
_SCRIPT = Path(__file__).with_name("web.mjs")
_SPEC = MODELS["minilm"]


class _Web(IbertPeer):
    """This compiler, for WebAssembly."""

    name = "ibert-wasm32"

    def build(self, spec: ModelSpec, cell: Cell, source: Path, folder: Path, cache: Path) -> None:
        """Compile what `prepare` quantised."""
        import ibert_tvm
        from ibert_tvm.model.artefact import QuantizedModel

        quantised = QuantizedModel.load(self.quantised(spec, cache))
        compiled = ibert_tvm.compile(quantised, target="wasm32", shapes=self.shapes(cell))
        compiled.export(folder / "package")


def main(arguments: list[str] | None = None) -> int:
    """Measure, and write the result.

    Returns
    -------
    int
        Exit code: 0.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", default="1x32,1x128", help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=100, help="(default: %(default)s)")
    parser.add_argument("--onnxruntime-web", type=Path, help="folder of its npm package")
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "bench")
    parser.add_argument(
        "-o", "--output", type=Path, default=ROOT / "benchmarks" / "results" / "web"
    )
    options = parser.parse_args(arguments)
    runtime = options.onnxruntime_web and options.onnxruntime_web / "dist" / "ort.node.min.mjs"
    cells = [Cell(*map(int, text.split("x"))) for text in options.cells.split(",")]
    settings = {
        "rounds": options.rounds,
        "runtime": str(runtime.resolve()) if runtime else "",
        "cells": [_built(cell, options.cache, bool(runtime)) for cell in cells],
    }
    result: dict[str, Any] = {"machine": describe_machine(), "software": describe_software()}
    command = ["node", str(_SCRIPT), json.dumps(settings)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result |= json.loads(done.stdout)
    if runtime:
        described = json.loads((options.onnxruntime_web / "package.json").read_text())
        result["onnxruntime-web"] = described["version"]
    for path in save_with_text(result, _text(result, settings["cells"]), options.output):
        print(path)
    return 0


def _built(cell: Cell, cache: Path, peer: bool) -> dict[str, Any]:
    """Where the artefacts of a cell are; made unless they are there."""
    source, web, onnx = model_folder(_SPEC, cache), _Web(), OnnxRuntimeInt8Dynamic()
    web.prepare(_SPEC, source, cache)
    folder = cache / "web" / str(cell)
    folder.mkdir(parents=True, exist_ok=True)
    web.build(_SPEC, cell, source, folder, cache)
    model = folder / "model.onnx"
    if peer and not model.exists():
        onnx.build(_SPEC, cell, source, folder, cache)
    paths = {"package": str((folder / "package").resolve()), "onnx": str(model.resolve())}
    return {"batch": cell.batch, "seqLen": cell.seq_len, **paths}


def _text(result: dict[str, Any], cells: list[dict[str, Any]]) -> str:
    rows = []
    for row, cell in zip(result["rows"], cells, strict=True):
        for name, values in row["milliseconds"].items():
            code = Path(cell["package"], "model.wasm").stat().st_size if name == "ibert_tvm" else 0
            shown = f"{code / 1024:.0f} KiB" if code else ""
            times = (f"{min(values):.2f}", f"{statistics.median(values):.2f}")
            rows.append((f"{row['batch']}x{row['seqLen']}", name, *times, shown))
    peer = result.get("onnxruntime-web")
    return "\n".join(
        [
            "# MiniLM in Node.js, one thread",
            "",
            *machine_lines(result),
            f"- Node.js {result['node']}" + (f"; onnxruntime-web {peer}, INT8" if peer else ""),
            "",
            *table(("cell", "runtime", "minimum, ms", "median, ms", "model.wasm"), rows),
            "",
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main())
