"""`ibert eval`: fidelity of an integer model to its float original, or quality on a task."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from ..common.errors import ExitCode, UsageError
from ..common.strict_json import JsonDict
from ..texts import data_file, paired, read_texts
from .options import (
    DeviceOption,
    ImportOptions,
    MaybeOne,
    TextsOption,
    check_device,
    parse_pairs,
    parse_size,
)
from .result import CommandResult
from .tables import Table, table_of
from .why import MOST, TEXTS, shown

if TYPE_CHECKING:
    from ..diagnosis import Diagnosis
    from ..evaluation.evaluate import Fidelity, LayerFidelity
    from ..frontend.model import CanonicalModel
    from ..model.artefact import QuantizedModel
    from ..tasks import MetricResult, Options, Task
    from ..tasks.samples import Samples

# `ibert eval --task`: quality of an integer model on labelled data, beside the float model.


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
    return CommandResult(document, _task_shown(document, results), code)


def _task_shown(document: dict[str, object], results: Sequence[MetricResult]) -> list[str | Table]:
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


def command(
    model: Path,
    *,
    against: Path | None = None,
    text: TextsOption = None,
    seq_len: str | None = None,
    limit: MaybeOne = None,
    task: TaskOptions,
    max_drop: Annotated[float | None, Option(min=0, metavar="POINTS")] = None,
    why: bool = False,
    all: bool = False,
    device: DeviceOption = None,
    source: ImportOptions,
) -> CommandResult:
    """Compare an integer model with its float original on texts, or on a task with labels.

    Parameters
    ----------
    model
        A NAME.ibert folder, or a library that `ibert compile` wrote.
    against
        The float model: a Hugging Face folder or ONNX file. Needed without --task; with it, both
        models are measured.
    text
        Texts that calibration has not seen, one per line; by default the package's. A model of
        pairs is given each with the next.
    limit
        Use only the first texts.
    why
        Measure where a NAME.ibert loses quality: kinds of rounding and of operators, values, texts,
        and what would help. Takes minutes; 8 texts unless --limit says more.
    all
        Show every layer, or every cause of loss, and not only the worst.
    max_drop
        Exit with code 5 where a metric of the task is lower than the float model's by more than so
        many points (hundredths).

    Other Parameters
    ----------------
    seq_len
        Truncate the texts to this many tokens; by default 128 or all positions of a model that has
        fewer, and with --task what a library was compiled for (384 of a NAME.ibert that answers
        questions).

    Examples
    --------
    ibert eval minilm.so --against MODEL --texts texts.txt
    ibert eval minilm.ibert --against MODEL --why
    ibert eval minilm.so --task sts-b --data STS-B --against MODEL
    """
    if task.task is not None:
        if text is not None or why:
            raise UsageError(
                f"--task was given with {'--texts' if text is not None else '--why'}",
                why="a task brings its own texts, and where quality is lost is measured on texts",
                todo="give one of them",
            )
        return evaluate(model, against, task, source, device, limit, seq_len, max_drop)
    for option in ("data", "columns", "labels"):
        if getattr(task, option) is not None:
            raise UsageError(
                f"--{option} was given without --task", todo=f"give --task, or leave --{option} out"
            )
    if against is None or max_drop is not None:
        raise UsageError(
            "--against is missing" if against is None else "--max-drop was given without --task",
            why="without --task the integer model is compared with its float original on texts",
            todo="give --against FLOAT_MODEL, or --task and --data",
        )
    load = partial(source.load, against)
    return compare(model, against, load, text, seq_len, limit, why, device, all)


def compare(
    model: Path,
    against: Path,
    load: Callable[[str], CanonicalModel],
    text: Path | None,
    seq_len: str | None,
    limit: int | None,
    why: bool = False,
    device: str | None = None,
    every: bool = False,
) -> CommandResult:
    """Compare an integer model with its float original on texts.

    Parameters
    ----------
    model, against : pathlib.Path
        As `command` takes them.
    load
        Gives the float model with a head of a name (`ibert_tvm.model.heads.HEADS`). It is not
        called before everything else is known to be fit, for it takes long.
    text, seq_len, limit, why, device, every
        As `command` takes them.
    """
    from ..evaluation.evaluate import check_seq_len
    from ..model.artefact import read_info
    from ..progress import progress
    from ..runtime.library_file import read_metadata
    from .process import interrupting

    texts = read_texts("--texts", text or data_file("heldout.txt"), limit)
    check_device(device, rpc=None)
    compiled = not model.is_dir()
    if device is not None and not compiled:
        raise UsageError(
            "--device was given for a quantised model",
            where=str(model),
            why="it is evaluated with NumPy; a compiled library runs on a device",
            todo="leave --device out, or give a library that `ibert compile` wrote",
        )
    if why and compiled:
        raise UsageError(
            "--why was given for a compiled library",
            where=str(model),
            why="a library shows its outputs only",
            todo="give the NAME.ibert folder that it was compiled from",
        )
    metadata = read_metadata(model) if compiled else None
    info = metadata.info if metadata else read_info(model)
    length = info.length(None if seq_len is None else parse_size("--seq-len", seq_len))
    check_seq_len(length, info, metadata)

    started = time.perf_counter()
    document: JsonDict
    work = "measuring, Ctrl-C for what is known" if why else "evaluating"
    with progress({"loading the models": 1, work: 4}) as line:
        from ..evaluation.evaluate import fidelity
        from ..model.artefact import QuantizedModel
        from ..runtime import Library, load_library

        candidate: QuantizedModel | Library = (
            load_library(model, device=device) if compiled else QuantizedModel.load(model)
        )
        reference = load(info.head)
        line.step(work)
        result: Fidelity | Diagnosis
        if why and isinstance(candidate, QuantizedModel):
            from ..diagnosis import diagnose

            chosen = texts if limit else _spread(texts, TEXTS)
            with interrupting():
                result = diagnose(
                    candidate, reference, chosen, seq_len=length, progress=line.advance
                )
            lines = shown(result, every)
        else:
            given = paired(texts) if info.reads_pairs else texts
            result = fidelity(candidate, reference, given, seq_len=length, progress=line.advance)
            lines = _shown(result, every)
    document = {
        "model": str(model),
        "against": str(against),
        **result.to_json(),
        "seconds": round(time.perf_counter() - started, 3),
    }
    return CommandResult(document, lines)


def _spread(texts: Sequence[str], count: int) -> list[str]:
    """So many of the texts, from everywhere in the file."""
    step = max(len(texts) / count, 1)
    return [texts[int(number * step)] for number in range(min(count, len(texts)))]


def _shown(result: Fidelity, every: bool) -> list[str | Table]:
    """The agreement, and the layers that are furthest from the float model's, or all."""
    from ..evaluation.agreements import shown as rows_of

    head = f"{result.texts} texts, up to {result.seq_len} tokens, output {result.output}"
    shown: list[str | Table] = [head, Table((), rows_of(result.agreement))]
    layers = result.layers if every else sorted(result.layers, key=lambda x: x.cosine)[:MOST]
    if layers:
        columns: dict[str, Callable[[LayerFidelity], str]] = {
            "layer": lambda layer: layer.name,
            "cosine": lambda layer: f"{layer.cosine:.5f}",
            "relative error": lambda layer: (
                "-" if layer.relative_error is None else f"{layer.relative_error:.4f}"
            ),
        }
        shown += ["", table_of(layers, columns)]
        if len(layers) < len(result.layers):
            shown.append(f"the furthest {MOST} of {len(result.layers)} layers; --all shows them")
    return shown
