"""`ibert eval --task`: quality of an integer model on labelled data, beside the float model."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from ..common.errors import ExitCode, UsageError
from .options import ImportOptions, check_device, parse_pairs, parse_size
from .result import CommandResult
from .tables import Table, table_of

if TYPE_CHECKING:
    from ..tasks import MetricResult, Options, Task
    from ..tasks.samples import Samples


@dataclass(frozen=True)
class TaskOptions:
    """The words of the command line that concern a task; None where they were not given.

    Attributes
    ----------
    task
        Measure quality on a task.
    data
        The task's file, or the folder of GLUE's or BEIR's files.
    columns
        Columns of a file with --task, by name or, where it has no names, from 1.
    labels
        The model's class for labels of the file that it calls otherwise: its name or number.
    split
        File of judgements in a BEIR folder.
    """

    panel = "Task"

    task: Annotated[str | None, Option(metavar="NAME")] = None
    data: Path | None = None
    columns: Annotated[str | None, Option(metavar="text=A,pair=B,label=C")] = None
    labels: Annotated[str | None, Option(metavar="LABEL=CLASS,...")] = None
    split: str = "test"

    def read(self, limit: int | None = None) -> tuple[Task, Samples, Options]:
        """Read the samples of the task that was given.

        Raises
        ------
        UsageError
            If there is no such task or no data, or options or data cannot be used.
        """
        from ..tasks import Options, checked_columns, task_of

        task = task_of(self.task)
        if self.data is None:
            raise UsageError("--data is missing", todo="give the task's file or folder with --data")
        columns = checked_columns(task, parse_pairs("--columns", self.columns))
        options = Options(columns, parse_pairs("--labels", self.labels), self.split, limit)
        return task, task.read(self.data, options), options


def evaluate(
    model: Path,
    against: Path | None,
    given: TaskOptions,
    source: ImportOptions,
    device: str | None,
    limit: int | None,
    seq_len: str | None,
    max_drop: float | None,
) -> CommandResult:
    """Measure a task.

    Parameters
    ----------
    model
        A library, or a NAME.ibert folder, of which a library is made and kept.
    against, source
        The float model, and how it is imported.
    given, limit, seq_len
        What to measure, on how many samples, and the length that texts are cut off at.
    device
        What to run on.
    max_drop
        Points below the float model with which the exit code is that of a failed verification.

    Raises
    ------
    UsageError
        If options or data cannot be used, or do not suit the model.
    """
    if max_drop is not None and against is None:
        raise UsageError(
            "--max-drop was given without --against",
            why="a drop is a difference from the float model",
            todo="give the float model with --against",
        )
    check_device(device, rpc=None)
    from ..progress import progress
    from ..tasks import encoder_of, evaluate_task, float_side, integer_side

    started = time.perf_counter()
    task, samples, options = given.read(limit)
    length = None if seq_len is None else parse_size("--seq-len", seq_len)
    with progress({"loading the models": 1, "evaluating": 4}) as line:
        integers = integer_side(encoder_of(model, length, task.seq_len, device))
        reference = None
        if against is not None:
            float_model = source.load(against, integers.info.head)
            reference = float_side(float_model, integers)
        line.step("evaluating")
        results = evaluate_task(task, samples, integers, reference, options, line.advance)
    too_low = [
        result.name for result in results if max_drop is not None and not result.within(max_drop)
    ]
    document = {
        "model": str(model),
        "against": None if against is None else str(against),
        "task": given.task,
        "data": str(given.data),
        "samples": len(samples),
        "skipped": getattr(samples, "skipped", 0),
        "seq_len": integers.max_length,
        "metrics": [result.to_json() for result in results],
        "max_drop": max_drop,
        "too_low": too_low,
        "seconds": round(time.perf_counter() - started, 3),
    }
    code = ExitCode.VERIFICATION if too_low else ExitCode.OK
    return CommandResult(document, _shown(document, results), code)


def _shown(document: dict[str, object], results: Sequence[MetricResult]) -> list[str | Table]:
    skipped = f", {document['skipped']} rows left out" if document["skipped"] else ""
    head = (
        f"task {document['task']}, {document['samples']} samples{skipped}, "
        f"up to {document['seq_len']} tokens"
    )
    if document["against"] is None:
        return [head, Table(("metric", "integer"), [(r.name, _points(r.integer)) for r in results])]
    columns: dict[str, Callable[[MetricResult], str]] = {
        "metric": lambda result: result.name,
        "float": lambda result: _points(result.floating),
        "integer": lambda result: _points(result.integer),
        "difference": lambda result: _points(result.difference, sign=True),
        "95% interval": lambda result: (
            "-" if result.interval is None else "{:+.2f} to {:+.2f}".format(*result.interval)
        ),
    }
    shown: list[str | Table] = [head, table_of(results, columns)]
    if document["max_drop"] is not None:
        too_low = document["too_low"]
        assert isinstance(too_low, list)
        verdict = f"more than {document['max_drop']:g} points below the float model"
        shown.append(f"{', '.join(too_low)}: {verdict}" if too_low else f"no metric is {verdict}")
    return shown


def _points(value: float | None, sign: bool = False) -> str:
    return "-" if value is None else format(value, "+.2f" if sign else ".2f")
