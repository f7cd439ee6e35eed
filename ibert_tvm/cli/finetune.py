"""`ibert finetune`: a float model and examples to a model that was trained with its integers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from typer import Option

from ibert_tvm.relay_passes.spec.preset_names import PRESET_NAMES

from ..common.strict_json import JsonDict
from ..train.settings import BITS, DISTILLATIONS, TRAINED, FinetuneSettings
from .options import parse_pairs
from .result import CommandResult
from .signature import Choice, Settings
from .tables import Table

_SETTINGS = Settings(
    {
        "preset": Choice(PRESET_NAMES),
        "distillation": Choice(DISTILLATIONS, "--distill"),
        "trained": Choice(TRAINED, "--train"),
        "weights": Choice(BITS),
        "word_table_bits": Choice(BITS),
        "batch_size": Option("--batch"),
        "accumulation": Option("--accumulate"),
    },
    without=("weight_decay", "warmup", "calibration", "checkpoint_steps"),
)


def command(
    model: Path,
    *,
    data: Path,
    output: Path,
    task: str | None = None,
    dev: Path | None = None,
    columns: str | None = None,
    float_output: Path | None = None,
    settings: Annotated[FinetuneSettings, _SETTINGS],
) -> CommandResult:
    """Tune a model with the integers that will run; goes on where it was killed.

    Parameters
    ----------
    model
        A Hugging Face folder of a float model.
    data
        The task's file, or a folder with train.* and the dev set. Without --task a TSV or CSV whose
        first line names columns; any other file has a text on each line, and no labels.
    output
        The folder to write, for `ibert quantize`.
    task
        How the data is read, and what is measured on the dev set, as for `ibert eval`. [default: by
        the columns]
    dev
        What decides which epoch was best. [default: that of a folder, or a tenth of the data]
    columns
        Columns of the data, text=A,pair=B,label=C. [default: those of the task, or what is found]
    float_output
        Write the model of the float stage too, to compare with: `ibert eval`.

    Examples
    --------
    ibert finetune MODEL --data train.tsv --dev dev.tsv -o tuned
    ibert finetune MODEL --data texts.txt --distill embeddings -o tuned
    ibert finetune MODEL --data t.txt --distill embeddings --weights 4 -o tuned
    """
    from ..common.extras import require
    from ..tasks import checked_columns, task_of
    from ..train.examples import read_examples

    kind = None if task is None else task_of(task)
    given = parse_pairs("--columns", columns)
    named = checked_columns(kind, given, ("text", "pair", "label"))
    examples, judged = read_examples(data, task, named, dev)
    require("torch", "transformers", to="training a model")
    from ..progress import progress
    from ..train.finetune import finetune

    started = time.perf_counter()

    @contextmanager
    def stage(name: str) -> Iterator[Callable[[float, float], None]]:
        with progress(name) as line:
            yield line.advance

    result = finetune(model, examples, output, settings, judged, stage, float_output)
    document: JsonDict = {
        "output": str(output),
        "task": task,
        "settings": settings.to_json(),
        "examples": result.examples,
        "dev_examples": result.dev_examples,
        "labels": list(result.labels),
        "float": result.float_stage,
        "integers": result.integer_stage,
        "seconds": round(time.perf_counter() - started, 3),
    }
    rows = [
        ("with integers, calibrated only", f"{result.integer_stage['before']:.5f}"),
        ("with integers, tuned", f"{result.integer_stage['best']:.5f}"),
    ]
    if result.float_stage is not None and result.float_stage["best"] is not None:
        rows.insert(0, ("in float", f"{result.float_stage['best']:.5f}"))
    asked = {"--weights": settings.weights, "--word-table-bits": settings.word_table_bits}
    sizes = "".join(f" {option} {bits}" for option, bits in asked.items() if bits != "8")
    head = (
        f"wrote {output}: tuned on {result.examples} examples, score of {result.dev_examples} "
        f"others, in {document['seconds']:.0f} s; next: ibert quantize {output}{sizes} "
        "-o NAME.ibert"
    )
    return CommandResult(document, [head, Table((), rows)])
