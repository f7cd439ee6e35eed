"""What bare-metal packages take of flash and RAM, as a table.

    python -m benchmarks.arm.memory                        # a minute a package
    python -m benchmarks.arm.memory --targets cortex-m4 --models bert-tiny:1x32

No emulator and no board is needed: the figures are those of the packages' own documents. They go to
``benchmarks/results/arm-memory.json`` and ``.md``.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_software
from benchmarks.models import Cell
from benchmarks.report import table
from ibert_tvm.targets.processors import PROCESSORS

from .models import SPECS, quantise

__all__ = ["main", "measure"]

ROOT = Path(__file__).resolve().parents[2]
LOG = logging.getLogger("benchmarks.arm")
TARGETS = tuple(one.name for one in PROCESSORS if one.system == "bare-metal" and one.emulator)
_MODELS = "bert-tiny:1x32,bert-tiny:1x128,minilm:1x32,minilm:1x128"
_COLUMNS = ("model", "target", "tokens", "code and tables", "weights", "arena", "stack", "RAM")


def measure(quantised: Path, cell: Cell, target: str) -> dict[str, int]:
    """Compile a package for one shape and read what it takes.

    Parameters
    ----------
    quantised : Path
        ``NAME.ibert``.
    cell : Cell
        The shape.
    target : str
        A bare-metal target.

    Returns
    -------
    dict of str to int
        Bytes: ``code`` (and constants), ``weights``, ``arena``, ``stack``, ``ram`` (all of it).
    """
    import ibert_tvm
    from ibert_tvm.model.artefact import QuantizedModel

    model = QuantizedModel.load(quantised)
    shape = (cell.batch, cell.seq_len)
    compiled = ibert_tvm.compile(model, target=target, shapes=[shape], runtime="none")
    with tempfile.TemporaryDirectory(prefix="memory.") as folder:
        package = compiled.export(Path(folder) / "package")
        memory = json.loads((package / "ibert_model.json").read_text(encoding="utf-8"))["memory"]
    flash, ram = memory["flash"], memory["ram"]
    return {
        "code": flash["code"] + flash["constants"],
        "weights": flash["weights"],
        "arena": ram["arena"],
        "stack": ram["stack"],
        "ram": ram["total"],
    }


def _markdown(result: dict[str, Any]) -> str:
    rows = [
        [
            row["model"],
            f"`{row['target']}`",
            row["shape"].partition("x")[2],
            *(f"{row[key]:,}" for key in ("code", "weights", "arena", "stack", "ram")),
        ]
        for row in result["packages"]
    ]
    software = result["software"]
    modified = " (with local changes)" if software["modified"] else ""
    return "\n".join(
        [
            "# Flash and RAM of bare-metal packages",
            "",
            "Bytes, batch 1, preset `accurate`, embeddings of sentences; inputs and outputs are",
            "the caller's and not counted. Written by `python -m benchmarks.arm.memory`.",
            "",
            *table(_COLUMNS, rows),
            "",
            f"Commit {software['commit']}{modified}; {software['time']}.",
            "",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all packages and write the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.arm.memory",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--targets", default=",".join(TARGETS), help="comma-separated")
    parser.add_argument("--models", default=_MODELS, help="comma-separated NAME:BATCHxLENGTH")
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "bench")
    parser.add_argument(
        "-o", "--output", type=Path, default=ROOT / "benchmarks" / "results" / "arm-memory"
    )
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    packages = []
    for text in options.models.split(","):
        name, _, shape = text.partition(":")
        quantised = quantise(SPECS[name], options.cache)
        for target in options.targets.split(","):
            row = measure(quantised, Cell.parse(shape), target)
            packages.append({"model": name, "target": target, "shape": shape, **row})
            LOG.info("%s %s %s: %d bytes of RAM", name, shape, target, row["ram"])
    result = {"schema": 1, "software": describe_software(), "packages": packages}
    document = options.output.with_suffix(".json")
    document.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    options.output.with_suffix(".md").write_text(_markdown(result), encoding="utf-8")


if __name__ == "__main__":
    main()
