"""The tables of the I-BERT paper (Kim et al., ICML 2021) again.

    python -m benchmarks.paper --table gelu       # errors of approximations of GELU
    python -m benchmarks.paper --table exp        # and of the exponential
    python -m benchmarks.paper --table accuracy   # float and integers on real tasks
    python -m benchmarks.paper --table ablation   # float models with other GELUs
    python -m benchmarks.paper --table latency    # the sixteen cells, from measured results

`accuracy` and `ablation` need the tasks and their models:

    python -m benchmarks.tasks.build --out build/tasks
    python -m benchmarks.tasks.finetune --data build/tasks --out build/tasks/models

`latency` reads what `python -m benchmarks.cpu` and `python -m benchmarks.cuda` measured. With
``--measure`` it measures the cells on this machine first: on a GPU for ``cuda.json``, otherwise
beside float runtimes alone, with all cores, for a column of its own (``paper-latency-cpu.json``).

Rows of `accuracy` and `ablation` of tasks that are not asked for stay as they were measured before.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

from ..machine import describe_machine, describe_software
from ..report import table
from ..tasks.finetune import TRAINED
from .drawing import draw_differences, draw_errors
from .functions import GELUS, exp_errors, gelu_errors
from .latency import CELLS, PAPER, speedups

__all__ = ["main"]

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
_CELLS_OF_CPU = "paper-latency-cpu"
# L2 and L-infinity on [-4, 4] in the paper's table 1.
_PRINTED = {
    "x sigmoid(1.702 x)": (0.012, 0.020),
    "h-GELU": (0.031, 0.068),
    "i-GELU": (0.0082, 0.018),
}


def _errors(name: str, options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    found = gelu_errors() if name == "gelu" else exp_errors()
    rows = []
    for label, (l2, largest) in found.items():
        printed = _PRINTED.get(label) if name == "gelu" else None
        cells = [label, f"{l2:.2e}", f"{largest:.2e}"]
        rows.append(cells + (["-", "-"] if printed is None else [str(v) for v in printed]))
    draw_errors(name, options.charts / f"paper-{name}")
    head = ["", "L2", "L-infinity", "paper: L2", "paper: L-infinity"]
    width = 5 if name == "gelu" else 3
    lines = table(head[:width], [row[:width] for row in rows])
    document = {label: {"l2": l2, "largest": top} for label, (l2, top) in found.items()}
    return document, lines


def _accuracy(options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    from .quality import accuracy

    found = _with_others(
        "accuracy",
        [accuracy(name, options.data, options.models) for name in options.tasks],
        options,
    )
    rows, drawn = [], {}
    for row in found:
        for place, metric in enumerate(row["quantised"]):
            cells = [row["task"], str(row["samples"]), metric["name"], f"{metric['float']:.2f}"]
            cells.append(_with_interval(metric))
            tuned = row.get("finetuned")
            cells.append("-" if tuned is None else _with_interval(tuned[place]))
            rows.append(cells)
            if metric["interval"] is not None:
                name = f"{row['task']}, {metric['name']}"
                drawn[name] = (metric["difference"], tuple(metric["interval"]))
    draw_differences(drawn, "quantised less float, points", options.charts / "paper-accuracy")
    head = ["task", "samples", "metric", "float", "quantised", "integer fine-tuned"]
    return {"rows": found}, table(head, rows)


def _with_others(
    name: str, measured: list[dict[str, Any]], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Rows of a table: those of tasks that were measured before stay, each with its commit."""
    own = {"commit": describe_software()["commit"], "training": options.training}
    rows = {row["task"]: {**row, **own} for row in measured}
    path = options.output / f"paper-{name}.json"
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        for row in before["table"]["rows"]:
            rows.setdefault(row["task"], row)
    return [rows[task] for task in TRAINED if task in rows]


def _with_interval(metric: dict[str, Any]) -> str:
    low, high = metric["interval"]
    return f"{metric['integer']:.2f} ({metric['difference']:+.2f}: {low:+.2f} to {high:+.2f})"


def _ablation(options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    from .quality import ablation

    found = _with_others(
        "ablation",
        [ablation(name, options.data, options.models, GELUS) for name in options.tasks],
        options,
    )
    rows, drawn = [], {}
    for row in found:
        cells = [row["task"], str(row["samples"]), f"{row['float']:.2f}"]
        for label, entry in row["approximations"].items():
            low, high = entry["interval"]
            cells.append(f"{entry['difference']:+.2f} ({low:+.2f} to {high:+.2f})")
            drawn[f"{row['task']}, {label}"] = (entry["difference"], (low, high))
        rows.append(cells)
    draw_differences(drawn, "less float GELU, points", options.charts / "paper-ablation")
    head = ["task", "samples", "float GELU", *GELUS]
    return {"rows": found}, table(head, rows)


def _latency(options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    if options.measure:
        _measure()
    columns = {
        "GPU": speedups(RESULTS / "cuda.json", "pytorch-fp32"),
        "CPU": speedups(RESULTS / "cpu.json", "fp32"),
        "CPU, all cells": speedups(RESULTS / f"{_CELLS_OF_CPU}.json", "fp32"),
    }
    columns = {name: times for name, times in columns.items() if times}
    printed = {
        (model, f"{batch}x{length}"): value
        for (model, length), values in PAPER.items()
        for batch, value in zip((1, 2, 4, 8), values, strict=True)
    }
    rows = [
        [
            f"{model} {cell}",
            f"{printed[model, cell]:.2f}",
            *(f"{t[model, cell]:.2f}" if (model, cell) in t else "-" for t in columns.values()),
        ]
        for model, cell in CELLS
    ]
    document = {
        f"{model} {cell}": {
            "paper": printed[model, cell],
            **{name: times.get((model, cell)) for name, times in columns.items()},
        }
        for model, cell in CELLS
    }
    return document, table(["batch x tokens", "paper, T4", *columns], rows)


def _measure() -> None:
    """Measure the sixteen cells on this machine: on its GPU where it has one."""
    import shutil

    models = ",".join(dict.fromkeys(model for model, _ in CELLS))
    cells = ",".join(dict.fromkeys(cell for _, cell in CELLS))
    arguments = ["--models", models, "--cells", cells, "--resume"]
    if shutil.which("nvidia-smi"):
        from ..cuda.__main__ import main as measure
    else:
        from ..cpu import main as measure
        from ..peers import PEERS

        peers = ["ibert", *(name for name in PEERS if name.endswith("fp32"))]
        arguments += ["--threads", str(len(os.sched_getaffinity(0))), "--no-memory"]
        arguments += ["--peers", ",".join(peers)]
        arguments += ["--output", str(RESULTS / _CELLS_OF_CPU)]
    if measure(arguments):
        raise SystemExit("the cells could not be measured")


def _notes(document: dict[str, Any]) -> list[str]:
    """How the models of a table's tasks were trained, and with what they were measured."""
    said = [
        f"- {row['task']}, measured at {row['commit'][:12]}: {row['training'] or 'as by default'}."
        for row in document.get("rows", ())
    ]
    return [*said, ""] if said else []


TABLES = {
    "gelu": lambda options: _errors("gelu", options),
    "exp": lambda options: _errors("exp", options),
    "accuracy": _accuracy,
    "ablation": _ablation,
    "latency": _latency,
}


def main(arguments: list[str] | None = None) -> int:
    """Make a table; returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--table", choices=TABLES, required=True)
    parser.add_argument("--data", type=Path, default=ROOT / "build" / "tasks")
    parser.add_argument("--models", type=Path, default=ROOT / "build" / "tasks" / "models")
    parser.add_argument("--tasks", default="sections,names,code-words", help="comma-separated")
    parser.add_argument("--training", default="", help="how the models of these tasks were trained")
    parser.add_argument("--measure", action="store_true", help="latency: measure first")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of .json and .md")
    parser.add_argument("--charts", type=Path, default=ROOT / "docs" / "charts")
    options = parser.parse_args(arguments)
    options.tasks = options.tasks.split(",")
    for folder in (options.output, options.charts):
        folder.mkdir(parents=True, exist_ok=True)
    document, lines = TABLES[options.table](options)
    where = {"machine": describe_machine()["processor"], "commit": describe_software()["commit"]}
    path = options.output / f"paper-{options.table}.json"
    path.write_text(json.dumps({**where, "table": document}, indent=1) + "\n", encoding="utf-8")
    text = "\n".join([f"# {options.table}, as in the paper", "", *_notes(document), *lines]) + "\n"
    path.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
