"""`ibert bench`: how fast a compiled library is on this machine, and where the time goes."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from ..common.errors import UsageError
from ..common.strict_json import JsonDict
from ..progress import progress
from ..texts import read_texts
from .options import Board, DeviceOption, check_device, parse_sizes
from .result import CommandResult
from .tables import Table, record_table

if TYPE_CHECKING:
    from ..bench.ceiling import Ceiling
    from ..runtime import Library
    from ..runtime.metadata import FunctionRecord, LibraryMetadata

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
    from ..bench.measure import Job, chosen_functions, measure
    from ..runtime.library_file import read_metadata

    address = board.address
    check_device(device, board.rpc)
    metadata = read_metadata(library)  # a wrong path is reported before anything is loaded
    counts = None if threads is None else parse_sizes("--threads", threads)
    batches = None if batch is None else parse_sizes("--batch", batch)
    lengths = None if seq_len is None else parse_sizes("--seq-len", seq_len)
    functions = chosen_functions(metadata, batches, lengths)
    lines = None if texts is None else read_texts("--texts", texts)
    if against is not None:
        _check_against(against, texts, board.rpc, metadata)

    if address is not None and per_layer:
        raise UsageError(
            "--per-layer was given with --rpc",
            why="a board times whole runs; its server cannot be told to observe kernels",
            todo="leave one of them out, or run `ibert bench --per-layer` on the board itself",
        )
    job = Job(
        metadata,
        functions,
        seconds,
        counts,
        lines,
        per_layer,
        against,
        device,
        address,
        board.rpc_timeout,
    )
    if address is None and not job.on_gpu:
        _warn_of_too_many(job.counts)
    whole = len(job.counts) * len(functions)
    loading = "loading" if address is None else f"loading on {address}"
    with progress({loading: 1.0, "measuring": whole * max(seconds, 0.1)}) as line:
        turns = itertools.count()

        def turn(function: FunctionRecord, on: Library) -> None:
            number = next(turns)
            if number == 0:
                line.step("measuring")
            place = on.device if job.on_gpu else _threads(on.num_threads)
            place += "" if address is None else f", on {address}"
            line.say(f"{function.batch}x{function.seq_len}, {place} ({number + 1} of {whole})")
            line.advance(number, whole)

        measured = measure(job, turn)
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


def _check_against(
    against: Path, texts: Path | None, rpc: str | None, metadata: LibraryMetadata
) -> None:
    """Refuse what sentence-transformers cannot be compared on, before anything is measured."""
    from ..common.extras import require

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
    require("sentence_transformers", to="ibert bench --against")


def _warn_of_too_many(counts: Sequence[int | None]) -> None:
    usable = len(os.sched_getaffinity(0))
    most = max(count or 0 for count in counts)
    if most > usable:
        _logger.warning(
            "%d threads share %d processors, all that this process may use: expect to lose time",
            most,
            usable,
        )


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


def _summary(document: JsonDict) -> str:
    machine = document["machine"]
    where = f"{machine['processor']}, {machine['processors']} processors"
    if "device" in machine:
        where = (
            f"{machine['device']}: {machine['gpu']}, {machine['architecture']}, "
            f"{machine['multiprocessors']} multiprocessors"
        )
    return f"{document['library']} for {document['target']}, on {where}; {document['inputs']}"


def _results(rows: list[JsonDict]) -> Table:
    """The table; that of a GPU has its own time, and nothing of threads."""
    columns: tuple[tuple[str, str, str], ...] = _COLUMNS
    if any("gpu_ms" in row for row in rows):
        columns = tuple(column for column in columns if column[1] not in ("threads", "of_ceiling"))
        columns += (("GPU ms", "gpu_ms", ".3f"),)
    return record_table(columns, [{**row, "shape": _shape(row)} for row in rows])


def _shape(row: JsonDict) -> str:
    return f"{row['batch']}x{row['seq_len']}"


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count != 1)}"


def _ceiling_line(count: int, ceiling: Ceiling) -> str:
    if ceiling.gmacs is None:
        return f"ceiling of {_threads(count)}: not measured, {ceiling.missing}"
    return f"ceiling of {_threads(count)}: {ceiling.gmacs:.1f} GMAC/s ({ceiling.instruction})"


def _layers(row: JsonDict) -> list[str | Table]:
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
