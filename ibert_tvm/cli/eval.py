"""`ibert eval`: fidelity of an integer model to its float original, or quality on a task."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from ..common.errors import UsageError
from ..common.strict_json import JsonDict
from ..texts import data_file, paired, read_texts
from .eval_task import TaskOptions, evaluate
from .options import (
    DeviceOption,
    ImportOptions,
    MaybeOne,
    TextsOption,
    check_device,
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
