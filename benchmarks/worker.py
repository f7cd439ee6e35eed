"""One peer in a process of its own: builds its artefact, or loads it and runs when told to.

Started by ``benchmarks.cpu``; the two speak JSON lines over standard input and output. Whatever the
runtimes print goes to standard error.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import TextIO

__all__ = ["main"]


def _memory_mib(field: str) -> float | None:
    """A field of /proc/self/status in MiB: VmRSS (resident now) or VmHWM (its peak)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return round(int(line.split()[1]) / 1024, 1)
    return None


def _build(model: str, peer_name: str, cell_text: str, cache: Path) -> None:
    from benchmarks.models import MODELS, Cell, model_folder
    from benchmarks.peers import PEERS

    spec, cell, peer = MODELS[model], Cell.parse(cell_text), PEERS[peer_name]
    folder = peer.artefact(spec, cell, cache)
    stamp, fingerprint = folder / "fingerprint.json", peer.fingerprint(spec, cell)
    if stamp.exists() and stamp.read_text() == fingerprint:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    start = time.perf_counter()
    peer.build(spec, cell, model_folder(spec, cache), folder, cache)
    seconds = time.perf_counter() - start
    (folder / "build.json").write_text(
        json.dumps({"seconds": round(seconds, 1), "peak_mib": _memory_mib("VmHWM")})
    )
    stamp.write_text(fingerprint)


def _embedding(output: object) -> list[float]:
    """The first row's mean over its tokens: enough to compare peers with the float model."""
    import numpy as np

    first = np.asarray(output)[0].astype(np.float64)
    return [float(value) for value in (first if first.ndim == 1 else first.mean(axis=0))]


def _serve(
    model: str, peer_name: str, cell_text: str, threads: int, cache: Path, replies: TextIO
) -> None:
    # The cores that the process may use are those it has threads for.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    os.environ["OMP_NUM_THREADS"] = str(threads)
    from benchmarks.models import MODELS, Cell
    from benchmarks.peers import PEERS

    spec, cell, peer = MODELS[model], Cell.parse(cell_text), PEERS[peer_name]
    start = time.perf_counter()
    run = peer.load(peer.artefact(spec, cell, cache), spec, cell, threads)
    load_seconds = time.perf_counter() - start
    output = run()

    def reply(message: dict[str, object]) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    reply(
        {
            "load_seconds": round(load_seconds, 3),
            "embedding": _embedding(output),
            "shape": list(output.shape),
        }
    )
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "quit":
            break
        used = time.process_time()
        warm_until = time.perf_counter() + command["warm_up"]
        while True:  # at least once: another process had the caches meanwhile
            run()
            if time.perf_counter() >= warm_until:
                break
        times: list[int] = []
        end = time.perf_counter_ns() + int(command["seconds"] * 1e9)
        while True:
            begin = time.perf_counter_ns()
            run()
            now = time.perf_counter_ns()
            times.append(now - begin)
            if now >= end and len(times) >= command["least"]:
                break
        reply(
            {
                "times_ms": [round(value * 1e-6, 4) for value in times],
                "processor_seconds": time.process_time() - used,
                "resident_mib": _memory_mib("VmRSS"),
                "peak_mib": _memory_mib("VmHWM"),
            }
        )


def main() -> None:
    """Run as ``build MODEL PEER CELL CACHE`` or ``serve MODEL PEER CELL THREADS CACHE``."""
    # Runtimes print to standard output at will: keep it for the replies.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    action, *arguments = sys.argv[1:]
    if action == "build":
        model, peer, cell, cache = arguments
        _build(model, peer, cell, Path(cache))
    else:
        model, peer, cell, threads, cache = arguments
        _serve(model, peer, cell, int(threads), Path(cache), replies)
    # Some runtimes hang or crash while their thread pools are torn down; nothing is left to do.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
