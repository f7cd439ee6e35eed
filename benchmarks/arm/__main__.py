"""Count executed instructions of kernels and whole models on every ARM target.

    python -m benchmarks.arm                               # everything
    python -m benchmarks.arm --targets cortex-m4 --kernels linear --models "" --cmsis-nn CMSIS-NN
    python -m benchmarks.arm --models bert-tiny:1x32,minilm:1x128

Every result is compared with the integer specification first. The counts go to
``benchmarks/results/arm.json`` and ``.md``; they are instructions, not cycles.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine, describe_software
from benchmarks.models import Cell
from ibert_tvm.targets import TargetError, get_target
from ibert_tvm.targets.processors import PROCESSORS

from .cmsis_nn import count_linear
from .errors import CountingError
from .kernels import CASES, Case
from .models import SPECS, count_model, quantise
from .report import goals, write_report
from .running import count_kernel

__all__ = ["main"]

ROOT = Path(__file__).resolve().parents[2]
LOG = logging.getLogger("benchmarks.arm")
# Of files that QEMU runs.
TARGETS = tuple(one.name for one in PROCESSORS if one.emulator and one.elf_machine)
# Of those with the same matrix product, the first: the others run its code, or nearly.
_COUNTED = {(one.machine.name, one.dot): one.name for one in reversed(PROCESSORS)}
_MODELS = "bert-tiny:1x32,minilm:1x32,minilm:1x128"
_PROGRAMS = (
    program
    for one in PROCESSORS
    if one.emulator and one.toolchain
    for program in (one.emulator.program, one.toolchain.compiler)
)
_TOOLS = (*dict.fromkeys(_PROGRAMS), "llvm-objdump")


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.arm",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--targets",
        default=",".join(name for name in TARGETS if name in _COUNTED.values()),
        help="comma-separated (default: %(default)s)",
    )
    parser.add_argument("--kernels", default="", help="only kernels whose name has this text")
    parser.add_argument(
        "--models",
        default=_MODELS,
        help="comma-separated NAME:BATCHxLENGTH, '' for none (default: %(default)s)",
    )
    parser.add_argument(
        "--quantised",
        action="append",
        default=[],
        metavar="NAME=PATH.ibert",
        help="a model quantised before, instead of one in --cache",
    )
    parser.add_argument(
        "--cmsis-nn",
        type=Path,
        metavar="CHECKOUT",
        help="count the kernels of this CMSIS-NN instead of taking what they took",
    )
    parser.add_argument("--no-kernels", action="store_true", help="whole models only")
    parser.add_argument(
        "--cache", type=Path, default=ROOT / "build" / "bench", help="folder for artefacts"
    )
    parser.add_argument(
        "-o", "--output", type=Path, default=ROOT / "benchmarks" / "results" / "arm"
    )
    options = parser.parse_args(arguments)
    options.targets = [name for name in options.targets.split(",") if name]
    unknown = sorted(set(options.targets) - set(TARGETS))
    if unknown:
        parser.error(f"unknown targets {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    models = []
    for text in filter(None, options.models.split(",")):
        name, _, cell = text.partition(":")
        if name not in SPECS:
            parser.error(f"unknown model {name!r}; there are {', '.join(SPECS)}")
        try:
            models.append((name, Cell.parse(cell)))
        except ValueError as error:
            parser.error(str(error))
    options.models = models
    options.quantised = dict(text.split("=", 1) for text in options.quantised if "=" in text)
    return options


def _versions() -> dict[str, str]:
    found = {}
    for tool in _TOOLS:
        path = shutil.which(tool)
        if path is None:
            continue
        done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        lines = [line.strip() for line in done.stdout.splitlines() if "version" in line.lower()]
        found[tool] = (lines or done.stdout.splitlines() or ["?"])[0]
    return found


def _kernel_row(case: Case, name: str, cmsis_nn: Path | None) -> dict[str, Any]:
    target = get_target(name)
    bar = case.bars.get(name)
    row: dict[str, Any] = {
        "kernel": case.name,
        "target": name,
        "note": case.note,
        "bar": None if bar is None else dict(bar.__dict__),
    }
    started = time.perf_counter()
    try:
        if cmsis_nn and case.sizes and bar is not None and bar.peer:
            counted = count_linear(cmsis_nn, bar.peer, case.sizes, target)
            row["bar"] = replace(bar, instructions=counted).__dict__
        kernel = case.build(target)
        counts = count_kernel(kernel, target)
    except (CountingError, TargetError, AssertionError) as error:
        return {**row, "failed": str(error).replace("\n", "; ")}
    document = counts.to_json()
    top = dict(list(document["by_mnemonic"].items())[:20])
    return {
        **row,
        "instructions": counts.instructions,
        "floating_point": counts.floating_point,
        "unknown": counts.unknown,
        "entries": kernel.entries,
        "macs": case.macs,
        "by_mnemonic": top,
        "seconds": round(time.perf_counter() - started, 2),
    }


def _model_row(name: str, cell: Cell, target: str, quantised: Path) -> dict[str, Any]:
    row = {"model": name, "shape": str(cell), "target": target}
    started = time.perf_counter()
    try:
        counted = count_model(name, quantised, cell, get_target(target))
    except (CountingError, TargetError, AssertionError) as error:
        return {**row, "failed": str(error).replace("\n", "; ")}
    return {**row, **counted, "seconds": round(time.perf_counter() - started, 2)}


def main(arguments: list[str] | None = None) -> int:
    """Count, write the report; 1 if something could not be counted or a goal was missed."""
    options = _parse(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    result: dict[str, Any] = {
        "schema": 1,
        "machine": describe_machine(),
        "software": describe_software(),
        "tools": _versions(),
        "kernels": [],
        "models": [],
    }
    tasks = [] if options.no_kernels else [case for case in CASES if options.kernels in case.name]
    for case in tasks:
        for target in options.targets:
            if case.targets and target not in case.targets:
                continue
            result["kernels"].append(_kernel_row(case, target, options.cmsis_nn))
            _log(f"{case.name} on {target}", result["kernels"][-1])
            write_report(result, options.output)
    for name, cell in options.models:
        given = options.quantised.get(name)
        quantised = Path(given) if given else quantise(SPECS[name], options.cache)
        for target in options.targets:
            result["models"].append(_model_row(name, cell, target, quantised))
            _log(f"{name} {cell} on {target}", result["models"][-1])
            write_report(result, options.output)
    for path in write_report(result, options.output):
        sys.stdout.write(f"{path}\n")
    failed = any("failed" in row for row in [*result["kernels"], *result["models"]])
    return int(failed or not all(row["met"] for row in goals(result)))


def _log(what: str, row: dict[str, Any]) -> None:
    if "failed" in row:
        LOG.warning("%s: %s", what, row["failed"])
    else:
        number, floats = row["instructions"], row["floating_point"]
        LOG.info("%s: %s instructions, %d of floating point", what, f"{number:,}", floats)


if __name__ == "__main__":
    sys.exit(main())
