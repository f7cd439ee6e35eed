"""Measure the paper's sixteen cells on an NVIDIA GPU, beside PyTorch.

    python -m benchmarks.cuda                               # compile for this GPU and measure
    python -m benchmarks.cuda --quick                       # four cells, few rounds: does it work?
    python -m benchmarks.cuda --minutes 20 --resume         # as far as twenty minutes go; continue
    python -m benchmarks.cuda --prepare DIR --target t4     # compile only; needs no GPU
    python -m benchmarks.cuda --libraries DIR               # measure only; needs no compiler

A machine with a GPU needs its driver (580 or later), Python, this checkout with its dependencies,
and for the peers a torch with CUDA. It needs no CUDA toolkit and no network if the folder was
prepared elsewhere. The result is written after every cell.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.effort import Effort
from benchmarks.models import Cell
from benchmarks.process import ROOT
from benchmarks.store import StoreError

from .cells import PAPER_MODELS, PAPER_SHAPES, SPECS, Task
from .errors import GpuBenchmarkError
from .limits import ask_gpu
from .measure import measure_cell, workers
from .peers import PEERS
from .prepare import prepare
from .prepared import Prepared
from .report import write_report
from .sensors import Sensors
from .store import add_rows, continue_result, is_measured, new_result

__all__ = ["main"]

LOG = logging.getLogger("benchmarks.cuda")
_QUICK_SHAPES = (Cell(1, 128), Cell(8, 256))
_QUICK = Effort(rounds=2, seconds=0.1, warm_up=0.05, least=3)
_EFFORT = Effort(rounds=7, seconds=0.3, warm_up=0.15, least=5)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cuda",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--models", default=",".join(PAPER_MODELS), help="comma-separated (default: %(default)s)"
    )
    parser.add_argument(
        "--cells",
        default=",".join(map(str, PAPER_SHAPES)),
        help="comma-separated BATCHxLENGTH (default: %(default)s)",
    )
    parser.add_argument(
        "--peers",
        default=",".join(name for name, peer in PEERS.items() if peer.by_default),
        help=f"comma-separated, of {', '.join(PEERS)} (default: %(default)s)",
    )
    parser.add_argument("--target", help="what to compile for (default: this machine's GPU)")
    parser.add_argument("--quick", action="store_true", help="two cells a model, few rounds")
    for name, kind, text in (
        ("rounds", int, "turns of each peer in a cell"),
        ("seconds", float, "least length of a turn"),
        ("warm_up", float, "seconds before each turn's clock starts"),
        ("least", int, "least number of runs in a turn"),
    ):
        default = getattr(_EFFORT, name)
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=kind, help=f"{text} (default: {default})"
        )
    parser.add_argument(
        "--minutes",
        type=float,
        help="begin nothing that would end later than this many minutes from now",
    )
    parser.add_argument("--gpu", type=int, default=0, help="which GPU (default: %(default)s)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--prepare", type=Path, metavar="DIR", help="compile into DIR and stop")
    what.add_argument("--libraries", type=Path, metavar="DIR", help="measure what DIR holds")
    parser.add_argument(
        "--no-reference",
        action="store_true",
        help="with --prepare: no reference outputs",
    )
    parser.add_argument(
        "--quantised",
        action="append",
        default=[],
        metavar="NAME=PATH.ibert",
        help="a model quantised before, instead of quantising it",
    )
    parser.add_argument(
        "--cache", type=Path, default=ROOT / "build" / "bench", help="where models are kept"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=ROOT / "benchmarks" / "results" / "cuda",
        help="path of the result without suffix; .json and .md are written",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="keep what the result at --output has of this compiler and GPU, measure the rest",
    )
    options = parser.parse_args(arguments)
    options.models = _choices(parser, "--models", options.models, SPECS)
    options.peers = _choices(parser, "--peers", options.peers, PEERS)
    try:
        options.cells = [Cell.parse(text) for text in options.cells.split(",") if text]
        base = _QUICK if options.quick else _EFFORT
        given = {name: getattr(options, name) for name in ("rounds", "seconds", "warm_up", "least")}
        chosen = {name: value for name, value in given.items() if value is not None}
        options.effort = Effort(**{**asdict(base), **chosen})
    except ValueError as error:
        parser.error(str(error))
    if options.quick:
        options.cells = [cell for cell in options.cells if cell in _QUICK_SHAPES] or options.cells
    wrong = [text for text in options.quantised if "=" not in text]
    if wrong:
        parser.error(f"--quantised: {wrong[0]!r} is not NAME=PATH.ibert")
    options.quantised = dict(text.split("=", 1) for text in options.quantised)
    return options


def _choices(
    parser: argparse.ArgumentParser, option: str, text: str, allowed: Iterable[str]
) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = sorted(set(names) - set(allowed))
    if unknown or not names:
        parser.error(
            f"{option}: {', '.join(unknown) or 'nothing'} is not known; there are "
            f"{', '.join(allowed)}"
        )
    return names


class _Budget:
    """Time that a run may take; without a limit there is always enough."""

    def __init__(self, minutes: float | None) -> None:
        self._end = None if minutes is None else time.monotonic() + 60 * minutes
        self.used_up = False

    def allows(self, seconds: float = 0.0) -> bool:
        """Whether something that takes so long may begin."""
        if self._end is not None and time.monotonic() + seconds > self._end:
            self.used_up = True
        return not self.used_up


def _prepare(options: argparse.Namespace, prepared: Prepared, target: str) -> dict[str, str]:
    steps = ["folder", "int8"]
    steps += ["fp32"] if "ibert-fp32" in options.peers else []
    steps += [] if options.no_reference else ["expected"]
    return prepare(
        prepared, target, options.models, options.cells, options.cache, options.quantised, steps
    )


def _missing(options: argparse.Namespace, prepared: Prepared) -> dict[str, str]:
    """Peers that cannot be measured, by ``"PEER on MODEL"``, and why."""
    found = {}
    for model in options.models:
        for peer in options.peers:
            reason = PEERS[peer].missing(prepared, model)
            if reason is not None:
                found[f"{peer} on {model}"] = reason
                LOG.warning("skipping %s on %s: %s", peer, model, reason)
    return found


def _measure(options: argparse.Namespace) -> dict[str, Any]:
    gpu = ask_gpu("describe", options.gpu)
    sensors = Sensors(gpu["uuid"])
    if sensors.missing:
        LOG.warning("clocks and temperatures are not recorded: %s", sensors.missing)
    if options.gpu:  # the first visible one is what every peer takes
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu["uuid"]
    budget = _Budget(options.minutes)
    prepared, failed = Prepared(options.libraries or options.cache / "cuda"), {}
    if options.libraries is None:
        target = options.target or f"cuda:sm_{gpu['capability']}"
        failed = _prepare(options, prepared, target)
    manifest = prepared.manifest()
    settings = {**asdict(options.effort), "minutes": options.minutes}
    result = new_result(gpu, sensors.version(), manifest, options.peers, settings)
    if options.resume:
        taken = continue_result(result, options.output.with_name(options.output.name + ".json"))
        LOG.info("%d figures taken over from the earlier run", taken)
    result["skipped"] = {**failed, **_missing(options, prepared)}
    if not result["limits"]:
        result["limits"] = ask_gpu("measure", 0, prepared.limits())
        for name, row in result["limits"].items():
            LOG.info("limit %s: %g %s", name, row["value"], row["unit"])
    for model in options.models:
        _measure_model(options, model, prepared, result, sensors, budget)
    if budget.used_up:
        LOG.warning("the time is used up; --resume continues")
    return result


def _measure_model(
    options: argparse.Namespace,
    model: str,
    prepared: Prepared,
    result: dict[str, Any],
    sensors: Sensors,
    budget: _Budget,
) -> None:
    peers = [peer for peer in options.peers if f"{peer} on {model}" not in result["skipped"]]
    tasks = [Task(model, cell) for cell in options.cells]
    tasks = [task for task in tasks if not (options.resume and is_measured(result, task, peers))]
    if not tasks or not peers or not budget.allows():
        return
    with workers(model, peers, prepared) as (loaded, failed):
        for peer, reason in failed.items():
            result["skipped"][f"{peer} on {model}"] = reason
        longest = 0.0
        for task in tasks:
            if not budget.allows(longest):
                return
            started = time.monotonic()
            rows = measure_cell(task, loaded, options.effort, sensors, budget.allows)
            longest = max(longest, time.monotonic() - started)
            add_rows(result, rows)
            write_report(result, options.output)


def _terminate(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def main(arguments: list[str] | None = None) -> int:
    """Prepare, measure, or both; returns the exit code.

    0: all was measured; 1: something failed, was skipped or wrong, or the time was used up; 2: no
    GPU or no prepared folder; 130: interrupted.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    options = _parse(arguments)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        if options.prepare is not None:
            failed = _prepare(options, Prepared(options.prepare), options.target or "t4")
            return int(bool(failed))
        result = _measure(options)
    except (GpuBenchmarkError, StoreError) as error:
        LOG.error("error: %s", error)
        return 2
    except KeyboardInterrupt:
        LOG.error("interrupted; finished cells are in %s.*, --resume continues", options.output)
        return 130
    paths = write_report(result, options.output)
    json.dump({"written": [str(path) for path in paths]}, sys.stdout)
    sys.stdout.write("\n")
    return int(not _complete(options, result))


def _complete(options: argparse.Namespace, result: dict[str, Any]) -> bool:
    tasks = [Task(model, cell) for model in options.models for cell in options.cells]
    measured = all(is_measured(result, task, options.peers) for task in tasks)
    return measured and not any("wrong" in row for row in result["rows"])


if __name__ == "__main__":
    sys.exit(main())
