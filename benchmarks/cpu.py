"""Compare the compiled model with other runtimes on this machine's processor.

    python -m benchmarks.cpu                      # MiniLM and BERT-Base, one and two threads
    python -m benchmarks.cpu --models minilm --cells 1x128 --threads 1 --rounds 3

For every model, shape and thread count, all peers are loaded, each in its own process, and take
turns; a process is stopped except during its turn. Figures are medians and minima over all rounds.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from .machine import describe_machine, describe_software, measure_limits
from .models import MODELS, Cell, ModelSpec
from .peers import PEERS
from .process import Worker, WorkerError, build_artefact
from .report import write_report

__all__ = ["main"]

ROOT = Path(__file__).resolve().parent.parent
LOG = logging.getLogger("benchmarks")


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--models",
        default="minilm,bert-base",
        help=f"comma-separated, of {', '.join(MODELS)} (default: %(default)s)",
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
        help="comma-separated (default: %(default)s)",
    )
    parser.add_argument("--rounds", type=int, default=7, help="turns of each peer (default: 7)")
    parser.add_argument(
        "--seconds", type=float, default=0.5, help="length of a turn (default: 0.5)"
    )
    parser.add_argument(
        "--warm-up", type=float, default=0.1, help="seconds before each turn's clock starts"
    )
    parser.add_argument(
        "--least", type=int, default=3, help="least number of runs in a turn (default: 3)"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=ROOT / "benchmarks" / "results" / "cpu",
        help="path of the result without suffix; .md, .json and .png are written",
    )
    parser.add_argument(
        "--cache", type=Path, default=ROOT / "build" / "bench", help="where artefacts are kept"
    )
    parser.add_argument("--limits-only", action="store_true", help="measure the machine only")
    options = parser.parse_args(arguments)
    options.models = _choices(parser, "--models", options.models, list(MODELS))
    options.peers = _choices(parser, "--peers", options.peers, list(PEERS))
    try:
        options.cells = [Cell.parse(text) for text in options.cells.split(",") if text]
    except ValueError as error:
        parser.error(f"--cells: {error}")
    options.threads = [int(text) for text in _choices(parser, "--threads", options.threads)]
    for threads in options.threads:
        if not 1 <= threads <= cores:
            parser.error(f"--threads: {threads} is not between 1 and the {cores} cores there are")
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


def _busy_seconds() -> float:
    """Processor time that all processes have used since the machine started, in seconds."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    user, nice, system, _, _, irq, softirq, steal = map(int, fields[:8])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _measure_cell(
    spec: ModelSpec, cell: Cell, threads: int, peers: list[str], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """All peers in turns on one cell; a peer that fails is reported, the others go on."""
    rows: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        workers: list[Worker] = []
        for peer in peers:
            row = {"model": spec.name, "cell": str(cell), "threads": threads, "peer": peer}
            rows[peer] = row
            try:
                worker = stack.enter_context(Worker(spec, peer, cell, threads, options.cache))
            except WorkerError as error:
                row["failed"] = str(error)
                LOG.warning("%s %s, %d threads, %s: %s", spec.name, cell, threads, peer, error)
                continue
            row.update(worker.hello, rounds=[])
            workers.append(worker)
        start, busy, own = time.perf_counter(), _busy_seconds(), time.process_time()
        for number in range(options.rounds):
            # Every other round backwards, so that no peer always follows the same one.
            for worker in workers if number % 2 == 0 else reversed(workers):
                row = rows[worker.peer]
                if "failed" in row:
                    continue
                try:
                    turn = worker.turn(options.seconds, options.warm_up, options.least)
                except (WorkerError, BrokenPipeError) as error:
                    row["failed"] = str(error)
                    continue
                row["rounds"].append(turn.pop("times_ms"))
                own -= turn.pop("processor_seconds")
                row.update(turn)
        own = time.process_time() - own  # what this process and the workers have used
        others = (_busy_seconds() - busy - own) / (time.perf_counter() - start)
    if workers and others > 0.2:
        LOG.warning("other processes kept %.1f cores busy: these figures are unreliable", others)
    for row in rows.values():
        if row.get("rounds"):
            row["other_load_cores"] = round(max(others, 0.0), 2)
            times = [value for turn in row["rounds"] for value in turn]
            row["median_ms"] = round(statistics.median(times), 4)
            row["min_ms"] = round(min(times), 4)
            row["runs"] = len(times)
            row["round_medians_ms"] = [round(statistics.median(t), 4) for t in row.pop("rounds")]
            row["gmacs"] = round(spec.macs(cell) / row["median_ms"] * 1e-6, 1)
            LOG.info(
                "%-10s %6s  %d threads  %-26s %9.3f ms (min %.3f)",
                *(spec.name, cell, threads, row["peer"], row["median_ms"], row["min_ms"]),
            )
    _compare_outputs(list(rows.values()))
    return list(rows.values())


def _compare_outputs(rows: list[dict[str, Any]]) -> None:
    """Replace each embedding by its cosine to PyTorch's: fast but wrong is of no interest."""
    import numpy as np

    embeddings = {row["peer"]: row.pop("embedding") for row in rows if "embedding" in row}
    reference = embeddings.get("pytorch-fp32")
    for row in rows:
        own = embeddings.get(row["peer"])
        if own is None or reference is None or len(own) != len(reference):
            continue
        cosine = np.dot(own, reference) / (np.linalg.norm(own) * np.linalg.norm(reference))
        row["cosine_to_pytorch"] = round(float(cosine), 5)


def _build_all(
    options: argparse.Namespace, cells: dict[str, list[Cell]], skipped: dict[str, str]
) -> dict[tuple[str, str], list[str]]:
    """Build every artefact, one at a time; returns the peers of each (model, cell)."""
    ready: dict[tuple[str, str], list[str]] = {}
    for model in options.models:
        for cell in cells[model]:
            names = ready.setdefault((model, str(cell)), [])
            for name in options.peers:
                if name in skipped:
                    continue
                try:
                    build_artefact(MODELS[model], name, cell, options.cache)
                    names.append(name)
                except WorkerError as error:
                    LOG.warning("%s, %s: %s", model, name, error)
                    skipped[f"{name} on {model} {cell}"] = str(error)
    return ready


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    options = _parse(arguments)
    result: dict[str, Any] = {
        "schema": 1,
        "machine": describe_machine(),
        "software": describe_software(),
        "settings": {
            "rounds": options.rounds,
            "seconds_per_turn": options.seconds,
            "warm_up": options.warm_up,
            "least_runs_per_turn": options.least,
        },
        "peers": {name: PEERS[name].title for name in options.peers},
        "precision": {name: PEERS[name].precision for name in options.peers},
        "skipped": {},
        "limits": {},
        "rows": [],
    }
    for threads in options.threads:
        result["limits"][str(threads)] = measure_limits(options.cache, threads)
    if not options.limits_only:
        for name in options.peers:
            reason = PEERS[name].missing()
            if reason is not None:
                LOG.warning("skipping %s: %s", name, reason)
                result["skipped"][name] = reason
        cells = {
            model: options.cells or [Cell.parse(text) for text in MODELS[model].cells]
            for model in options.models
        }
        ready = _build_all(options, cells, result["skipped"])
        for model in options.models:
            spec = MODELS[model]
            for cell in cells[model]:
                for threads in options.threads:
                    peers = ready[model, str(cell)]
                    result["rows"] += _measure_cell(spec, cell, threads, peers, options)
                    write_report(result, options.output)
    # The clock drifts: measured again at the end, the better figure counts.
    for threads in options.threads:
        again = measure_limits(options.cache, threads)
        for name, row in result["limits"][str(threads)].items():
            row["value"] = max(row["value"], again[name]["value"])
    paths = write_report(result, options.output)
    json.dump({"written": [str(path) for path in paths]}, sys.stdout)
    sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
