"""Several callers of one library at the same time: what it gives beside callers that take turns.

    python -m benchmarks.concurrency
    python -m benchmarks.concurrency --cells 1x128 --callers 1,2 --threads 2
    python -m benchmarks.concurrency --library model.so

Each caller is a thread of one process and calls again as soon as it has its answer. *together* is
what a library does: calls run at the same time, with buffers of their own, and divide the
processors. *in turns* is the same library behind a lock, one call at a time on all threads, as
versions before did it. Both take turns, round after round in alternating order. Throughput and
latency are those of the clock, so that what else the machine does counts; processor time per call,
of all threads of the process, hardly depends on it.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import sys
import threading
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .measure import busy_seconds
from .models import MODELS, Cell
from .peers import find_peer
from .process import WorkerError, build_artefact
from .report import machine_lines, table
from .store import new_result, save_with_text

__all__ = ["WAYS", "Turn", "main", "take_turn"]

ROOT = Path(__file__).resolve().parent.parent
LOG = logging.getLogger("benchmarks")
WAYS = ("together", "in turns")


@dataclass(frozen=True)
class Turn:
    """What callers did for a while.

    Attributes
    ----------
    calls : int
        Calls of all callers.
    seconds : float
        How long it took.
    times_ms : tuple of float
        Latency of every call as its caller saw it, waiting included.
    processor_ms : float
        Processor time per call, of all threads.
    other_cores : float
        Cores that other processes kept busy meanwhile.
    """

    calls: int
    seconds: float
    times_ms: tuple[float, ...]
    processor_ms: float
    other_cores: float

    @property
    def per_second(self) -> float:
        """Throughput."""
        return self.calls / self.seconds


def take_turn(library: Any, inputs: dict[str, Any], callers: int, way: str, seconds: float) -> Turn:
    """Let callers call for a while.

    Parameters
    ----------
    library : Library
        What they call; it has run before.
    inputs : dict
        Of every call.
    callers : int
        Threads that call.
    way : str
        One of `WAYS`.
    seconds : float
        How long a caller begins new calls.

    Returns
    -------
    Turn
    """
    door: AbstractContextManager[Any] = threading.Lock() if way == "in turns" else nullcontext()
    times: list[list[float]] = [[] for _ in range(callers)]
    start = threading.Barrier(callers + 1)

    def call(own: list[float]) -> None:
        start.wait()
        before = time.perf_counter()
        end = before + seconds
        while before < end:
            with door:
                library.run(**inputs, dequantize=False)
            after = time.perf_counter()
            own.append((after - before) * 1e3)
            before = after

    threads = [threading.Thread(target=call, args=(own,)) for own in times]
    for thread in threads:
        thread.start()
    busy, used, began = busy_seconds(), time.process_time(), time.perf_counter()
    start.wait()
    for thread in threads:
        thread.join()
    taken, used = time.perf_counter() - began, time.process_time() - used
    others = max(0.0, busy_seconds() - busy - used) / taken
    every = tuple(value for own in times for value in own)
    return Turn(len(every), taken, every, used / len(every) * 1e3, others)


def _row(turns: list[Turn]) -> dict[str, Any]:
    latencies = sorted(value for turn in turns for value in turn.times_ms)
    return {
        "per_second": round(statistics.median(turn.per_second for turn in turns), 1),
        "best_per_second": round(max(turn.per_second for turn in turns), 1),
        "median_ms": round(statistics.median(latencies), 3),
        "min_ms": round(latencies[0], 3),
        "p90_ms": round(latencies[-(-9 * len(latencies) // 10) - 1], 3),
        "processor_ms": round(statistics.median(turn.processor_ms for turn in turns), 3),
        "other_cores": round(statistics.median(turn.other_cores for turn in turns), 2),
        "calls": sum(turn.calls for turn in turns),
    }


def _measure(cell: Cell, options: argparse.Namespace, path: Path) -> list[dict[str, Any]]:
    """All numbers of callers, both ways, in turns."""
    from ibert_tvm.runtime import load_library

    with load_library(path, num_threads=options.threads) as library:
        inputs = cell.inputs()
        settings = [(callers, way) for callers in options.callers for way in WAYS]
        turns: dict[tuple[int, str], list[Turn]] = {setting: [] for setting in settings}
        take_turn(library, inputs, max(options.callers), "together", options.seconds)  # warm-up
        for number in range(options.rounds):
            for setting in settings if number % 2 == 0 else reversed(settings):
                turns[setting].append(take_turn(library, inputs, *setting, options.seconds))
        contexts = len(library.contexts)
    rows = []
    for (callers, way), taken in turns.items():
        row = {"cell": str(cell), "threads": options.threads, "callers": callers, "way": way}
        rows.append({**row, **_row(taken), "contexts": contexts})
        LOG.info("%s  %d callers %-9s %8.1f calls/s", cell, callers, way, rows[-1]["per_second"])
    return rows


def _markdown(result: dict[str, Any]) -> str:
    rows = result["rows"]
    lines = [
        "# Several callers of one library",
        "",
        *machine_lines(result),
        "",
        f"{result['settings']['library']}. *together*: calls run at the same time and divide the "
        "processors; *in turns*: one call at a time on all threads. Calls per second are medians "
        f"of {result['settings']['rounds']} turns, in parentheses the best one; the gain is "
        "together over in turns, of medians and of best turns. Latency as a caller sees it, "
        "waiting included.",
        "",
    ]
    if max((row["other_cores"] for row in rows), default=0.0) > 0.2:
        lines += [
            "**Other processes kept up to "
            f"{max(row['other_cores'] for row in rows):.1f} cores busy meanwhile:** figures of the "
            "clock say little, processor time per call and the best turns say more.",
            "",
        ]
    found = {(row["cell"], row["threads"], row["callers"], row["way"]): row for row in rows}
    body = []
    for key in dict.fromkeys((row["cell"], row["threads"], row["callers"]) for row in rows):
        cell, threads, callers = key
        together, turns = (found[(*key, way)] for way in WAYS)
        gains = [together[name] / turns[name] for name in ("per_second", "best_per_second")]
        body.append(
            [
                *(cell, str(threads), str(callers)),
                *(f"{r['per_second']:.0f} ({r['best_per_second']:.0f})" for r in (together, turns)),
                " ".join(f"{gain:.2f}" for gain in gains),
                *(f"{r['median_ms']:.1f}, {r['p90_ms']:.1f}" for r in (together, turns)),
                *(f"{r['processor_ms']:.2f}" for r in (together, turns)),
            ]
        )
    header = ["shape", "threads per call", "callers"]
    header += ["calls/s together", "in turns", "gain", "latency ms together: median, p90"]
    header += ["in turns", "processor ms per call together", "in turns"]
    return "\n".join([*lines, *table(header, body)]) + "\n"


def _numbers(text: str) -> list[int]:
    numbers = [int(part) if part.isdigit() else 0 for part in text.split(",")]
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of positive numbers")
    return numbers


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.concurrency",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--cells", default="1x32,1x128", help="comma-separated, as 1x128")
    parser.add_argument("--callers", type=_numbers, default=[1, 2, 4], help="comma-separated")
    parser.add_argument("--threads", type=int, default=cores, help="per call (default: all cores)")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each (default: 9)")
    parser.add_argument("--seconds", type=float, default=0.5, help="of a turn (default: 0.5)")
    parser.add_argument(
        "--library", type=Path, help="what to measure (default: MiniLM, compiled for this machine)"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=ROOT / "benchmarks" / "results" / "concurrency",
        help="path of the result without suffix; .md and .json are written",
    )
    parser.add_argument(
        "--cache", type=Path, default=ROOT / "build" / "bench", help="where artefacts are kept"
    )
    options = parser.parse_args(arguments)
    try:
        options.cells = [Cell.parse(text) for text in options.cells.split(",")]
    except ValueError as error:
        parser.error(f"--cells: {error}")
    if options.threads < 1 or options.rounds < 1 or options.seconds <= 0:
        parser.error("--threads, --rounds and --seconds must be positive")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    options = _parse(arguments)
    spec = MODELS["minilm"]
    name = "MiniLM" if options.library is None else f"`{options.library.name}`"
    settings = {"rounds": options.rounds, "seconds": options.seconds, "library": name}
    result = new_result([], settings)
    try:
        for cell in options.cells:
            library = options.library
            if library is None:
                build_artefact(spec, "ibert", cell, options.cache)
                library = find_peer("ibert").artefact(spec, cell, options.cache) / "model.so"
            result["rows"] += _measure(cell, options, library)
    except WorkerError as error:
        LOG.error("%s", error)
        return 1
    files = save_with_text(result, _markdown(result), options.output)
    json.dump({"written": [str(file) for file in files]}, sys.stdout)
    sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
