"""One cell on the GPU: all peers loaded, taking turns."""

from __future__ import annotations

import logging
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import Any

from benchmarks.arm.report import role
from benchmarks.effort import Effort
from benchmarks.process import Served, WorkerError

from .cells import Task
from .peers import BASELINE, PEERS
from .prepared import Prepared
from .sensors import Sensors

__all__ = ["GpuWorker", "by_role", "measure_cell", "workers", "wrong"]

LOG = logging.getLogger("benchmarks.cuda")
_KERNEL_RUNS = 9


class GpuWorker(Served):
    """A peer with a model on the GPU.

    Attributes
    ----------
    peer : str
        Its name.
    hello : dict
        ``load_seconds``.
    """

    def __init__(self, peer: str, model: str, prepared: Prepared) -> None:
        self.peer = peer
        root = str(prepared.root.resolve())
        super().__init__([sys.executable, "-m", "benchmarks.cuda.worker", peer, model, root])


Start = Callable[[str, str, Prepared], GpuWorker]


@contextmanager
def workers(
    model: str, peers: list[str], prepared: Prepared, start: Start = GpuWorker
) -> Iterator[tuple[list[GpuWorker], dict[str, str]]]:
    """Processes with a model, one per peer, for the time of a ``with``.

    Yields
    ------
    started : list of GpuWorker
        In the order of `peers`.
    failed : dict of str to str
        Why others could not be started.
    """
    started: list[GpuWorker] = []
    failed: dict[str, str] = {}
    with ExitStack() as stack:
        for peer in peers:
            try:
                started.append(stack.enter_context(start(peer, model, prepared)))
            except WorkerError as error:
                failed[peer] = str(error)
                LOG.warning("%s, %s: %s", model, peer, error)
        yield started, failed


def measure_cell(
    task: Task,
    loaded: list[GpuWorker],
    effort: Effort,
    sensors: Sensors,
    in_time: Callable[[], bool] = lambda: True,
) -> list[dict[str, Any]]:
    """Measure a cell.

    Parameters
    ----------
    task : Task
        The cell.
    loaded : list of GpuWorker
        The peers, with the task's model.
    effort : Effort
        How often.
    sensors : Sensors
        Read after every turn.
    in_time : callable
        Says whether there is time for another round; the first one is made in any case.

    Returns
    -------
    list of dict
        One row per peer: ``median_ms``, ``min_ms``, ``runs``, ``round_medians_ms`` of calls,
        ``device_median_ms`` and ``device_min_ms`` of runs without copies where they can be timed,
        ``texts_median_ms`` and ``texts_min_ms`` of calls with texts of real lengths by a peer that
        leaves padding out, ``tops``, ``load_seconds``, ``prepare_seconds``, ``cosine``,
        ``bit_exact``, ``texts_exact``, ``sensors`` (one reading a round), ``kernels`` as of
        `by_role`; or ``failed`` with the reason.
    """
    rows: dict[str, dict[str, Any]] = {}
    for worker in loaded:
        row: dict[str, Any] = {"model": task.model, "cell": str(task.cell), "peer": worker.peer}
        rows[worker.peer] = {
            **row,
            **{"load_seconds": worker.hello["load_seconds"], "sensors": []},
            **_ask(worker, {"do": "cell", "cell": str(task.cell)}, 600),
        }
    turns: dict[str, list[Mapping[str, Any]]] = {name: [] for name in rows}
    for number in range(effort.rounds):
        if number > 0 and not in_time():
            break
        # Every other round backwards, so that no peer always follows the same one.
        for worker in loaded if number % 2 == 0 else reversed(loaded):
            row = rows[worker.peer]
            if "failed" in row:
                continue
            turn = asdict(effort.turn(row["estimate_ms"]))
            said = _ask(worker, {"do": "turn", **turn}, 300 + 10 * turn["seconds"])
            row["sensors"].append(sensors.read())
            if "failed" in said:
                row["failed"] = said["failed"]
            else:
                turns[worker.peer].append(said)
    for worker in loaded:
        row = rows[worker.peer]
        if "failed" not in row:
            _summarise(row, turns[worker.peer], task)
            said = _ask(worker, {"do": "kernels", "runs": _KERNEL_RUNS}, 600)
            if said.get("kernels"):
                row["kernels"] = by_role(said["kernels"])
            elif "failed" in said:  # the latency was measured all the same
                row["kernels_failed"] = said["failed"]
                LOG.warning("%s, %s: kernels: %s", task, worker.peer, said["failed"])
        else:
            LOG.warning("%s, %s: %s", task, worker.peer, row["failed"])
    return list(rows.values())


def _ask(worker: GpuWorker, message: dict[str, Any], timeout: float) -> dict[str, Any]:
    try:
        return worker.ask(message, timeout)
    except (WorkerError, BrokenPipeError) as error:
        return {"failed": str(error) or type(error).__name__}


def _summarise(row: dict[str, Any], turns: list[Mapping[str, Any]], task: Task) -> None:
    calls = [list(turn["call_ms"]) for turn in turns]
    every = [value for turn in calls for value in turn]
    row["median_ms"] = round(statistics.median(every), 5)
    row["min_ms"] = round(min(every), 5)
    row["runs"] = len(every)
    row["round_medians_ms"] = [round(statistics.median(turn), 5) for turn in calls]
    for kind in ("device", "texts"):
        values = [value for turn in turns for value in turn.get(f"{kind}_ms", ())]
        if values:
            row[f"{kind}_median_ms"] = round(statistics.median(values), 5)
            row[f"{kind}_min_ms"] = round(min(values), 5)
    row["peak_mib"] = max(turn["peak_mib"] for turn in turns)
    row["tops"] = round(2 * task.macs / row["median_ms"] * 1e-9, 2)
    problem = wrong(row)
    if problem:
        row["wrong"] = problem
        LOG.warning("%s, %s: %s", task, row["peer"], problem)
    LOG.info(
        "%-10s %6s  %-20s %9.4f ms (min %.4f)",
        *(task.model, str(task.cell), row["peer"], row["median_ms"], row["min_ms"]),
    )


def by_role(kernels: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Kernel calls of one run with those of repeated layers together, in order of first appearance.

    Returns
    -------
    list of dict
        ``role`` (``encoder.layer.*.output.dense``), ``kind``, ``calls``, and sums over the calls:
        ``macs``, ``bytes``, ``median_ms``, ``min_ms``.
    """
    grouped: dict[tuple[str, str], dict[str, Any]] = {}
    for call in kernels:
        key = (role(call["layer"]) or call["name"], call["kind"])
        sums = {"calls": 0, "macs": 0, "bytes": 0, "median_ms": 0.0, "min_ms": 0.0}
        entry = grouped.setdefault(key, {"role": key[0], "kind": key[1], **sums})
        entry["calls"] += 1
        for name in ("macs", "bytes", "median_ms", "min_ms"):
            entry[name] += call[name]
    for entry in grouped.values():
        for name in ("median_ms", "min_ms"):
            entry[name] = round(entry[name], 5)
    return list(grouped.values())


def wrong(row: Mapping[str, Any]) -> str:
    """What is wrong with a peer's output; empty if nothing is known to be."""
    if row.get("bit_exact") is False:
        return "its integers are not those of the integer specification"
    if row.get("texts_exact") is False:
        return "the integers of a text depend on where in a batch it is"
    least = PEERS[str(row["peer"])].least_cosine
    if row.get("cosine") is not None and row["cosine"] < least:
        return f"the cosine of its output to the float model's is {row['cosine']}, below {least}"
    if row["peer"] == BASELINE and row.get("bit_exact") is None:
        return "its integers were compared with nothing: no reference was prepared"
    return ""
