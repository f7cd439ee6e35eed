"""MiniLM in Node.js and Chromium, beside onnxruntime-web where that is installed.

    python -m benchmarks.web
    python -m benchmarks.web --chromium chromium --onnxruntime-web node_modules/onnxruntime-web

On one thread both take turns, run by run; on several, process by process: idle threads of
onnxruntime-web keep processors busy. Of onnxruntime-web the INT8 model is that of the peer
``onnxruntime-int8-dynamic``. The result is written after all cells.
"""

from __future__ import annotations

import argparse
import itertools
import json
import queue
import statistics
import subprocess
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
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
_FILES = ("package", "onnx")
_PATIENCE = 600  # seconds
_OURS, _THEIRS = "ibert_tvm", "onnxruntime-web"
_TURNS = 2


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
    parser.add_argument("--threads", default="1,2", help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=100, help="(default: %(default)s)")
    parser.add_argument("--onnxruntime-web", type=Path, help="folder of its npm package")
    parser.add_argument("--chromium", help="command of a browser to measure in as well")
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "bench")
    parser.add_argument(
        "-o", "--output", type=Path, default=ROOT / "benchmarks" / "results" / "web"
    )
    options = parser.parse_args(arguments)
    peer = options.onnxruntime_web and (options.onnxruntime_web / "dist").resolve()
    cells = [Cell(*map(int, text.split("x"))) for text in options.cells.split(",")]
    built = [_built(cell, options.cache, bool(peer)) for cell in cells]
    result: dict[str, Any] = {"machine": describe_machine(), "software": describe_software()}
    engines: dict[str, Callable[..., dict[str, Any]]] = {"Node.js": _in_node}
    if options.chromium:
        engines["Chromium"] = partial(_in_chromium, options.chromium)
    counts = [int(text) for text in options.threads.split(",")]
    result["engines"] = {
        name: _measured(partial(run, built, peer), counts, options.rounds, peer is not None)
        for name, run in engines.items()
    }
    if peer:
        described = json.loads((options.onnxruntime_web / "package.json").read_text())
        result["onnxruntime-web"] = described["version"]
    for path in save_with_text(result, _text(result, built), options.output):
        print(path)
    return 0


def _measured(
    run: Callable[[dict[str, Any]], dict[str, Any]], counts: list[int], rounds: int, peer: bool
) -> dict[str, Any]:
    """Rows of an engine, whose processes `run` starts with further settings."""
    names = [_OURS, _THEIRS] if peer else [_OURS]
    found: dict[str, Any] = {"rows": []}
    for threads in counts:
        several = threads > 1
        turns = [[name] for _ in range(_TURNS) for name in names] if several else [names]
        each = rounds // _TURNS if several else rounds
        rows: list[dict[str, Any]] = []
        for measured in turns:
            said = run({"rounds": each, "threads": threads, "measured": measured})
            found["version"] = said["version"]
            rows = rows or [{**row, "milliseconds": {}} for row in said["rows"]]
            for row, new in zip(rows, said["rows"], strict=True):
                for name, values in new["milliseconds"].items():
                    row["milliseconds"].setdefault(name, []).extend(values)
        found["rows"] += rows
    return found


def _in_node(
    cells: list[dict[str, Any]], peer: Path | None, further: dict[str, Any]
) -> dict[str, Any]:
    """What the script says in Node.js."""
    files = [{**cell, **{name: cell[name].as_uri() for name in _FILES}} for cell in cells]
    runtime = (peer / "ort.node.min.mjs").as_uri() if peer else ""
    settings = {**further, "runtime": runtime, "cells": files}
    command = ["node", str(_SCRIPT), json.dumps(settings)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout))


class _Site(SimpleHTTPRequestHandler):
    """A folder, as a page whose clock counts microseconds; takes the result."""

    def __init__(self, *given: Any, results: queue.Queue[bytes], **named: Any) -> None:
        self.results = results
        super().__init__(*given, **named)

    def end_headers(self) -> None:
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()

    def do_POST(self) -> None:
        self.results.put(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the result is what counts."""


def _in_chromium(
    browser: str, cells: list[dict[str, Any]], peer: Path | None, further: dict[str, Any]
) -> dict[str, Any]:
    """What the script says in a page."""
    results: queue.Queue[bytes] = queue.Queue()
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder, "site")
        site.mkdir()
        (site / "web.mjs").symlink_to(_SCRIPT)
        (site / "index.html").write_text('<script type="module" src="web.mjs"></script>')
        served = []
        for number, cell in enumerate(cells):
            names = {name: f"./{number}-{name}" for name in _FILES}
            for name, link in names.items():
                (site / link).symlink_to(cell[name])
            served.append({**cell, **names})
        if peer:
            (site / "peer").symlink_to(peer)
        runtime = "./peer/ort.wasm.min.mjs" if peer else ""
        settings = {**further, "runtime": runtime, "cells": served}
        (site / "settings.json").write_text(json.dumps(settings))
        handler = partial(_Site, directory=str(site), results=results)
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        flags += ["--no-first-run", f"--user-data-dir={folder}/profile"]
        address = f"http://127.0.0.1:{server.server_port}/index.html"
        with subprocess.Popen(
            [browser, *flags, "--remote-debugging-port=0", address], stderr=subprocess.DEVNULL
        ) as process:
            try:
                return dict(json.loads(results.get(timeout=_PATIENCE)))
            finally:
                process.terminate()
                process.wait()
                server.shutdown()
                server.server_close()


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
    paths = {"package": (folder / "package").resolve(), "onnx": model.resolve()}
    return {"batch": cell.batch, "seqLen": cell.seq_len, **paths}


def _text(result: dict[str, Any], cells: list[dict[str, Any]]) -> str:
    rows = []
    for engine, measured in result["engines"].items():
        for row, cell in zip(measured["rows"], itertools.cycle(cells), strict=False):
            for name, values in row["milliseconds"].items():
                ours = name == _OURS
                code = Path(cell["package"], "model.wasm").stat().st_size if ours else 0
                shown = f"{code / 1024:.0f} KiB" if code else ""
                times = (f"{min(values):.2f}", f"{statistics.median(values):.2f}")
                sizes = f"{row['batch']}x{row['seqLen']}"
                rows.append((engine, sizes, str(row["threads"]), name, *times, shown))
    engines = [f"{name} {one['version']}" for name, one in result["engines"].items()]
    if peer := result.get("onnxruntime-web"):
        engines.append(f"onnxruntime-web {peer}, INT8")
    head = ("engine", "cell", "threads", "runtime", "minimum, ms", "median, ms", "model.wasm")
    return "\n".join(
        [
            "# MiniLM in Node.js and browsers",
            "",
            *machine_lines(result),
            f"- {'; '.join(engines)}",
            "",
            *table(head, rows),
            "",
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main())
