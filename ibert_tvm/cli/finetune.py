"""`ibert finetune`: a float model and examples to a model that was trained with its integers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from .eval_task import TASK_NAMES, named_columns
from .options import DistillName, JsonFlag, PresetName, TrainedName, VerboseFlag
from .result import CommandResult
from .tables import Table


def command(
    model: Annotated[Path, Argument(help="A Hugging Face folder of a float model.")],
    data: Annotated[
        Path,
        Option(
            help="The task's file, or a folder with train.* and the dev set. Without --task a TSV "
            "or CSV whose first line names columns; any other file has a text on each line, and no "
            "labels.",
        ),
    ],
    output: Annotated[
        Path, Option("-o", "--output", help="The folder to write, for `ibert quantize`.")
    ],
    task: Annotated[
        str | None,
        Option(
            help="How the data is read, and what is measured on the dev set: "
            f"{', '.join(TASK_NAMES)}, as for `ibert eval`. [default: by the columns]"
        ),
    ] = None,
    dev: Annotated[
        Path | None,
        Option(
            help="What decides which epoch was best. [default: that of a folder, or a tenth of the "
            "data]"
        ),
    ] = None,
    columns: Annotated[
        str | None,
        Option(
            help="Columns of the data, text=A,pair=B,label=C. [default: those of the task, or what "
            "is found]"
        ),
    ] = None,
    float_output: Annotated[
        Path | None,
        Option(help="Write the model of the float stage too, to compare with: `ibert eval`."),
    ] = None,
    distill: Annotated[
        DistillName,
        Option(help="Learn what the float model gives, too; or alone, without labels."),
    ] = "none",
    preset: Annotated[PresetName, Option(help="Numerics.")] = "accurate",
    float_epochs: Annotated[
        int, Option(help="Epochs in float before that; 0 for a model that is tuned already.")
    ] = 3,
    epochs: Annotated[int, Option(help="Epochs with integers; the paper has 6 or 12.")] = 6,
    float_learning_rate: Annotated[float, Option(help="Largest one in float.")] = 2e-5,
    learning_rate: Annotated[
        float, Option(help="Largest one with integers; the paper has 5e-7 to 2e-6.")
    ] = 2e-6,
    dropout: Annotated[float, Option(help="In float; the paper has 0 or 0.1.")] = 0.1,
    batch: Annotated[int, Option(help="Examples of a forward pass.")] = 16,
    accumulate: Annotated[int, Option(help="Forward passes of a step.")] = 1,
    seq_len: Annotated[int, Option(help="Truncate texts to this many tokens.")] = 128,
    patience: Annotated[
        int, Option(help="End a stage after so many epochs without a better dev set; 0: never.")
    ] = 0,
    train: Annotated[
        TrainedName,
        Option(
            help="With integers: all weights; or biases and norms alone, for a --learning-rate of "
            "1e-3 or so."
        ),
    ] = "all",
    learn_scales: Annotated[
        bool, Option("--learn-scales", help="Train the scales of activations, too.")
    ] = False,
    scale_learning_rate: Annotated[
        float, Option(help="Largest one of the logarithms of scales, with --learn-scales.")
    ] = 1e-2,
    seed: Annotated[int, Option(help="Of everything random.")] = 0,
    json: JsonFlag = False,
    verbose: VerboseFlag = False,
) -> CommandResult:
    """Tune a model with the integers that will run; goes on where it was killed."""
    from ..frontend.errors import require
    from ..train.examples import read_examples

    held_out = None if dev is None else dev.expanduser()
    named = named_columns(task, columns, ("text", "pair", "label"))
    examples, judged = read_examples(data.expanduser(), task, named, held_out)
    require(
        "torch",
        "transformers",
        to="training a model",
        why="torch and transformers are optional: a quantised model runs without them",
        todo="pip install 'ibert-tvm[torch]'",
    )
    from ..train.finetune import finetune
    from ..train.settings import FinetuneSettings
    from .progress import progress

    settings = FinetuneSettings(
        preset=preset,
        float_epochs=float_epochs,
        epochs=epochs,
        float_learning_rate=float_learning_rate,
        learning_rate=learning_rate,
        scale_learning_rate=scale_learning_rate,
        dropout=dropout,
        batch_size=batch,
        accumulation=accumulate,
        seq_len=seq_len,
        seed=seed,
        distillation=distill,
        patience=patience,
        trained=train,
        learn_scales=learn_scales,
    )
    started = time.perf_counter()

    @contextmanager
    def stage(name: str) -> Iterator[Callable[[float, float], None]]:
        with progress(name) as line:
            yield line.advance

    result = finetune(model, examples, output, settings, judged, stage, float_output)
    document: dict[str, Any] = {
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
    head = (
        f"wrote {output}: tuned on {result.examples} examples, score of {result.dev_examples} "
        f"others, in {document['seconds']:.0f} s; next: ibert quantize {output} -o NAME.ibert"
    )
    return CommandResult(document, [head, Table((), rows)])
