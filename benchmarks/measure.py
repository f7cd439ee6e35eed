"""One cell: all peers loaded, each in its own process, taking turns."""

from __future__ import annotations

import logging
import os
import statistics
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from .effort import Effort
from .models import Cell, ModelSpec
from .process import Worker, WorkerError

__all__ = ["busy_seconds", "measure_cell"]

LOG = logging.getLogger("benchmarks")
# Cores kept busy by other processes above which a run is not worth keeping.
BUSY = 0.2


def busy_seconds() -> float:
    """Processor time that all processes have used since the machine started, in seconds."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    user, nice, system, _, _, irq, softirq, steal = map(int, fields[:8])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def measure_cell(
    spec: ModelSpec, cell: Cell, threads: int, peers: list[str], effort: Effort, cache: Path
) -> list[dict[str, Any]]:
    """Measure all peers in turns.

    Parameters
    ----------
    spec, cell, threads
        What to measure.
    peers : list of str
        Names of peers whose artefacts are built.
    effort : Effort
        How often.
    cache : Path
        Where the artefacts are.

    Returns
    -------
    list of dict
        One row per peer: ``median_ms``, ``min_ms``, ``runs``, ``round_medians_ms``, ``gmacs``,
        ``load_seconds``, ``peak_mib``, ``cosine_to_pytorch``, ``other_load_cores``; or ``failed``
        with the reason. A peer that fails does not keep the others from being measured.
    """
    rows: dict[str, dict[str, Any]] = {
        peer: {"model": spec.name, "cell": str(cell), "threads": threads, "peer": peer}
        for peer in peers
    }
    with ExitStack() as stack:
        workers = _load(stack, spec, cell, threads, rows, cache)
        start, busy, own = time.perf_counter(), busy_seconds(), time.process_time()
        for number in range(effort.rounds):
            # Every other round backwards, so that no peer always follows the same one.
            for worker in workers if number % 2 == 0 else reversed(workers):
                row, run_ms = rows[worker.peer], worker.hello["estimate_ms"]
                if "failed" in row or not effort.joins(number, run_ms):
                    continue
                try:
                    turn = worker.turn(**asdict(effort.turn(run_ms)))
                except (WorkerError, BrokenPipeError) as error:
                    row["failed"] = str(error)
                    continue
                row["rounds"].append(turn.pop("times_ms"))
                own -= turn.pop("processor_seconds")
                row.update(turn)
        own = time.process_time() - own  # what this process and the workers have used
        others = (busy_seconds() - busy - own) / (time.perf_counter() - start)
    if workers and others > BUSY:
        LOG.warning("other processes kept %.1f cores busy: these figures are unreliable", others)
    for row in rows.values():
        if "failed" in row:
            row.pop("rounds", None)
        else:
            _summarise(row, spec, cell, others)
    _compare_outputs(list(rows.values()))
    return list(rows.values())


def _load(
    stack: ExitStack,
    spec: ModelSpec,
    cell: Cell,
    threads: int,
    rows: dict[str, dict[str, Any]],
    cache: Path,
) -> list[Worker]:
    workers = []
    for peer, row in rows.items():
        try:
            worker = stack.enter_context(Worker(spec, peer, cell, threads, cache))
        except WorkerError as error:
            row["failed"] = str(error)
            LOG.warning("%s %s, %d threads, %s: %s", spec.name, cell, threads, peer, error)
            continue
        row.update(
            load_seconds=worker.hello["load_seconds"],
            embedding=worker.hello["embedding"],
            rounds=[],
        )
        workers.append(worker)
    return workers


def _summarise(row: dict[str, Any], spec: ModelSpec, cell: Cell, others: float) -> None:
    turns = row.pop("rounds")
    times = [value for turn in turns for value in turn]
    row["other_load_cores"] = round(max(others, 0.0), 2)
    row["median_ms"] = round(statistics.median(times), 4)
    row["min_ms"] = round(min(times), 4)
    row["runs"] = len(times)
    row["round_medians_ms"] = [round(statistics.median(turn), 4) for turn in turns]
    row["gmacs"] = round(spec.macs(cell) / row["median_ms"] * 1e-6, 1)
    LOG.info(
        "%-10s %6s  %d threads  %-26s %9.3f ms (min %.3f)",
        *(spec.name, cell, row["threads"], row["peer"], row["median_ms"], row["min_ms"]),
    )


def _compare_outputs(rows: list[dict[str, Any]]) -> None:
    """Replace each embedding by its cosine to PyTorch's: fast but wrong is of no interest."""
    embeddings = {row["peer"]: row.pop("embedding") for row in rows if "embedding" in row}
    reference = embeddings.get("pytorch-fp32")
    for row in rows:
        own = embeddings.get(row["peer"])
        if own is None or reference is None or len(own) != len(reference):
            continue
        cosine = np.dot(own, reference) / (np.linalg.norm(own) * np.linalg.norm(reference))
        row["cosine_to_pytorch"] = round(float(cosine), 5)
