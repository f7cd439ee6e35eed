"""`ibert tune`: measure other schedules of a model's kernels, and remember the best."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from typer import Option

from ..common.strict_json import JsonDict, JsonObject
from .options import AtLeastOne, Board, MaybeOne, Shapes, TargetOption
from .result import CommandResult
from .tables import Table, record_table

_SCHEMA = 1


def command(
    model: Path,
    *,
    database: Path,
    trials: AtLeastOne,
    target: TargetOption = "host",
    shapes: Shapes,
    jobs: MaybeOne = None,
    threads: AtLeastOne = 1,
    time_limit: Annotated[float | None, Option(min=1.0)] = None,
    board: Board,
    verbose: bool = False,
) -> CommandResult:
    """Tune a model's kernels on this machine, its GPU, or a board; goes on where it stopped.

    Parameters
    ----------
    model
        A NAME.ibert folder from `ibert quantize`.
    database
        Folder of the measurements; made where there is none.
    trials
        Measurements per kernel, those of earlier runs included.
    jobs
        Kernels compiled at once; by default as many as processors.
    threads
        Threads that a measured kernel uses.
    time_limit
        Begin nothing more after so many seconds.

    Examples
    --------
    ibert tune minilm.ibert --database trials --trials 200 --seq-len 128
    ibert compile minilm.ibert -o minilm.so --seq-len 128 --database trials
    """
    from ibert_tvm.targets import get_target

    from ..model.artefact import read_info
    from ..progress import progress

    address = board.address
    get_target(target)
    pairs = shapes.of(read_info(model), model)

    with progress("loading", time_limit) as line:
        from ..runtime.tvm_runtime import import_tvm

        import_tvm()
        from ..model.artefact import QuantizedModel
        from ..tuning import TuneOptions, tune

        options = TuneOptions(
            trials=trials,
            address=address,
            jobs=jobs or len(os.sched_getaffinity(0)),
            threads=threads,
            time_limit=time_limit,
            run_timeout=board.rpc_timeout,
        )
        result = tune(
            QuantizedModel.load(model), target, pairs, database, options, line.say, line.advance
        )
    summary: JsonDict = {
        "schema_version": _SCHEMA,
        "database": str(database),
        "target": target,
        "board": None if address is None else str(address),
        "trials": trials,
        "shapes": [{"batch": b, "seq_len": s} for b, s in pairs],
        "seconds": round(result.seconds, 3),
        "stopped": result.stopped,
        "kernels": result.kernels,
    }

    rows = list(map(_for_people, result.kernels))
    shown: list[str | Table] = [record_table(_COLUMNS, rows)]
    if verbose:
        shown += ["", record_table(_DETAILS, rows), ""]
    shown += [
        f"{row['layer']}: {row['failed']} trials failed, most often: {row['error']}"
        for row in result.kernels
        if row["failed"]
    ]
    if result.stopped:
        shown.append(f"stopped: {result.stopped}; run again to go on")
    new = sum(row["new"] for row in result.kernels)
    shown.append(
        f"{new} trials in {result.seconds:.0f} s, in {database}; use them with "
        f"`ibert compile {model} --target {target} --database {database}`"
    )
    return CommandResult(summary, shown)


_COLUMNS = (
    ("kernel", "kind", ""),
    ("layer", "layer", ""),
    ("calls", "calls", "d"),
    ("trials", "trials", "d"),
    ("ms", "default_ms", "short"),
    ("best", "best_ms", "short"),
    ("faster", "faster", "s"),
)
_DETAILS = (
    ("layer", "layer", ""),
    ("choices", "space", "d"),
    ("new", "new", "d"),
    ("failed", "failed", "d"),
    ("decisions", "tile", ""),
)


def _for_people(row: JsonObject) -> JsonDict:
    decisions = " ".join(f"{name}={value}" for name, value in (row["tile"] or {}).items())
    faster = f"{row['faster']:.2f}x" if row["faster"] else None
    return {**row, "faster": faster, "tile": decisions or None}
