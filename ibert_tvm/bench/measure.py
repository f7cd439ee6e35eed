"""What `ibert bench` measures of a library, wherever it runs: here, on a GPU or on a board."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ..common.errors import UsageError
from ..common.strict_json import JsonDict
from ..encoder import Encoder
from ..model.model_info import REAL_INPUTS
from ..model.roles import block_of, role_of
from ..runtime import Library, load_library
from ..runtime.device import choose_device
from ..runtime.inputs import check_inputs
from ..runtime.metadata import FunctionRecord, LibraryMetadata
from ..runtime.threads import configure_threads, default_threads
from .ceiling import Ceiling, can_measure_ceiling, measure_ceiling
from .latency import Latency, full_batch, measure_latency, text_batches

if TYPE_CHECKING:
    from ibert_tvm.targets.rpc import Address

    from ..runtime.cuda_context import CudaContext
    from ..runtime.cuda_engine import CudaEngine
    from ..runtime.engine import ObservableEngine
    from ..runtime.metadata import FunctionRecord, KernelRecord
    from ..runtime.plain_gpu_engine import PlainGpuEngine
    from ..runtime.remote_engine import RemoteContext, RemoteEngine
    from .ceiling import Ceiling
    from .latency import Batch

# Where the time of a call goes: by kernel, by kind, by role, by layer.

OUTSIDE = "outside of kernels"
"""Name of what is no kernel: input checks, copies, the virtual machine."""

_RUNTIME = "vm."
_LEAST_RUNS = 5


@dataclass(frozen=True)
class Part:
    """Some kernel calls of one run, together.

    Attributes
    ----------
    name
        The kernel's, or that of what they have in common.
    kind, layer
        Of a single kernel; empty for several of different ones.
    calls
        Kernel calls per run.
    milliseconds
        Time per run.
    share
        Of the whole run, 0 to 1.
    macs
        Multiply-accumulates per run.
    num_bytes
        Per run, what kernels read and write, each argument and result once; 0 where that is not
        known.
    """

    name: str
    kind: str
    layer: str
    calls: int
    milliseconds: float
    share: float
    macs: int
    num_bytes: int = 0

    @property
    def gmacs(self) -> float | None:
        """10^9 multiply-accumulates per second; None for parts without matrix products."""
        return self.macs / self.milliseconds * 1e-6 if self.macs and self.milliseconds else None

    @property
    def gbytes(self) -> float | None:
        """10^9 bytes per second; None where they are not known."""
        known = self.num_bytes and self.milliseconds
        return self.num_bytes / self.milliseconds * 1e-6 if known else None

    @property
    def macs_per_byte(self) -> float | None:
        """Multiply-accumulates per byte read or written; None without either."""
        return self.macs / self.num_bytes if self.macs and self.num_bytes else None

    def to_json(self, known: bool, ceiling: Ceiling) -> JsonDict:
        """All that is said of it, without rates where the work is not `known` for padding."""
        gmacs = self.gmacs if known else None
        return {
            "name": self.name,
            "kind": self.kind,
            "layer": self.layer,
            "calls": self.calls,
            "ms": self.milliseconds,
            "share": self.share,
            "macs": self.macs,
            "gmacs": gmacs,
            "bytes": self.num_bytes or None,
            "gbytes_per_second": self.gbytes if known else None,
            "macs_per_byte": self.macs_per_byte if known else None,
            "of_ceiling": ceiling.fraction(gmacs),
        }


@dataclass(frozen=True)
class Profile:
    """Every kernel call of a run in order, then what is left.

    Attributes
    ----------
    parts
        One per call; the last is `OUTSIDE`. Their shares sum to 1.
    """

    parts: tuple[Part, ...]

    def by(self, key: Callable[[Part], str]) -> list[Part]:
        """Sum the parts of equal key, in order of first appearance."""
        groups: dict[str, list[Part]] = {}
        for part in self.parts:
            groups.setdefault(key(part), []).append(part)
        return [_sum(name, parts) for name, parts in groups.items()]

    def by_kind(self) -> list[Part]:
        """By kind of kernel, the longest first."""
        return sorted(self.by(lambda part: part.kind or OUTSIDE), key=lambda part: -part.share)

    def by_role(self) -> list[Part]:
        """By place, repeated layers together (``encoder.layer.*.output.dense``)."""
        return self.by(lambda part: role_of(part.layer) or part.name)

    def by_block(self) -> list[Part]:
        """By repeated layer (``encoder.layer.3``); else by first word (``embeddings``)."""
        return self.by(lambda part: block_of(part.layer) or part.name)

    def to_json(self, known: bool, ceiling: Ceiling) -> dict[str, list[JsonDict]]:
        """All calls, and their sums; as for `Part.to_json`."""
        groups = {
            "kernels": self.parts,
            "by_kind": self.by_kind(),
            "by_role": self.by_role(),
            "by_layer": self.by_block(),
        }
        return {
            name: [part.to_json(known, ceiling) for part in parts] for name, parts in groups.items()
        }


def _sum(name: str, parts: Sequence[Part]) -> Part:
    def common(values: set[str]) -> str:
        return values.pop() if len(values) == 1 else ""

    return Part(
        name,
        common({part.kind for part in parts}),
        common({part.layer for part in parts}),
        sum(part.calls for part in parts),
        sum(part.milliseconds for part in parts),
        sum(part.share for part in parts),
        sum(part.macs for part in parts),
        sum(part.num_bytes for part in parts) if all(p.num_bytes for p in parts if p.calls) else 0,
    )


def measure_layers(
    library: Library, batch: Batch, records: Sequence[KernelRecord], seconds: float
) -> Profile:
    """Time every kernel call of runs on one batch.

    Observed and unobserved runs take turns, and of both the faster half counts, so that what else
    the machine does spoils neither. What an unobserved run exceeds the kernels by is `OUTSIDE`:
    observing lengthens the time between kernels, not the kernels.

    Parameters
    ----------
    library
        The library, warmed up, on this machine.
    batch
        Inputs of one call.
    records
        What the metadata says about the kernel calls, in order; a call that does not fit them
        keeps its name.
    seconds
        How long to measure.
    """
    engine = cast("ObservableEngine", library.engine)
    observed: list[list[tuple[str, int]]] = []
    plain: list[int] = []
    end = time.perf_counter() + seconds
    while len(observed) < _LEAST_RUNS or time.perf_counter() < end:
        calls: list[tuple[str, int]] = []

        def observe(name: str, nanoseconds: int, calls: list[tuple[str, int]] = calls) -> None:
            if not name.startswith(_RUNTIME):
                calls.append((name, nanoseconds))

        with engine.observed(observe):
            library.run(**batch.inputs, dequantize=False)
        observed.append(calls)
        start = time.perf_counter_ns()
        library.run(**batch.inputs, dequantize=False)
        plain.append(time.perf_counter_ns() - start)
    observed.sort(key=lambda calls: sum(taken for _, taken in calls))
    runs = observed[: (len(observed) + 1) // 2]
    # Runs of one batch make the same calls, so that they can be averaged call by call.
    names = [name for name, _ in runs[0]]
    means = [statistics.fmean(run[i][1] for run in runs) * 1e-6 for i in range(len(names))]
    kernels = sum(means)
    fast: list[int] = sorted(plain)[: (len(plain) + 1) // 2]
    whole = max(statistics.fmean(fast) * 1e-6, kernels)
    parts = []
    listed = _matched(names, records)
    for name, milliseconds, record in zip(names, means, listed, strict=True):
        kind, layer, macs, num_bytes = (
            (record.kind, record.layer, record.macs, record.num_bytes)
            if record
            else ("unlisted", "", 0, 0)
        )
        share = milliseconds / whole
        parts.append(Part(name, kind, layer, 1, milliseconds, share, macs, num_bytes))
    parts.append(Part(OUTSIDE, "", "", 0, whole - kernels, 1 - kernels / whole, 0))
    return Profile(tuple(parts))


def _matched(names: Sequence[str], records: Sequence[KernelRecord]) -> list[KernelRecord | None]:
    """What is known of every call; layers share kernels, so that the order tells them apart."""
    if [record.name for record in records] == list(names):
        return list(records)
    known = {record.name: record for record in records}
    return [known.get(name) for name in names]


# Strings in, vectors out: `Encoder` with a library, beside sentence-transformers' own model.
#
# Both do all that a user waits for (tokenising, sorting by length, batches), with as many threads,
# and take turns, so that a change of the machine's speed touches both alike.

_LEAST_ROUNDS = 3
_BATCH_SIZE = 32


@dataclass(frozen=True)
class Rate:
    """How fast the texts were turned into vectors.

    Attributes
    ----------
    name
        ``ibert`` or ``sentence-transformers``.
    threads
        Threads that it was given.
    texts
        Texts of a round.
    seconds
        Of every round.
    """

    name: str
    threads: int
    texts: int
    seconds: tuple[float, ...]

    @property
    def per_second(self) -> float:
        """Texts per second, by the median round."""
        return self.texts / statistics.median(self.seconds)

    def to_json(self, first: Rate) -> JsonDict:
        """What was measured, and how many times as fast the first one is."""
        return {
            "name": self.name,
            "threads": self.threads,
            "texts": self.texts,
            "rounds": len(self.seconds),
            "texts_per_second": self.per_second,
            "times_as_fast": first.per_second / self.per_second,
        }


def measure_sentences(
    library: Library, texts: Sequence[str], seconds: float, against: Path | None = None
) -> list[Rate]:
    """Time both on all texts, in turns.

    Parameters
    ----------
    library
        Gives vectors; its number of threads is that of both.
    texts
        What a round encodes.
    seconds
        How long to measure each; three rounds at least.
    against
        Folder of the float model, for sentence-transformers.

    Returns
    -------
    list of Rate
        The library's, and the float model's if there is one.
    """
    encoder = Encoder(library)
    given = list(texts)
    calls: dict[str, Callable[[], object]] = {
        "ibert": lambda: encoder.encode(given, batch_size=_BATCH_SIZE, show_progress_bar=False)
    }
    with _torch_threads(library.num_threads if against is not None else None):
        if against is not None:
            from sentence_transformers import SentenceTransformer

            model = SentenceTransformer(str(against), device="cpu")
            # Both cut long texts off at the same length, so that both compute as many tokens.
            model.max_seq_length = min(
                model.max_seq_length or encoder.max_seq_length, encoder.max_seq_length
            )
            calls["sentence-transformers"] = lambda: model.encode(
                given, batch_size=_BATCH_SIZE, show_progress_bar=False
            )
        for call in calls.values():  # first calls make buffers and choose kernels
            call()
        times: dict[str, list[float]] = {name: [] for name in calls}
        while any(len(store) < _LEAST_ROUNDS or sum(store) < seconds for store in times.values()):
            # In alternating order: the second one finds other caches.
            names = list(calls) if len(times["ibert"]) % 2 == 0 else list(calls)[::-1]
            for name in names:
                started = time.perf_counter()
                calls[name]()
                times[name].append(time.perf_counter() - started)
    return [
        Rate(name, library.num_threads, len(given), tuple(store)) for name, store in times.items()
    ]


@contextmanager
def _torch_threads(count: int | None) -> Iterator[None]:
    """Give torch so many threads in the block; with None it is not imported."""
    if count is None:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# Latency of a library on a board, without the network.

_INPUTS = ("input_ids", "attention_mask", "token_type_ids", *REAL_INPUTS)


def measure_remote_latency(
    library: Library, function: FunctionRecord, batches: Sequence[Batch], seconds: float
) -> Latency:
    """Let the board time a compiled function on each batch, with its inputs in place.

    Parameters
    ----------
    library
        On a board (`ibert_tvm.runtime.remote_engine.load_remote`).
    function
        The function; its shape is that of the batches.
    batches
        All of the same number of rows.
    seconds
        How long to measure, about; at least three calls on each batch.
    """
    times = []
    for batch in batches:
        given = {name: batch.inputs.get(name) for name in _INPUTS}
        checked = check_inputs(library.metadata, given)
        arrays = [
            np.ascontiguousarray(checked[record.name], dtype=record.dtype)
            for record in library.metadata.inputs
        ]
        with library.contexts.lent() as context:
            taken = cast("RemoteContext", context).time(function, arrays, seconds / len(batches))
        times.append(tuple(value * 1e3 for value in taken))
    tokens = tuple(batch.tokens for batch in batches)
    return Latency(tuple(times), tokens, batches[0].rows)


# What is measured on a GPU only: the time that a run takes there.

_BURST_MS = 20.0
_MOST_RUNS = 1000
_LEAST_BURSTS = 3


def measure_gpu_time(library: Library, function: FunctionRecord, seconds: float) -> float:
    """Time a run on the GPU, copies of inputs and outputs included, the host's work not.

    Runs are queued one behind the other, in bursts of some milliseconds, and CUDA's events at both
    ends of a burst take the time. What a call's latency exceeds it by is the host's: checking
    inputs, padding them, launching, waiting, copying outputs.

    Parameters
    ----------
    library
        On a GPU; the function has been run before, and no other thread uses the library.
    function
        The function.
    seconds
        How long to measure, about.

    Returns
    -------
    float
        Milliseconds, the median of all bursts.
    """
    with library.contexts.lent() as lent:
        context = cast("CudaContext", lent)
        once = context.time_ms(function, 1)
        runs = max(1, min(_MOST_RUNS, round(_BURST_MS / max(once, 1e-3))))
        bursts: list[float] = []
        end = time.perf_counter() + seconds
        while len(bursts) < _LEAST_BURSTS or time.perf_counter() < end:
            bursts.append(context.time_ms(function, runs))
    return statistics.median(bursts)


def describe_gpu(library: Library) -> dict[str, object]:
    """The GPU that a library is loaded on, for the report: its name and what it is.

    Parameters
    ----------
    library
        On a GPU.

    Returns
    -------
    dict
        ``device``, ``gpu`` (name), ``architecture`` and ``multiprocessors``.
    """
    engine = cast("CudaEngine | PlainGpuEngine", library.engine)
    return {
        "device": engine.device,
        "gpu": engine.name,
        "architecture": engine.architecture,
        "multiprocessors": engine.multiprocessors,
    }


_Loaded = tuple[Library, Ceiling]


@dataclass(frozen=True)
class Job:
    """What is measured, how long, and where.

    Attributes
    ----------
    metadata
        Of the library.
    functions
        The compiled shapes.
    seconds
        For each of them.
    threads
        Counts to measure with, in turn; None for what the library takes by default.
    texts
        Real inputs; None for full rows.
    per_layer
        Whether to observe kernels, too.
    against
        Folder of the float model, to compare with from strings to vectors.
    device, address, timeout
        See `ibert_tvm.runtime.load_library` and `ibert_tvm.runtime.remote_engine.load_remote`.
    """

    metadata: LibraryMetadata
    functions: Sequence[FunctionRecord]
    seconds: float = 2.0
    threads: Sequence[int] | None = None
    texts: Sequence[str] | None = None
    per_layer: bool = False
    against: Path | None = None
    device: str | None = None
    address: Address | None = None
    timeout: float = 60.0

    @property
    def on_gpu(self) -> bool:
        """Whether the library runs on a GPU of this machine."""
        return self.address is None and choose_device(self.metadata, self.device).kind == "cuda"

    @property
    def counts(self) -> list[int | None]:
        """Numbers of threads to load the library with."""
        if self.threads is not None:
            return [*self.threads]
        if self.address is not None or self.on_gpu:
            return [None]
        # More are refused when a library without threads is loaded.
        return [default_threads() if self.metadata.threads else 1]

    def loaded(self) -> Iterator[_Loaded]:
        """Load the library with each number of threads, and say what limits it there."""
        path = self.metadata.path
        if self.address is not None:
            from ..runtime.remote_engine import load_remote

            for wanted in self.counts:
                with load_remote(path, self.address, wanted, self.timeout) as library:
                    yield library, Ceiling(missing="boards are not asked for their limit")
        elif self.on_gpu:
            # A number of threads is refused there.
            yield load_library(path, num_threads=self.counts[0], device=self.device), Ceiling()
        else:
            counts = [count for count in self.counts if count is not None]
            if can_measure_ceiling():  # its pool never grows beyond what it is first asked for
                configure_threads(max(counts))
            for count in counts:
                yield load_library(path, num_threads=count), measure_ceiling(count)

    def row(self, library: Library, function: FunctionRecord, ceiling: Ceiling) -> JsonDict:
        """Measure one shape."""
        if self.texts is None:
            batches = [full_batch(self.metadata, function.batch, function.seq_len)]
        else:
            encoded = library.encode(self.texts, max_length=function.seq_len)
            batches = text_batches(self.metadata, encoded, function.batch, function.seq_len)
        if self.address is not None:
            latency = measure_remote_latency(library, function, batches, self.seconds)
        else:
            latency = measure_latency(library, batches, self.seconds)
        real = sum(b.tokens for b in batches) / sum(b.places for b in batches)
        # Padding makes the work uncertain.
        gmacs = function.macs / latency.median_ms * 1e-6 if function.macs and real == 1 else None
        row: JsonDict = {
            "function": function.name,
            "batch": function.batch,
            "seq_len": function.seq_len,
            "threads": None if self.on_gpu else library.num_threads,
            "real_tokens": real,
            **latency.to_json(),
            "macs": function.macs or None,
            "gmacs": gmacs,
            "of_ceiling": ceiling.fraction(gmacs),
        }
        if self.per_layer:
            profile = measure_layers(library, batches[0], function.kernels, self.seconds)
            row["layers"] = profile.to_json(real == 1, ceiling)
        if self.on_gpu and self.metadata.runtime == "tvm":
            row["gpu_ms"] = measure_gpu_time(library, function, self.seconds / 4)
        return row

    def sentences(self, library: Library) -> list[JsonDict]:
        """From strings to vectors, if there are texts and the model gives vectors."""
        if self.texts is None or self.address is not None or self.on_gpu:
            return []
        if Encoder(library).embedding_size is None:
            return []
        rates = measure_sentences(library, self.texts, self.seconds, self.against)
        return [rate.to_json(rates[0]) for rate in rates]

    def machine(self, library: Library) -> JsonDict:
        """What the library ran on."""
        if self.address is not None:
            board = cast("RemoteEngine", library.engine).description
            return {
                "system": f"{board.machine}, TVM {board.tvm_version or '?'}",
                "processor": f"board {self.address}",
                "processors": board.processors,
                "load_average": None,
            }
        return this_machine() | (describe_gpu(library) if self.on_gpu else {})


@dataclass
class Measured:
    """Rows of results, and the machine that they are of."""

    rows: list[JsonDict] = field(default_factory=list)
    ceilings: dict[int, Ceiling] = field(default_factory=dict)
    machine: JsonDict = field(default_factory=dict)
    sentences: list[JsonDict] = field(default_factory=list)


def measure(job: Job, turn: Callable[[FunctionRecord, Library], None]) -> Measured:
    """Measure every shape with every number of threads; `turn` is told what comes next."""
    found = Measured()
    with closing(cast("Any", job.loaded())) as loads:
        for library, ceiling in loads:
            for function in job.functions:
                turn(function, library)
                found.rows.append(job.row(library, function, ceiling))
            if not job.on_gpu:
                found.ceilings[library.num_threads] = ceiling
            found.sentences += job.sentences(library)
            found.machine = job.machine(library)
    return found


def this_machine() -> JsonDict:
    """System, processor, its number, and how busy it is."""
    from ibert_tvm.targets import TargetError, get_target

    try:
        processor = get_target("host").description
    except TargetError as error:
        processor = error.why
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": processor,
        "processors": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg()[0],
    }


def chosen_functions(
    metadata: LibraryMetadata, batches: Sequence[int] | None, lengths: Sequence[int] | None
) -> list[FunctionRecord]:
    """The compiled shapes of some batch sizes and lengths; a `UsageError` if there is none."""
    chosen = [
        function
        for function in metadata.functions
        if (batches is None or function.batch in batches)
        and (lengths is None or function.seq_len in lengths)
    ]
    if not chosen:
        there = ", ".join(f"{f.batch}x{f.seq_len}" for f in metadata.functions)
        raise UsageError(
            "no compiled shape is left to measure",
            where=str(metadata.path),
            why=f"the library has the shapes {there} (batch x tokens)",
            todo="give a --batch and a --seq-len of these, or neither to measure all of them",
        )
    return chosen
