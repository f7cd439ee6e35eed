"""One peer with one model on the GPU, in a process of its own: does what it is told to.

Started by the benchmark as ``PEER MODEL DIR``; the two speak JSON lines over standard input and
output. A process keeps its model while the cells change, so that loading is paid once a model.

    {"do": "cell", "cell": "1x128"}                            get ready; check the output
    {"do": "turn", "seconds": 0.3, "warm_up": 0.1, "least": 5}  run and time
    {"do": "kernels", "runs": 5}                               time single kernels
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.models import Cell
from benchmarks.worker import _Reply

from .cells import SPECS, cosine
from .peers import PEERS
from .peers.base import CellRun, Loaded
from .prepared import Prepared, hash_integers

__all__ = ["Server", "main"]


def _milliseconds(run: Callable[[], None]) -> float:
    begin = time.perf_counter_ns()
    run()
    return (time.perf_counter_ns() - begin) * 1e-6


class Server:
    """Answers the messages of the measuring process.

    Parameters
    ----------
    loaded : Loaded
        The peer with its model.
    model : str
        The model's name.
    prepared : Prepared
        Where the reference outputs are.
    """

    def __init__(self, loaded: Loaded, model: str, prepared: Prepared) -> None:
        self._loaded, self._model, self._prepared = loaded, model, prepared
        self._run: CellRun | None = None

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """Do what a message says.

        Returns
        -------
        dict
            What the peer found out; ``{"failed": reason}`` if it could not.
        """
        kind = message.pop("do")
        try:
            actions: dict[str, Callable[..., dict[str, Any]]] = {
                **{"cell": self.cell, "turn": self.turn, "kernels": self.kernels}
            }
            return actions[kind](**message)
        except Exception as error:  # a peer that fails in one cell serves the others
            text = str(error).strip().splitlines()
            return {"failed": f"{type(error).__name__}: {text[0] if text else ''}"}

    def cell(self, cell: str) -> dict[str, Any]:
        """Get ready for a cell.

        Returns
        -------
        dict
            ``prepare_seconds``, ``estimate_ms`` of a call, ``device_only`` (whether runs without
            copies can be timed), ``cosine`` to the float model's output, ``bit_exact`` (whether
            the integers are those of the specification; null for a peer without integers, or
            where no reference was prepared), ``texts_exact`` (`CellRun.texts_exact` of a peer that
            leaves padding out, else null).
        """
        self._run = None  # its memory is given back before more is taken
        shape = Cell.parse(cell)
        started = time.perf_counter()
        run = self._loaded.cell(shape)
        seconds = time.perf_counter() - started
        run.call()
        estimate = _milliseconds(run.call)
        self._run = run
        expected = self._prepared.expected(self._model, shape)
        integers = run.integers()
        exact = None
        if integers is not None and expected is not None:
            exact = hash_integers(integers) == expected.integers
        with run.texts() as unpadded:
            pass
        return {
            "texts_exact": run.texts_exact() if unpadded else None,
            "prepare_seconds": round(seconds, 3),
            "estimate_ms": round(estimate, 4),
            "device_only": run.has_device_only,
            "cosine": None if expected is None else round(cosine(run.output(), expected.pooled), 5),
            "bit_exact": exact,
        }

    def _ready(self) -> CellRun:
        if self._run is None:
            raise RuntimeError("no cell was prepared")
        return self._run

    def turn(self, seconds: float, warm_up: float, least: int) -> dict[str, Any]:
        """Run for a while; calls, and where the peer can runs without copies, by turns.

        Returns
        -------
        dict
            ``call_ms`` and ``device_ms``: milliseconds of every run, ``texts_ms`` of calls with
            texts of real lengths (`CellRun.texts`); ``peak_mib`` of host memory.
        """
        run = self._ready()
        kinds = {"call_ms": run.call}
        if run.has_device_only:
            kinds["device_ms"] = run.on_device
        until = time.perf_counter() + warm_up
        while True:  # at least once: another process had the GPU meanwhile
            run.call()
            if time.perf_counter() >= until:
                break
        times: dict[str, list[float]] = {name: [] for name in kinds}
        until = time.perf_counter() + seconds
        while True:
            for name, action in kinds.items():
                times[name].append(_milliseconds(action))
            if time.perf_counter() >= until and len(times["call_ms"]) >= least:
                break
        with run.texts() as unpadded:
            if unpadded:
                run.call()
                times["texts_ms"] = [_milliseconds(run.call) for _ in times["call_ms"]]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        rounded = {name: [round(value, 5) for value in values] for name, values in times.items()}
        return {**rounded, "peak_mib": round(peak, 1)}

    def kernels(self, runs: int) -> dict[str, Any]:
        """Time single kernels: ``kernels``, null for a peer that cannot."""
        return {"kernels": self._ready().kernel_times(runs)}


def main() -> None:
    """Serve as ``PEER MODEL DIR`` until standard input ends."""
    # Runtimes print to standard output at will: keep it for the replies.
    reply = _Reply(os.fdopen(os.dup(1), "w"))
    os.dup2(2, 1)
    name, model, root = sys.argv[1:]
    import json

    prepared = Prepared(Path(root))
    started = time.perf_counter()
    server = Server(PEERS[name].load(prepared, SPECS[model]), model, prepared)
    reply({"load_seconds": round(time.perf_counter() - started, 2)})
    for line in sys.stdin:
        reply(server.answer(json.loads(line)))
    sys.stderr.flush()
    os._exit(0)  # runtimes may hang while they are torn down; nothing is left to do


if __name__ == "__main__":
    main()
