"""Fine-tune the tasks' float models with the integers that will run.

    python -m benchmarks.tasks.integers --data build/tasks --models build/tasks/models

What `ibert finetune` does with ``--float-epochs 0``, and `ibert quantize` with what it wrote:
``NAME-integer.ibert`` beside each float model, and ``NAME-integer.json``, how it was trained and
what the development set said. That set alone chooses: of the calibrated model and of every epoch's
the one with the best score stays.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .build import TASKS
from .finetune import LONGEST, TRAINED

__all__ = ["finetune_integers", "main"]

LOG = logging.getLogger("benchmarks")


def finetune_integers(
    name: str, data: Path, models: Path, settings: Any, samples: int | None = None
) -> dict[str, Any]:
    """Fine-tune a task's float model with integers, and quantise it.

    Parameters
    ----------
    name : str
        One of `benchmarks.tasks.finetune.TRAINED`.
    data, models : pathlib.Path
        Where the tasks and the float models are.
    settings : ibert_tvm.train.settings.FinetuneSettings
        How.
    samples : int, optional
        Train on the first so many.

    Returns
    -------
    dict
        Settings, sizes, and scores of the development set.
    """
    import ibert_tvm
    from ibert_tvm.train.examples import read_examples
    from ibert_tvm.train.finetune import finetune

    task = TASKS[name]
    columns = {column: column for column in task.columns}
    examples, dev = read_examples(data / name, task.kind, columns)
    if samples is not None:
        examples = examples.chosen(range(min(samples, len(examples))))
    started = time.process_time()
    tuned = models / f"{name}-integer"
    result = finetune(models / name, examples, tuned, settings, dev)
    output = models / f"{name}-integer.ibert"
    shutil.rmtree(output, ignore_errors=True)
    ibert_tvm.quantize(ibert_tvm.load(tuned)).save(output)
    found = {
        "task": name,
        "settings": settings.to_json(),
        "processor_seconds": round(time.process_time() - started),
        **asdict(result),
    }
    document = output.with_suffix(".json")
    document.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    LOG.info("%s: %s", name, result.integer_stage)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Fine-tune; returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tasks.integers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the tasks")
    parser.add_argument("--models", type=Path, required=True, help="folder of the models")
    parser.add_argument("--tasks", default=",".join(TRAINED), help="comma-separated")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--learning-rate", type=float, default=2e-6)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--samples", type=int, help="train on the first so many alone")
    parser.add_argument("--distill", choices=("none", "logits"), default="none")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    import torch

    from ibert_tvm.train.settings import FinetuneSettings

    torch.set_num_threads(1)
    settings = FinetuneSettings(
        float_epochs=0,
        epochs=options.epochs,
        learning_rate=options.learning_rate,
        batch_size=options.batch,
        seq_len=LONGEST,
        seed=options.seed,
        distillation=options.distill,
    )
    for name in options.tasks.split(","):
        if name not in TRAINED:
            parser.error(f"--tasks: {name!r} is none of {', '.join(TRAINED)}")
        finetune_integers(name, options.data, options.models, settings, options.samples)
    return 0


if __name__ == "__main__":
    sys.exit(main())
