"""`ibert eval --task`: quality of an integer model on labelled data, beside the float model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from ..common.errors import ExitCode, UsageError
from .options import TASK, check_device, parse_pairs, parse_size
from .result import CommandResult
from .tables import Table

if TYPE_CHECKING:
    from ..encoder import Encoder
    from ..tasks import MetricResult, Options, Task
    from ..tasks.samples import Samples

# Said here so that `ibert --help` need not import what reads and measures; a test compares.
TASK_NAMES = (
    *("cola", "sst-2", "mrpc", "sts-b", "qqp", "mnli-m", "mnli-mm", "qnli", "rte"),
    *("classification", "sts", "retrieval", "token-classification", "squad"),
)

TaskName = Annotated[
    str | None,
    Option(
        metavar="NAME",
        rich_help_panel=TASK,
        help=f"Measure quality on a task: {', '.join(TASK_NAMES)}.",
    ),
]
TaskData = Annotated[
    Path | None,
    Option(rich_help_panel=TASK, help="The task's file, or the folder of GLUE's or BEIR's files."),
]
TaskColumns = Annotated[
    str | None,
    Option(
        rich_help_panel=TASK,
        metavar="text=A,pair=B,label=C",
        help="Columns of a file with --task, by name or, where it has no names, from 1.",
    ),
]
TaskLabels = Annotated[
    str | None,
    Option(
        rich_help_panel=TASK,
        metavar="LABEL=CLASS,...",
        help="The model's class for labels of the file that it calls otherwise: its name or "
        "number.",
    ),
]
TaskSplit = Annotated[
    str, Option(rich_help_panel=TASK, help="File of judgements in a BEIR folder.")
]


@dataclass(frozen=True)
class TaskOptions:
    """The words of the command line that concern a task; None where they were not given."""

    task: str
    data: Path | None
    columns: str | None
    labels: str | None
    split: str
    max_drop: float | None = None
    limit: int | None = None
    seq_len: str | None = None


def evaluate(
    model: Path,
    against: Path | None,
    given: TaskOptions,
    device: str | None,
    names: dict[str, str] | None,
    trust: bool,
) -> CommandResult:
    """Measure a task.

    Parameters
    ----------
    model : pathlib.Path
        A library, or a NAME.ibert folder, of which a library is made and kept.
    against : pathlib.Path or None
        The float model.
    given : TaskOptions
        What to measure.
    device : str or None
        What to run on.
    names : dict of str to str or None
        Inputs of an ONNX file.
    trust : bool
        Whether an exported torch program may be read.

    Returns
    -------
    CommandResult
        With exit code 5 where a metric fell by more than `max_drop`.

    Raises
    ------
    UsageError
        If options or data cannot be used, or do not suit the model.
    """
    check_task(given)
    if given.max_drop is not None and against is None:
        raise UsageError(
            "--max-drop was given without --against",
            why="a drop is a difference from the float model",
            todo="give the float model with --against",
        )
    check_device(device, rpc=None)
    from ..tasks import evaluate_task, float_side, integer_side, size
    from .progress import progress

    started = time.perf_counter()
    task, samples, options = read_task(given)
    length = None if given.seq_len is None else parse_size("--seq-len", given.seq_len)
    with progress({"loading the models": 1, "evaluating": 4}) as line:
        from ..frontend import load

        integers = integer_side(_encoder(model, length, task.seq_len, device))
        reference = None
        if against is not None:
            float_model = load(against, head=integers.info.head, inputs=names, trust=trust)
            reference = float_side(float_model, integers)
        line.step("evaluating")
        results = evaluate_task(task, samples, integers, reference, options, line.advance)
    too_low = [
        result.name
        for result in results
        if given.max_drop is not None and not _within(result, given.max_drop)
    ]
    document = {
        "model": str(model),
        "against": None if against is None else str(against),
        "task": given.task,
        "data": str(given.data),
        "samples": size(samples),
        "skipped": getattr(samples, "skipped", 0),
        "seq_len": integers.max_length,
        "metrics": [result.to_json() for result in results],
        "max_drop": given.max_drop,
        "too_low": too_low,
        "seconds": round(time.perf_counter() - started, 3),
    }
    code = ExitCode.VERIFICATION if too_low else ExitCode.OK
    return CommandResult(document, _shown(document, results), code)


def check_task(given: TaskOptions) -> None:
    """Refuse a name that is no task's, and a task without data.

    Raises
    ------
    UsageError
        Says which.
    """
    _check_name(given.task)
    if given.data is None:
        raise UsageError("--data is missing", todo="give the task's file or folder with --data")


def read_task(given: TaskOptions) -> tuple[Task, Samples, Options]:
    """Read a task's samples.

    Parameters
    ----------
    given : TaskOptions
        With data.

    Returns
    -------
    task, samples, options
        Of `ibert_tvm.tasks`.

    Raises
    ------
    UsageError
        If options or data cannot be used.
    """
    from ..tasks import TASKS, Options

    assert given.data is not None
    task = TASKS[given.task]
    columns = named_columns(given.task, given.columns)
    labels = parse_pairs("--labels", given.labels)
    options = Options(columns, labels, given.split, given.limit)
    return task, task.read(given.data.expanduser(), options), options


def _check_name(task: str) -> None:
    if task not in TASK_NAMES:
        raise UsageError(f"unknown task {task!r}", todo=f"give one of {', '.join(TASK_NAMES)}")


def named_columns(
    task: str | None, text: str | None, otherwise: tuple[str, ...] = ()
) -> dict[str, str]:
    """Columns by what they hold, of --columns.

    Parameters
    ----------
    task : str or None
        What they are of.
    text : str or None
        As it was given.
    otherwise : tuple of str
        What can be named without a task.

    Returns
    -------
    dict of str to str

    Raises
    ------
    UsageError
        If there is no such task, or it has no such columns.
    """
    takes = otherwise
    if task is not None:
        _check_name(task)
        from ..tasks import TASKS

        takes = TASKS[task].takes
    columns = parse_pairs("--columns", text)
    for name in columns:
        if name not in takes:
            raise UsageError(
                f"--columns names {name!r}",
                why=f"{'such data' if task is None else f'the task {task}'} takes "
                f"{', '.join(takes) or 'no columns'}",
                todo="give only these",
            )
    return columns


def _encoder(model: Path, length: int | None, usual: int, device: str | None) -> Encoder:
    """The library's encoder; a NAME.ibert folder is compiled for this machine, once."""
    from ..encoder import Encoder
    from ..frontend.sources import is_source
    from ..model.artefact import read_document
    from ..model.model_info import ModelInfo

    if model.exists() and is_source(model):
        raise UsageError(
            "a float model was given as the integer one",
            where=str(model),
            todo="give a NAME.ibert folder or a library, and this model with --against",
        )
    if model.is_dir():
        info = ModelInfo.from_json(read_document(model)["info"])
        length = length or min(usual, info.max_sequence_length or usual)
    return Encoder(model, device=device, max_seq_length=length)


def _within(result: MetricResult, max_drop: float) -> bool:
    """Whether a metric fell by no more than that; one without a value is not."""
    # Rounded, so that a drop that is shown as 0.30 passes 0.3.
    return result.difference is not None and round(-result.difference, 6) <= max_drop


def _shown(document: dict[str, object], results: Sequence[MetricResult]) -> list[str | Table]:
    skipped = f", {document['skipped']} rows left out" if document["skipped"] else ""
    head = (
        f"task {document['task']}, {document['samples']} samples{skipped}, "
        f"up to {document['seq_len']} tokens"
    )
    if document["against"] is None:
        return [head, Table(("metric", "integer"), [(r.name, _points(r.integer)) for r in results])]
    rows = [
        (
            result.name,
            _points(result.floating),
            _points(result.integer),
            _points(result.difference, sign=True),
            "-" if result.interval is None else "{:+.2f} to {:+.2f}".format(*result.interval),
        )
        for result in results
    ]
    table = Table(("metric", "float", "integer", "difference", "95% interval"), rows)
    shown: list[str | Table] = [head, table]
    if document["max_drop"] is not None:
        too_low = document["too_low"]
        assert isinstance(too_low, list)
        verdict = f"more than {document['max_drop']:g} points below the float model"
        shown.append(f"{', '.join(too_low)}: {verdict}" if too_low else f"no metric is {verdict}")
    return shown


def _points(value: float | None, sign: bool = False) -> str:
    return "-" if value is None else format(value, "+.2f" if sign else ".2f")
