"""How long the package and the command line take to start, and a library to be loaded and run.

    python -m benchmarks.start_up
    python -m benchmarks.start_up --peers ibert,ibert@7ec0376 --rounds 20

Each run is a process of its own, and peers take turns; each loads the library of MiniLM that its
own sources compile. Processor time, of all threads and of the kernel, hardly depends on what else
the machine does. The exit code is 1 if the first peer needs over 5% more than another one to load
or to run.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from .models import MODELS, Cell
from .peers import find_peer, place_of
from .process import build_artefact
from .report import machine_lines, table
from .store import new_result, save_with_text

__all__ = ["main"]

ROOT = Path(__file__).resolve().parent.parent
LOG = logging.getLogger("benchmarks")
_LOAD = "import sys, ibert_tvm; ibert_tvm.load_library(sys.argv[1], num_threads=1)"
_SPEC, _CELL = MODELS["minilm"], Cell(1, 32)
_BOUNDED, _BOUND = ("load_library", "ibert run"), 1.05


def _commands(library: Path) -> dict[str, list[str]]:
    run = ["-m", "ibert_tvm", "run", str(library), "--text", "The cat sat.", "--threads", "1"]
    return {
        "python": ["-c", ""],
        "import ibert_tvm": ["-c", "import ibert_tvm"],
        "ibert --help": ["-m", "ibert_tvm", "--help"],
        "load_library": ["-c", _LOAD, str(library)],
        "ibert run": run,
    }


def _run(arguments: list[str], root: Path) -> tuple[float, float]:
    """Run Python in a checkout; gives milliseconds of the clock and of processors."""
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, *arguments], cwd=root, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{root}: {arguments} ended with {process.returncode}")
    return 1e3 * (time.perf_counter() - started), 1e3 * (used.ru_utime + used.ru_stime)


def _measure(peers: list[str], rounds: int, cache: Path) -> list[dict[str, Any]]:
    commands, roots = {}, {}
    for peer in peers:
        build_artefact(_SPEC, peer, _CELL, cache)
        place = place_of(peer, cache)
        folder = find_peer(place.peer).artefact(_SPEC, _CELL, place.cache)
        commands[peer], roots[peer] = _commands(folder.absolute() / "model.so"), place.root
    rows = []
    for name in commands[peers[0]]:
        times: dict[str, list[tuple[float, float]]] = {peer: [] for peer in peers}
        for number in range(rounds):
            for peer in peers if number % 2 else reversed(peers):
                times[peer].append(_run(commands[peer][name], roots[peer]))
        for peer in peers:
            clock, processor = zip(*times[peer], strict=True)
            rows.append(
                {
                    "command": name,
                    "peer": peer,
                    "clock_ms": [round(f(clock), 1) for f in (min, statistics.median)],
                    "processor_ms": [round(f(processor), 1) for f in (min, statistics.median)],
                }
            )
            LOG.info("%s", rows[-1])
    return rows


def _ratio(rows: list[dict[str, Any]], row: dict[str, Any]) -> float:
    """Least processor time of the first peer, of a row's."""
    own = next(other for other in rows if other["command"] == row["command"])
    return float(own["processor_ms"][0] / row["processor_ms"][0])


def _markdown(result: dict[str, Any]) -> str:
    rows = result["rows"]
    body = [
        [
            *(row["command"], row["peer"], *map(str, row["clock_ms"] + row["processor_ms"])),
            f"{_ratio(rows, row):.3f}",
        ]
        for row in rows
    ]
    header = ["", "peer", "ms at best", "median", "processor ms at best", "median", "ratio"]
    return "\n".join(
        [
            "# Start",
            "",
            *machine_lines(result),
            "",
            f"{result['settings']['rounds']} runs of each, in turns. *ratio* is the least "
            "processor time of the first peer to that of this one.",
            "",
            *table(header, body),
            "",
        ]
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.start_up",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=10, help="runs of each command")
    parser.add_argument("--peers", default="ibert", help="ibert, and ibert@COMMIT after commas")
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "bench")
    parser.add_argument(
        "--output",
        type=Path,
        default=ROOT / "benchmarks" / "results" / "start-up",
        help="path of the result without suffix; .md and .json are written",
    )
    options = parser.parse_args(arguments)
    peers = options.peers.split(",")
    result = new_result(peers, {"rounds": options.rounds})
    result["rows"] = rows = _measure(peers, options.rounds, options.cache)
    LOG.info("wrote %s and %s", *save_with_text(result, _markdown(result), options.output))
    return int(any(_ratio(rows, row) > _BOUND for row in rows if row["command"] in _BOUNDED))


if __name__ == "__main__":
    sys.exit(main())
