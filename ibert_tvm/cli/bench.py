"""`ibert bench`: how fast a compiled library is on this machine, and where the time goes."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from typer import Option

from ..common.errors import UsageError
from .options import Board, DeviceOption, check_device, parse_sizes, read_texts
from .progress import progress
from .result import CommandResult
from .tables import Table, record_table

if TYPE_CHECKING:
    from ibert_tvm.targets.rpc import Address

    from ..bench.ceiling import Ceiling
    from ..bench.inputs import Batch
    from ..bench.latency import Latency
    from ..bench.layers import Part, Profile
    from ..runtime import Library
    from ..runtime.metadata import FunctionRecord, LibraryMetadata
    from ..runtime.remote_engine import RemoteEngine

_logger = logging.getLogger(__name__)

_SCHEMA = 1


def command(
    library: Path,
    *,
    threads: str | None = None,
    batch: str | None = None,
    seq_len: str | None = None,
    texts: Path | None = None,
    against: Path | None = None,
    seconds: Annotated[float, Option(min=0.0)] = 2.0,
    per_layer: bool = False,
    device: DeviceOption = None,
    board: Board,
) -> CommandResult:
    """Measure a compiled library: latency, throughput, and where the time goes.

    Parameters
    ----------
    library
        A library that `ibert compile` wrote.
    threads
        Threads, with commas; by default all processors.
    batch
        Only these compiled batch sizes, with commas.
    seq_len
        Only these compiled sequence lengths, with commas.
    texts
        Measure on these texts, one per line, and from strings to vectors; by default all rows are
        full.
    against
        With --texts: the float model's folder, which sentence-transformers runs in turns with the
        library, from strings to vectors.
    seconds
        How long to measure each shape.
    per_layer
        Show the share of every layer and kind of kernel.

    Examples
    --------
    ibert bench minilm.so --threads 1,2 --per-layer
    ibert bench minilm.so --texts lines.txt --against MODEL
    """
    from ..runtime.device import choose_device
    from ..runtime.library_file import read_metadata

    address = board.address
    check_device(device, board.rpc)
    metadata = read_metadata(library)  # a wrong path is reported before anything is loaded
    counts = None if threads is None else parse_sizes("--threads", threads)
    functions = _chosen(metadata, batch, seq_len)
    lines = None if texts is None else read_texts("--texts", texts)
    if against is not None:
        _check_against(against, texts, board.rpc, metadata)

    if address is not None and per_layer:
        raise UsageError(
            "--per-layer was given with --rpc",
            why="a board times whole runs; its server cannot be told to observe kernels",
            todo="leave one of them out, or run `ibert bench --per-layer` on the board itself",
        )
    if metadata.runtime == "none":
        counts = counts or [1]  # more are refused when the library is loaded
    job = _Job(library, functions, counts, lines, seconds, per_layer, against)
    if address is not None:
        measured = _on_board(job, address, board.rpc_timeout)
    elif choose_device(metadata, device).kind == "cuda":
        measured = _on_gpu(job, device)
    else:
        measured = _on_this_machine(job)
    document = {
        "schema_version": _SCHEMA,
        "library": str(library),
        "model": metadata.info.to_json().get("source", ""),
        "target": metadata.target.get("name", ""),
        "versions": dict(metadata.versions),
        "machine": measured.machine,
        "inputs": "full rows" if texts is None else str(texts),
        "seconds": seconds,
        "ceilings": {str(count): asdict(limit) for count, limit in measured.ceilings.items()},
        "results": measured.rows,
        **({"sentences": measured.sentences} if measured.sentences else {}),
    }
    shown: list[str | Table] = [_summary(document), _results(measured.rows)]
    if measured.sentences:
        shown += ["\nstrings in, vectors out", record_table(_RATES, measured.sentences), ""]
    shown += [_ceiling_line(count, limit) for count, limit in measured.ceilings.items()]
    if per_layer:
        shown += [item for row in measured.rows for item in _layers(row)]
    return CommandResult(document, shown)


@dataclass(frozen=True)
class _Job:
    """What is measured, and how long."""

    path: Path
    functions: list[FunctionRecord]
    counts: list[int] | None
    texts: list[str] | None
    seconds: float
    per_layer: bool
    against: Path | None

    def batches(self, library: Library, function: FunctionRecord) -> list[Batch]:
        from ..bench.inputs import full_batch, text_batches

        if self.texts is None:
            return [full_batch(library.metadata, function.batch, function.seq_len)]
        encoded = library.encode(self.texts, max_length=function.seq_len)
        return text_batches(library.metadata, encoded, function.batch, function.seq_len)

    def measure(self, library: Library, function: FunctionRecord) -> dict[str, Any]:
        from ..bench.latency import measure_latency
        from ..bench.layers import measure_layers

        batches = self.batches(library, function)
        latency = measure_latency(library, batches, self.seconds)
        row = _row(function, library.num_threads, batches, latency)
        if self.per_layer:
            profile = measure_layers(library, batches[0], function.kernels, self.seconds)
            row["layers"] = _profile(profile, full=row["real_tokens"] == 1)
        return row

    def sentences(self, library: Library) -> list[dict[str, Any]]:
        """From strings to vectors, if there are texts and the model gives vectors."""
        from ..encoder import Encoder

        if self.texts is None or Encoder(library).embedding_size is None:
            return []
        from ..bench.sentences import measure_sentences

        rates = measure_sentences(library, self.texts, self.seconds, self.against)
        return [
            {
                "name": rate.name,
                "threads": rate.threads,
                "texts": rate.texts,
                "rounds": len(rate.seconds),
                "texts_per_second": rate.per_second,
                "times_as_fast": rates[0].per_second / rate.per_second,
            }
            for rate in rates
        ]


@dataclass(frozen=True)
class _Measured:
    """Rows of results, and the machine that they are of."""

    rows: list[dict[str, Any]]
    ceilings: dict[int, Ceiling]
    machine: dict[str, Any]
    sentences: list[dict[str, Any]] = field(default_factory=list)


def _on_this_machine(job: _Job) -> _Measured:
    from ..bench.ceiling import measure_ceiling
    from ..runtime import load_library
    from ..runtime.threads import configure_threads, default_threads

    counts = job.counts or [default_threads()]
    _warn_of_too_many(counts)
    configure_threads(max(counts))  # the pool never grows beyond what it is first asked for
    measured = _Measured([], {}, {})
    with _measuring(job, "loading", len(counts)) as turn:
        for count in counts:
            loaded = load_library(job.path, num_threads=count)
            limit = measured.ceilings[count] = measure_ceiling(count)
            for function in job.functions:
                turn(f"{function.batch}x{function.seq_len}, {_threads(count)}")
                measured.rows.append(_with_efficiency(job.measure(loaded, function), limit))
            measured.sentences.extend(job.sentences(loaded))
    measured.machine.update(_machine())
    return measured


def _on_gpu(job: _Job, device: str | None) -> _Measured:
    from ..bench.ceiling import Ceiling
    from ..bench.gpu import describe_gpu, measure_gpu_time
    from ..runtime import load_library

    rows = []
    with _measuring(job, "loading") as turn:
        # A number of threads is refused there.
        threads = job.counts[0] if job.counts else None
        loaded = load_library(job.path, num_threads=threads, device=device)
        for function in job.functions:
            turn(f"{function.batch}x{function.seq_len}, {loaded.device}")
            row = job.measure(loaded, function)
            row |= {"threads": None, "gpu_ms": measure_gpu_time(loaded, function, job.seconds / 4)}
            rows.append(_with_efficiency(row, Ceiling()))
    return _Measured(rows, {}, {**_machine(), **describe_gpu(loaded)})


def _on_board(job: _Job, address: Address, timeout: float) -> _Measured:
    from ..bench.ceiling import Ceiling
    from ..bench.remote import measure_remote_latency
    from ..runtime.remote import load_remote

    measured = _Measured([], {}, {})
    wishes: list[int | None] = [None] if job.counts is None else [*job.counts]
    with _measuring(job, f"loading on {address}", len(wishes)) as turn:
        for wanted in wishes:
            with load_remote(job.path, address, wanted, timeout) as loaded:
                board = cast("RemoteEngine", loaded.engine).description
                count = loaded.num_threads
                limit = Ceiling("", None, "boards are not asked for their limit")
                measured.ceilings[count] = limit
                measured.machine.update(
                    system=f"{board.machine}, TVM {board.tvm_version or '?'}",
                    processor=f"board {address}",
                    processors=board.processors,
                    load_average=None,
                )
                for function in job.functions:
                    turn(f"{function.batch}x{function.seq_len}, {_threads(count)}, on {address}")
                    batches = job.batches(loaded, function)
                    latency = measure_remote_latency(loaded, function, batches, job.seconds)
                    row = _row(function, count, batches, latency)
                    measured.rows.append(_with_efficiency(row, limit))
    return measured


@contextmanager
def _measuring(job: _Job, loading: str, counts: int = 1) -> Iterator[Callable[[str], None]]:
    """Show progress; what it gives is called with the shape that is measured next."""
    whole = counts * len(job.functions)
    turns = itertools.count(1)
    with progress({loading: 1.0, "measuring": whole * max(job.seconds, 0.1)}) as line:

        def turn(text: str) -> None:
            number = next(turns)
            if number == 1:
                line.step("measuring")
            line.say(f"{text} ({number} of {whole})")
            line.advance(number - 1, whole)

        yield turn


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count != 1)}"


def _check_against(
    against: Path, texts: Path | None, rpc: str | None, metadata: LibraryMetadata
) -> None:
    """Refuse what sentence-transformers cannot be compared on, before anything is measured."""
    from ..frontend.errors import require

    if texts is None or rpc is not None or metadata.device != "cpu":
        raise UsageError(
            "--against compares from strings to vectors on this machine's processor",
            why="--texts was not given"
            if texts is None
            else "the library runs on a board or a GPU",
            todo="give --texts FILE as well, and a library for this processor",
        )
    if not (against / "config.json").is_file():
        raise UsageError(
            "cannot read the model of --against",
            where=str(against),
            why="it is no folder with a config.json",
            todo="give the folder that the library was made from",
        )
    require(
        "sentence_transformers",
        to="ibert bench --against",
        why="it is what the library is compared with",
        todo="pip install 'ibert-tvm[adapters]'",
        where="--against",
    )


def _warn_of_too_many(counts: list[int]) -> None:
    usable = len(os.sched_getaffinity(0))
    if max(counts) > usable:
        _logger.warning(
            "%d threads share %d processors, all that this process may use: expect to lose time",
            max(counts),
            usable,
        )


def _chosen(
    metadata: LibraryMetadata, batch: str | None, seq_len: str | None
) -> list[FunctionRecord]:
    """The compiled shapes that the options leave."""
    batches = None if batch is None else parse_sizes("--batch", batch)
    lengths = None if seq_len is None else parse_sizes("--seq-len", seq_len)
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


def _row(
    function: FunctionRecord, threads: int, batches: list[Batch], latency: Latency
) -> dict[str, Any]:
    tokens, places = sum(b.tokens for b in batches), sum(b.places for b in batches)
    return {
        "function": function.name,
        "batch": function.batch,
        "seq_len": function.seq_len,
        "threads": threads,
        "runs": len(latency.all_ms),
        "real_tokens": tokens / places,
        "median_ms": latency.median_ms,
        "min_ms": latency.min_ms,
        "p90_ms": latency.p90_ms,
        "sequences_per_second": latency.sequences_per_second,
        "tokens_per_second": latency.tokens_per_second,
        "macs": function.macs or None,
    }


def _with_efficiency(row: dict[str, Any], ceiling: Ceiling) -> dict[str, Any]:
    """Add GMAC/s and fraction of the ceiling; None where padding makes the work uncertain."""
    full = row["macs"] is not None and row["real_tokens"] == 1
    gmacs = row["macs"] / row["median_ms"] * 1e-6 if full else None
    for part in (part for parts in row.get("layers", {}).values() for part in parts):
        part["of_ceiling"] = _fraction(part["gmacs"], ceiling)
    return {**row, "gmacs": gmacs, "of_ceiling": _fraction(gmacs, ceiling)}


def _fraction(gmacs: float | None, ceiling: Ceiling) -> float | None:
    return gmacs / ceiling.gmacs if gmacs is not None and ceiling.gmacs else None


def _profile(profile: Profile, full: bool) -> dict[str, list[dict[str, Any]]]:
    return {
        "kernels": [_part(part, full) for part in profile.parts],
        "by_kind": [_part(part, full) for part in profile.by_kind()],
        "by_role": [_part(part, full) for part in profile.by_role()],
        "by_layer": [_part(part, full) for part in profile.by_block()],
    }


def _part(part: Part, full: bool) -> dict[str, Any]:
    return {
        "name": part.name,
        "kind": part.kind,
        "layer": part.layer,
        "calls": part.calls,
        "ms": part.milliseconds,
        "share": part.share,
        "macs": part.macs,
        "gmacs": part.gmacs if full else None,
        "bytes": part.num_bytes or None,
        "gbytes_per_second": part.gbytes if full else None,
        "macs_per_byte": part.macs_per_byte if full else None,
    }


def _machine() -> dict[str, Any]:
    import platform

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


# -- for people ----------------------------------------------------------------------------------

_COLUMNS = (
    ("shape", "shape", "s"),
    ("real", "real_tokens", ".0%"),
    ("threads", "threads", "d"),
    ("ms", "median_ms", "short"),
    ("min", "min_ms", "short"),
    ("p90", "p90_ms", "short"),
    ("seq/s", "sequences_per_second", "short"),
    ("tok/s", "tokens_per_second", ".0f"),
    ("GMAC/s", "gmacs", ".1f"),
    ("ceiling", "of_ceiling", ".1%"),
    ("runs", "runs", "d"),
)
_RATES = (
    ("", "name", "s"),
    ("threads", "threads", "d"),
    ("texts", "texts", "d"),
    ("rounds", "rounds", "d"),
    ("texts/s", "texts_per_second", "short"),
    ("ibert is faster", "times_as_fast", ".2f"),
)
_PART_COLUMNS = (
    ("", "name", ""),
    ("kind", "kind", ""),
    ("calls", "calls", "d"),
    ("ms", "ms", ".3f"),
    ("share", "share", ".1%"),
    ("GMAC/s", "gmacs", ".1f"),
)


def _summary(document: dict[str, Any]) -> str:
    machine = document["machine"]
    where = f"{machine['processor']}, {machine['processors']} processors"
    if "device" in machine:
        where = (
            f"{machine['device']}: {machine['gpu']}, {machine['architecture']}, "
            f"{machine['multiprocessors']} multiprocessors"
        )
    return f"{document['library']} for {document['target']}, on {where}; {document['inputs']}"


def _results(rows: list[dict[str, Any]]) -> Table:
    """The table; that of a GPU has its own time, and nothing of threads."""
    columns: tuple[tuple[str, str, str], ...] = _COLUMNS
    if any("gpu_ms" in row for row in rows):
        columns = tuple(column for column in columns if column[1] not in ("threads", "of_ceiling"))
        columns += (("GPU ms", "gpu_ms", ".3f"),)
    return record_table(columns, [{**row, "shape": _shape(row)} for row in rows])


def _shape(row: dict[str, Any]) -> str:
    return f"{row['batch']}x{row['seq_len']}"


def _ceiling_line(count: int, ceiling: Ceiling) -> str:
    if ceiling.gmacs is None:
        return f"ceiling of {_threads(count)}: not measured, {ceiling.missing}"
    return f"ceiling of {_threads(count)}: {ceiling.gmacs:.1f} GMAC/s ({ceiling.instruction})"


def _layers(row: dict[str, Any]) -> list[str | Table]:
    title = _shape(row)
    if row["threads"] is not None:
        title += f", {_threads(row['threads'])}"
    shown: list[str | Table] = []
    for name, parts in (
        ("by kind of kernel", "by_kind"),
        ("by place, repeated layers together", "by_role"),
        ("by layer", "by_layer"),
    ):
        shown += [f"\n{title}, {name}", record_table(_PART_COLUMNS, row["layers"][parts])]
    return shown
