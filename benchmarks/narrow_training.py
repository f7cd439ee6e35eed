r"""MiniLM with all matrices and the table of words in 4 bits: after training, and without.

    python -m benchmarks.narrow_training --corpus texts.txt

`ibert finetune --weights 4 --word-table-bits 4 --distill embeddings` tunes it on texts of a file,
or pieces of Python's documentation; the packaged calibration texts say which epoch was best. What
is measured are the packaged held-out texts, which nothing is learned of: a training text that has
five words in a row of one of them is left out. A training that was killed goes on.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from .distillation import training_texts
from .models import MODELS, calibration_texts, model_folder
from .report import machine_lines, table
from .store import new_result, save, save_with_text
from .texts import texts

__all__ = ["apart", "main", "measure", "tune"]

_IN_A_ROW = 5


def _runs(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"[a-z0-9']+", text.lower())
    return {tuple(words[i : i + _IN_A_ROW]) for i in range(len(words) - _IN_A_ROW + 1)}


def apart(lines: list[str], held: list[str]) -> list[str]:
    """Texts that are none of others, and have no five words in a row of one of them."""
    runs: set[tuple[str, ...]] = set().union(*map(_runs, held))
    known = {text.strip().lower() for text in held}
    return [x for x in lines if x.strip().lower() not in known and not _runs(x) & runs]


def measure(source: Path, folder: Path) -> dict[str, Any]:
    """Bytes, and cosines to the float model on held-out texts, of a model in 4 bits.

    Parameters
    ----------
    source
        The float model.
    folder
        What is quantised: the same, or one that was tuned.
    """
    import ibert_tvm
    from ibert_tvm.evaluation.evaluate import fidelity
    from ibert_tvm.quantization.narrow_weights import samples, with_narrow_weights
    from ibert_tvm.quantization.word_table import with_word_bits

    floating = ibert_tvm.load(source)
    model = ibert_tvm.load(folder, verify=False)
    calibration = calibration_texts()
    own = model.trained is not None
    quantised = ibert_tvm.quantize(model, calibration=None if own else calibration)
    batches = samples(quantised, calibration)
    narrow = with_word_bits(with_narrow_weights(quantised, batches), 4)
    found = fidelity(narrow, floating, texts("held-out"), layers=False)
    return {"bytes": narrow.num_bytes, **asdict(found.agreement)}


def tune(source: Path, lines: list[str], options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Tune with one seed, unless that was done, and measure.

    Parameters
    ----------
    source
        The float model.
    lines
        What it is tuned on.
    options
        `epochs`, `batch`, `cache`.
    seed
        Of the order, and of the choice of texts.
    """
    from ibert_tvm.train.examples import Examples
    from ibert_tvm.train.finetune import finetune
    from ibert_tvm.train.settings import FinetuneSettings

    settings = FinetuneSettings(
        epochs=options.epochs,
        batch_size=options.batch,
        seq_len=64,
        distillation="embeddings",
        weights="4",
        word_table_bits="4",
        seed=seed,
    )
    tuned, record = options.cache / f"seed-{seed}", options.cache / f"seed-{seed}.json"
    if not record.exists():
        started, used = time.perf_counter(), time.process_time()
        data, dev = Examples.of_texts(lines), Examples.of_texts(calibration_texts())
        result = finetune(source, data, tuned, settings, dev)
        known = {
            "seed": seed,
            "texts": len(lines),
            "steps": result.integer_stage["steps"],
            "minutes": (time.perf_counter() - started) / 60,
            "processor_minutes": (time.process_time() - used) / 60,
            "dev": [result.integer_stage["before"], result.integer_stage["best"]],
        }
        record.write_text(json.dumps(known), encoding="utf-8")
    return {**json.loads(record.read_text(encoding="utf-8")), "after": measure(source, tuned)}


def _markdown(result: dict[str, Any]) -> str:
    def row(name: str, found: dict[str, Any], *more: str) -> list[str]:
        cosines = f"{found['cosine_mean']:.4f}", f"{found['cosine_min']:.4f}"
        return [name, f"{found['bytes'] / 1e6:.2f}", *cosines, *more]

    rows = [row("rounded on the calibration texts", result["before"], "", "", "")]
    for seed in result["seeds"]:
        minutes = f"{seed['minutes']:.0f}", f"{seed['processor_minutes']:.0f}"
        rows.append(row(f"tuned, seed {seed['seed']}", seed["after"], str(seed["steps"]), *minutes))
    settings = result["settings"]
    head = ("", "MB", "mean cosine", "minimum", "steps", "minutes", "processor minutes")
    return "\n".join(
        [
            "# MiniLM in 4 bits: matrices and the table of words",
            "",
            f"Tuned on {settings['texts']} texts ({settings['corpus']}), {settings['epochs']} "
            f"epochs in batches of {settings['batch']}; measured on {len(texts('held-out'))} "
            "held-out texts, in integers.",
            "",
            *table(head, rows),
            "",
            *machine_lines(result),
            "",
        ]
    )


def main(arguments: list[str] | None = None) -> int:
    """Tune, measure and write the result; returns the exit code."""
    root = Path(__file__).parents[1]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.narrow_training",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", default="0,1,2", help="comma-separated")
    parser.add_argument("--corpus", type=Path, help="a text on each line")
    parser.add_argument("--source", default="pieces of Python's documentation", help="in words")
    parser.add_argument("--texts", type=int, default=40_000)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--cache", type=Path, default=root / "build" / "narrow-training")
    output = root / "benchmarks" / "results" / "narrow-training.json"
    parser.add_argument("--output", type=Path, default=output)
    options = parser.parse_args(arguments)
    options.cache.mkdir(parents=True, exist_ok=True)
    source = model_folder(MODELS["minilm"], options.cache)
    settings = {"corpus": options.source, "epochs": options.epochs, "batch": options.batch}
    result = new_result([], settings)
    result["before"] = measure(source, source)
    result["seeds"] = []
    for seed in map(int, options.seeds.split(",")):
        if options.corpus is None:
            lines = training_texts(options.texts, seed)
        else:
            every = options.corpus.read_text(encoding="utf-8").splitlines()
            order = np.random.default_rng([12, seed]).permutation(len(every))
            lines = [every[place] for place in order[: options.texts] if every[place].strip()]
        lines = apart(lines, texts("held-out"))
        settings["texts"] = len(lines)
        result["seeds"].append(tune(source, lines, options, seed))
        save(result, options.output)
    text = _markdown(result)
    save_with_text(result, text, options.output.with_suffix(""))
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
