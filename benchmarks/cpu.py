"""Compare the compiled model with other runtimes on this machine's processor.

    python -m benchmarks.cpu                      # everything; a later --resume continues it
    python -m benchmarks.cpu --build-only         # artefacts only, which needs no quiet machine
    python -m benchmarks.cpu --plan               # what would be measured, and for how long
    python -m benchmarks.cpu --models minilm --cells 1x128 --threads 1 --rounds 3
    python -m benchmarks.cpu --peers ibert,ibert@HEAD~3 --output build/before    # two commits

For every model, shape and thread count, all peers are loaded, each in its own process, and take
turns; a process is stopped except during its turn. Figures are medians and minima over all rounds.
The result is written after every cell, so that nothing is lost when a run is interrupted.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .effort import Effort, estimate_seconds
from .goals import BASELINE
from .machine import fp32_ceiling, int8_ceiling, measure_limits
from .measure import measure_cell
from .memory import measure_all_memory
from .models import MODELS, Cell
from .peers import OTHERS, PEERS, commit_of, find_peer
from .process import WorkerError, ask, build_artefact
from .report import write_report
from .store import StoreError, add_limits, add_rows, continue_result, is_measured, new_result

__all__ = ["main"]

ROOT = Path(__file__).resolve().parent.parent
LOG = logging.getLogger("benchmarks")

Task = tuple[str, Cell, int]


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--models",
        default=",".join(MODELS),
        help="comma-separated (default: %(default)s)",
    )
    parser.add_argument(
        "--cells",
        default="",
        help="comma-separated BATCHxLENGTH, for every model (default: each its own)",
    )
    cores = len(os.sched_getaffinity(0))
    parser.add_argument(
        "--threads",
        default="1,2" if cores > 1 else "1",
        help="comma-separated thread counts (default: %(default)s)",
    )
    parser.add_argument(
        "--peers",
        default=",".join(PEERS),
        help="comma-separated; ibert@COMMIT is this project at another commit "
        "(default: %(default)s)",
    )
    effort = Effort()
    for name, kind, text in (
        ("rounds", int, "turns of each peer in a cell"),
        ("seconds", float, "least length of a turn"),
        ("warm_up", float, "seconds before each turn's clock starts, for short runs"),
        ("least", int, "least number of runs in a turn, for short runs"),
    ):
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=kind,
            default=getattr(effort, name),
            help=f"{text} (default: %(default)s)",
        )
    parser.add_argument(
        "--output",
        type=Path,
        default=ROOT / "benchmarks" / "results" / "cpu",
        help="path of the result without suffix; .md, .json and .png are written",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="keep what the result at --output has of this compiler and machine, measure the rest",
    )
    parser.add_argument(
        "--cache", type=Path, default=ROOT / "build" / "bench", help="where artefacts are kept"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=min(2, cores),
        help="compilations of this project at the same time (default: %(default)s)",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--limits-only", action="store_true", help="measure the machine only")
    what.add_argument("--memory-only", action="store_true", help="measure memory only")
    what.add_argument("--build-only", action="store_true", help="build what is missing and stop")
    what.add_argument("--plan", action="store_true", help="say what would be measured and stop")
    parser.add_argument("--no-memory", action="store_true", help="leave memory out")
    options = parser.parse_args(arguments)
    options.models = _choices(parser, "--models", options.models, list(MODELS))
    commits = [name for name in options.peers.split(",") if commit_of(name)]
    options.peers = _choices(parser, "--peers", options.peers, [*PEERS, *OTHERS, *commits])
    try:
        options.cells = [Cell.parse(text) for text in options.cells.split(",") if text]
    except ValueError as error:
        parser.error(f"--cells: {error}")
    options.threads = [int(text) for text in _choices(parser, "--threads", options.threads)]
    for threads in options.threads:
        if not 1 <= threads <= cores:
            parser.error(f"--threads: {threads} is not between 1 and the {cores} cores there are")
    try:
        options.effort = Effort(options.rounds, options.seconds, options.warm_up, options.least)
    except ValueError as error:
        parser.error(str(error))
    return options


def _choices(
    parser: argparse.ArgumentParser, option: str, text: str, allowed: list[str] | None = None
) -> list[str]:
    values = [value.strip() for value in text.split(",") if value.strip()]
    for value in values:
        if (allowed is not None and value not in allowed) or (
            allowed is None and not value.isdigit()
        ):
            known = f"; known: {', '.join(allowed)}" if allowed else ""
            parser.error(f"{option}: {value!r} is not valid{known}")
    return values


def _tasks(options: argparse.Namespace) -> list[Task]:
    """Every cell to measure, in order."""
    return [
        (model, cell, threads)
        for model in options.models
        for cell in options.cells or [Cell.parse(text) for text in MODELS[model].cells]
        for threads in options.threads
    ]


def _build_all(
    options: argparse.Namespace, tasks: list[Task], result: dict[str, Any]
) -> dict[tuple[str, str], list[str]]:
    """Build every artefact that is missing; returns the peers of each (model, cell).

    One at a time: quantising several copies of a large model at once exhausts the memory. Only
    this project's compilations of further cells, which share one quantised model, may overlap.
    """
    ready: dict[tuple[str, str], list[str]] = {}
    cells: dict[str, list[Cell]] = {}
    for model, cell, _ in tasks:
        if cell not in cells.setdefault(model, []):
            cells[model].append(cell)

    def build(model: str, name: str, cell: Cell) -> None:
        start = time.perf_counter()
        try:
            build_artefact(MODELS[model], name, cell, options.cache)
            ready.setdefault((model, str(cell)), []).append(name)
        except WorkerError as error:
            LOG.warning("%s, %s: %s", model, name, error)
            result["skipped"][f"{name} on {model} {cell}"] = str(error)
        taken = time.perf_counter() - start
        if taken > 5:
            LOG.info("built %s for %s %s in %.0f s", name, model, cell, taken)

    for model, shapes in cells.items():
        for name in options.peers:
            if name in result["skipped"]:
                continue
            build(model, name, shapes[0])
            jobs = options.jobs if name == BASELINE else 1
            with ThreadPoolExecutor(jobs) as pool:
                list(pool.map(lambda cell, m=model, n=name: build(m, n, cell), shapes[1:]))
    order = {name: place for place, name in enumerate(options.peers)}
    return {key: sorted(names, key=order.__getitem__) for key, names in ready.items()}


def _estimate(options: argparse.Namespace, tasks: list[Task], result: dict[str, Any]) -> float:
    """Seconds that `tasks` take, from the limits measured; 0 where there are none."""
    ceilings: dict[tuple[str, int], float] = {}
    for threads in options.threads:
        limits = result["limits"].get(str(threads), {})
        int8, fp32 = int8_ceiling(limits), fp32_ceiling(limits)
        if int8 is None or fp32 is None:
            return 0.0
        ceilings["int8", threads], ceilings["fp32", threads] = int8, fp32
    names = [name for name in options.peers if name not in result["skipped"]]
    work = [(MODELS[model], cell, threads) for model, cell, threads in tasks]
    return estimate_seconds(
        options.effort, work, [find_peer(name).precision for name in names], ceilings
    )


def _measure_limits(options: argparse.Namespace, result: dict[str, Any]) -> None:
    for threads in options.threads:
        add_limits(result, threads, measure_limits(options.cache, threads))


def _measure_cells(
    options: argparse.Namespace,
    tasks: list[Task],
    ready: dict[tuple[str, str], list[str]],
    result: dict[str, Any],
) -> None:
    start = time.perf_counter()
    planned = _estimate(options, tasks, result)
    done = 0.0
    for number, (model, cell, threads) in enumerate(tasks, 1):
        peers = ready.get((model, str(cell)), [])
        if peers and not (options.resume and is_measured(result, model, cell, threads, peers)):
            rows = measure_cell(MODELS[model], cell, threads, peers, options.effort, options.cache)
            add_rows(result, "rows", rows)
            write_report(result, options.output)
        done += _estimate(options, [(model, cell, threads)], result)
        elapsed = time.perf_counter() - start
        left = elapsed * (planned - done) / done if done else 0.0
        LOG.info(
            "-- cell %d of %d, %.0f s so far, about %.0f s left", number, len(tasks), elapsed, left
        )


def _measure_memory(
    options: argparse.Namespace, ready: dict[tuple[str, str], list[str]], result: dict[str, Any]
) -> None:
    """Memory at each model's batch 1 and length 128, or its first cell where that is left out."""
    for model in options.models:
        cells = [cell for name, cell in ready if name == model]
        if not cells:
            continue
        cell = "1x128" if "1x128" in cells else cells[0]
        peers = ready[model, cell]
        if not (
            options.resume and is_measured(result, model, Cell.parse(cell), 1, peers, "memory")
        ):
            rows = measure_all_memory(MODELS[model], Cell.parse(cell), peers, options.cache)
            add_rows(result, "memory", rows)
            write_report(result, options.output)


def _profile(
    options: argparse.Namespace, ready: dict[tuple[str, str], list[str]], result: dict[str, Any]
) -> None:
    """Where the time of this project goes, for every model's batch 1, one thread."""
    for model, text in ready:
        cell = Cell.parse(text)
        if cell.batch != 1 or BASELINE not in ready[model, text]:
            continue
        row: dict[str, Any] = {"model": model, "cell": text, "threads": 1, "peer": BASELINE}
        try:
            row.update(ask("profile", MODELS[model], BASELINE, cell, 1, options.cache))
        except WorkerError as error:
            row["failed"] = str(error)
            LOG.warning("profile of %s %s: %s", model, text, error)
        add_rows(result, "profiles", [row])
        write_report(result, options.output)


def _run(options: argparse.Namespace) -> dict[str, Any]:
    """Everything; returns the result."""
    result = new_result(options.peers, asdict(options.effort))
    if options.resume:
        taken = continue_result(result, options.output.with_name(options.output.name + ".json"))
        LOG.info("%d figures taken over from the earlier run", taken)
    for name in options.peers:
        reason = find_peer(name).missing()
        if reason is not None:
            LOG.warning("skipping %s: %s", name, reason)
            result["skipped"][name] = reason
        else:
            result["skipped"].pop(name, None)
    tasks = _tasks(options)
    if not (options.build_only or options.memory_only):
        _measure_limits(options, result)
        LOG.info(
            "%d cells of %d peers, about %.0f minutes once everything is built",
            *(len(tasks), len(options.peers), _estimate(options, tasks, result) / 60),
        )
    if options.plan or options.limits_only:
        return result
    ready = _build_all(options, tasks, result)
    if options.build_only:
        return result
    if not options.no_memory:
        _measure_memory(options, ready, result)
    if not options.memory_only:
        _measure_cells(options, tasks, ready, result)
        _profile(options, ready, result)
        _measure_limits(options, result)  # the clock drifts: the better figure counts
    return result


def _terminate(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    options = _parse(arguments)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        result = _run(options)
    except StoreError as error:
        LOG.error("error: %s", error)
        return 2
    except KeyboardInterrupt:
        LOG.error("interrupted; finished cells are in %s.*, --resume continues", options.output)
        return 130
    if options.plan:
        for model, cell, threads in _tasks(options):
            LOG.info("%s %s, %d threads", model, cell, threads)
    if options.plan or options.build_only:
        return 0
    paths = write_report(result, options.output)
    json.dump({"written": [str(path) for path in paths]}, sys.stdout)
    sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
