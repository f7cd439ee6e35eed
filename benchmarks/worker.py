"""One peer in a process of its own: builds its artefact, or loads it and runs when told to.

Started by the benchmark; the two speak JSON lines over standard input and output. Whatever the
runtimes print goes to standard error.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from benchmarks.models import Cell, ModelSpec

__all__ = ["main"]

# A run longer than this is its own estimate; a shorter one is repeated, now that it is warm.
_LONG_RUN_MS = 500.0
_MEMORY_FIELDS = {
    "VmHWM": "peak",
    "VmRSS": "resident",
    "RssAnon": "anonymous",
    "RssFile": "file_mapped",
    "RssShmem": "shared",
}


def _memory_mib() -> dict[str, float]:
    """Memory of this process by kind, MiB; ``peak`` is the largest resident set so far."""
    values = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in _MEMORY_FIELDS:
            values[_MEMORY_FIELDS[name]] = round(int(rest.split()[0]) / 1024, 1)
    return values


def _mappings(count: int = 12) -> list[dict[str, Any]]:
    """The largest resident mappings by name: files, ``[heap]``, and anonymous memory together."""
    resident: dict[str, float] = {}
    name = ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, _, rest = line.partition(" ")
        if not first.endswith(":"):  # the head of a mapping: addresses, mode, ..., name
            words = rest.split(maxsplit=4)
            name = words[4] if len(words) == 5 else "anonymous"
        elif first == "Rss:":
            resident[name] = resident.get(name, 0.0) + int(rest.split()[0]) / 1024
    largest = sorted(resident.items(), key=lambda item: -item[1])[:count]
    return [{"name": Path(name).name, "mib": round(mib, 1)} for name, mib in largest]


def _build(model: str, peer_name: str, cell_text: str, cache: Path) -> None:
    from benchmarks.models import MODELS, Cell, model_folder
    from benchmarks.peers import find_peer

    spec, cell, peer = MODELS[model], Cell.parse(cell_text), find_peer(peer_name)
    source = model_folder(spec, cache)
    peer.prepare(spec, source, cache)
    folder = peer.artefact(spec, cell, cache)
    stamp, fingerprint = folder / "fingerprint.json", peer.fingerprint(spec, cell, cache)
    if stamp.exists() and stamp.read_text() == fingerprint:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    start = time.perf_counter()
    peer.build(spec, cell, source, folder, cache)
    seconds = time.perf_counter() - start
    (folder / "build.json").write_text(
        json.dumps({"seconds": round(seconds, 1), "peak_mib": _memory_mib()["peak"]})
    )
    stamp.write_text(fingerprint)


def _embedding(output: object) -> list[float]:
    """The first row's mean over its tokens: enough to compare peers with the float model."""
    import numpy as np

    first = np.asarray(output)[0].astype(np.float64)
    return [float(value) for value in (first if first.ndim == 1 else first.mean(axis=0))]


def _restrict(threads: int) -> None:
    """Allow as many cores as there are threads: what else a runtime starts must share them."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    os.environ["OMP_NUM_THREADS"] = str(threads)


def _timed_ms(run: Callable[[], object]) -> float:
    begin = time.perf_counter_ns()
    run()
    return (time.perf_counter_ns() - begin) * 1e-6


def _serve(
    model: str,
    name: str,
    cell_text: str,
    threads: int,
    cache: Path,
    workload: str,
    reply: _Reply,
) -> None:
    """Load and run when told to: one cell, or a pass over texts (``lengths:BATCHES``)."""
    _restrict(threads)
    from benchmarks.models import MODELS, Cell

    spec, cell = MODELS[model], Cell.parse(cell_text)
    kind, _, count = workload.partition(":")
    start = time.perf_counter()
    if kind == "lengths":
        run, facts = _texts(spec, name, cell, threads, cache, int(count))
    else:
        run, facts = _cell(spec, name, cell, threads, cache)
    load_seconds = time.perf_counter() - start
    estimate = _timed_ms(run)
    if estimate < _LONG_RUN_MS:
        estimate = _timed_ms(run)
    hello = {"load_seconds": round(load_seconds, 3), "estimate_ms": round(estimate, 3)}
    reply({**hello, **facts()})
    for line in sys.stdin:
        _take_turn(run, json.loads(line), reply)


def _cell(
    spec: ModelSpec, peer_name: str, cell: Cell, threads: int, cache: Path
) -> tuple[Callable[[], object], Callable[[], dict[str, Any]]]:
    """What one run does, and what is said about it once it has run."""
    from benchmarks.peers import find_peer

    peer = find_peer(peer_name)
    run = peer.load(peer.artefact(spec, cell, cache), spec, cell, threads)
    inputs = cell.inputs()
    last: list[object] = [None]

    def once() -> None:
        last[0] = run(inputs)

    return once, lambda: {"embedding": _embedding(last[0])}


def _texts(
    spec: ModelSpec, variant_name: str, cell: Cell, threads: int, cache: Path, count: int
) -> tuple[Callable[[], object], Callable[[], dict[str, Any]]]:
    """The same for a pass over batches of sentences."""
    from benchmarks.lengths import VARIANTS, batches_for
    from benchmarks.models import model_folder
    from benchmarks.peers import find_peer

    variant = VARIANTS[variant_name]
    peer = find_peer(variant.peer)
    batches, tokens = batches_for(model_folder(spec, cache), variant.form, count)
    artefact = peer.artefact(spec, cell, cache)
    run = peer.load(artefact, spec, cell if variant.static else None, threads)

    def once() -> None:
        for inputs in batches:
            run(inputs)

    return once, lambda: {"tokens": tokens}


def _take_turn(run: Callable[[], object], command: dict[str, Any], reply: _Reply) -> None:
    used = time.process_time()
    if command["warm_up"] > 0:  # at least once: another process had the caches meanwhile
        warm_until = time.perf_counter() + command["warm_up"]
        while True:
            run()
            if time.perf_counter() >= warm_until:
                break
    times: list[float] = []
    end = time.perf_counter() + command["seconds"]
    while True:
        times.append(_timed_ms(run))
        if time.perf_counter() >= end and len(times) >= command["least"]:
            break
    reply(
        {
            "times_ms": [round(value, 4) for value in times],
            "processor_seconds": time.process_time() - used,
            "peak_mib": _memory_mib()["peak"],
        }
    )


def _measure_memory(
    model: str, peer_name: str, cell_text: str, threads: int, cache: Path, reply: _Reply
) -> None:
    """Memory before loading (Python and NumPy, the same for all), after it, and after five runs."""
    _restrict(threads)
    from benchmarks.models import MODELS, Cell
    from benchmarks.peers import find_peer

    spec, cell, peer = MODELS[model], Cell.parse(cell_text), find_peer(peer_name)
    inputs = cell.inputs()
    stages = {"start": _memory_mib()}
    run = peer.load(peer.artefact(spec, cell, cache), spec, cell, threads)
    stages["loaded"] = _memory_mib()
    for _ in range(5):
        run(inputs)
    stages["ran"] = _memory_mib()
    reply({"stages": stages, "mappings": _mappings()})


def _profile(
    model: str, peer_name: str, cell_text: str, threads: int, cache: Path, reply: _Reply
) -> None:
    """Where the time of this project goes; other runtimes have profilers of their own."""
    _restrict(threads)
    from benchmarks.models import MODELS, Cell
    from benchmarks.peers import find_peer
    from ibert_tvm.bench.latency import full_batch, measure_latency
    from ibert_tvm.bench.measure import measure_layers
    from ibert_tvm.runtime import load_library

    spec, cell = MODELS[model], Cell.parse(cell_text)
    folder = find_peer(peer_name).artefact(spec, cell, cache)
    library = load_library(folder / "model.so", num_threads=threads)
    batch = full_batch(library.metadata, cell.batch, cell.seq_len)
    measure_latency(library, [batch], seconds=0.5)
    (function,) = library.metadata.functions
    profile = measure_layers(library, batch, function.kernels, seconds=2.0)
    reply(
        {
            name: [{**asdict(part), "gmacs": part.gmacs} for part in parts]
            for name, parts in (("by_kind", profile.by_kind()), ("by_role", profile.by_role()))
        }
    )


class _Reply:
    """Writes JSON lines to the process that started this one."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def __call__(self, message: dict[str, Any]) -> None:
        self.stream.write(json.dumps(message) + "\n")
        self.stream.flush()


def main() -> None:
    """Run as ``build MODEL PEER CELL CACHE`` or ``memory MODEL PEER CELL THREADS CACHE``.

    Or as ``profile`` with the same arguments, or as ``serve`` with a workload besides, ``cell``
    or ``lengths:BATCHES``.
    """
    # Runtimes print to standard output at will: keep it for the replies.
    reply = _Reply(os.fdopen(os.dup(1), "w"))
    os.dup2(2, 1)
    action, model, peer, cell, *rest = sys.argv[1:]
    if action == "build":
        _build(model, peer, cell, Path(rest[0]))
    elif action in ("memory", "profile"):
        work = _measure_memory if action == "memory" else _profile
        work(model, peer, cell, int(rest[0]), Path(rest[1]), reply)
    else:
        _serve(model, peer, cell, int(rest[0]), Path(rest[1]), rest[2], reply)
    # Some runtimes hang or crash while their thread pools are torn down; nothing is left to do.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
