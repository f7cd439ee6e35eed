"""What `ibert bench` measures of a library, wherever it runs: here, on a GPU or on a board."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ..common.errors import UsageError
from ..common.strict_json import JsonDict
from ..encoder import Encoder
from ..model.model_info import REAL_INPUTS
from ..runtime import Library, load_library
from ..runtime.device import choose_device
from ..runtime.inputs import check_inputs
from ..runtime.metadata import FunctionRecord, LibraryMetadata
from ..runtime.threads import configure_threads, default_threads
from .ceiling import Ceiling, measure_ceiling
from .inputs import full_batch, text_batches
from .latency import Latency, measure_latency
from .layers import measure_layers
from .sentences import measure_sentences

if TYPE_CHECKING:
    from ibert_tvm.targets.rpc import Address

    from ..runtime import Library
    from ..runtime.cuda_context import CudaContext
    from ..runtime.cuda_engine import CudaEngine
    from ..runtime.metadata import FunctionRecord
    from ..runtime.remote_engine import RemoteContext, RemoteEngine
    from .inputs import Batch

# Latency of a library on a board, without the network.

_INPUTS = ("input_ids", "attention_mask", "token_type_ids", *REAL_INPUTS)


def measure_remote_latency(
    library: Library, function: FunctionRecord, batches: Sequence[Batch], seconds: float
) -> Latency:
    """Let the board time a compiled function on each batch, with its inputs in place.

    Parameters
    ----------
    library
        On a board (`ibert_tvm.runtime.remote.load_remote`).
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
    engine = cast("CudaEngine", library.engine)
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
        See `ibert_tvm.runtime.load_library` and `ibert_tvm.runtime.remote.load_remote`.
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
        if self.metadata.runtime == "none":
            return [1]  # more are refused when the library is loaded
        return [None if self.address is not None or self.on_gpu else default_threads()]

    def loaded(self) -> Iterator[_Loaded]:
        """Load the library with each number of threads, and say what limits it there."""
        path = self.metadata.path
        if self.address is not None:
            from ..runtime.remote import load_remote

            for wanted in self.counts:
                with load_remote(path, self.address, wanted, self.timeout) as library:
                    yield library, Ceiling(missing="boards are not asked for their limit")
        elif self.on_gpu:
            # A number of threads is refused there.
            yield load_library(path, num_threads=self.counts[0], device=self.device), Ceiling()
        else:
            counts = [count for count in self.counts if count is not None]
            configure_threads(max(counts))  # the pool never grows beyond what it is first asked for
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
        if self.on_gpu:
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
