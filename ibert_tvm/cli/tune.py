"""`ibert tune`: measure other schedules of a model's kernels, and remember the best."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from .options import JsonFlag, TargetOption, VerboseFlag
from .result import CommandResult
from .rpc_options import KeyOption, RpcOption, RpcTimeoutOption, parse_address
from .shape_options import BatchOption, SeqLenOption, parse_shapes
from .tables import Table, record_table

_SCHEMA = 1


def command(
    model: Annotated[Path, Argument(help="A NAME.ibert folder from `ibert quantize`.")],
    database: Annotated[Path, Option(help="Folder of the measurements; made where there is none.")],
    trials: Annotated[
        int, Option(min=1, help="Measurements per kernel, those of earlier runs included.")
    ],
    target: TargetOption = "host",
    batch: BatchOption = "1",
    seq_len: SeqLenOption = None,
    rpc: RpcOption = None,
    key: KeyOption = None,
    jobs: Annotated[
        int | None,
        Option(min=1, help="Kernels compiled at once; by default as many as processors."),
    ] = None,
    threads: Annotated[int, Option(min=1, help="Threads that a measured kernel uses.")] = 1,
    time_limit: Annotated[
        float | None, Option(min=1.0, help="Begin nothing more after so many seconds.")
    ] = None,
    rpc_timeout: RpcTimeoutOption = 60.0,
    json: JsonFlag = False,
    verbose: VerboseFlag = False,
) -> CommandResult:
    """Tune a model's kernels on this machine, its GPU, or a board; goes on where it stopped."""
    from ibert_tvm.targets import get_target

    from .progress import progress

    address = parse_address(rpc, key)
    get_target(target)
    shapes = parse_shapes(model, batch, seq_len)

    with progress("loading", time_limit) as line:
        from ..runtime.tvm_runtime import load_runtime

        load_runtime()  # before TVM: without torch, which nothing here needs
        from ..model.artefact import QuantizedModel
        from ..tuning import TuneOptions, tune

        options = TuneOptions(
            trials=trials,
            address=address,
            jobs=jobs or len(os.sched_getaffinity(0)),
            threads=threads,
            time_limit=time_limit,
            run_timeout=rpc_timeout,
        )
        result = tune(
            QuantizedModel.load(model), target, shapes, database, options, line.say, line.advance
        )
    summary: dict[str, Any] = {
        "schema_version": _SCHEMA,
        "database": str(database),
        "target": target,
        "board": None if address is None else str(address),
        "trials": trials,
        "shapes": [{"batch": b, "seq_len": s} for b, s in shapes],
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


def _for_people(row: dict[str, Any]) -> dict[str, Any]:
    decisions = " ".join(f"{name}={value}" for name, value in (row["tile"] or {}).items())
    faster = f"{row['faster']:.2f}x" if row["faster"] else None
    return {**row, "faster": faster, "tile": decisions or None}
