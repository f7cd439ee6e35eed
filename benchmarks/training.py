"""What a step of a training with integers costs, beside the same step in float.

    python -m benchmarks.training
    python -m benchmarks.training --batch 16 --seq-len 64 --steps 5

MiniLM, or any other folder: forward pass, backward pass and AdamW, both in turns in one process.
Processor time is compared, which a busy machine changes less than time on the clock. Integer
steps include lowering the model again, since every weight has changed.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .models import MODELS, calibration_texts, model_folder
from .report import machine_lines, table
from .store import new_result, save

__all__ = ["main"]

ROOT = Path(__file__).resolve().parent.parent
LOG = logging.getLogger("benchmarks")
_OUTPUT = ROOT / "benchmarks" / "results" / "training"
_CALIBRATION = 24


def _steps(options: argparse.Namespace) -> tuple[Callable[[], None], Callable[[], None]]:
    """A step in float and one with integers."""
    import torch

    from ibert_tvm.frontend.hf_folder import HfFolder
    from ibert_tvm.frontend.transformers_import import float_module
    from ibert_tvm.train import prepare

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    folder = options.model or model_folder(MODELS["minilm"], ROOT / "build" / "bench")
    texts = None if options.trained else list(calibration_texts()[:_CALIBRATION])
    integers = prepare(folder, calibration=texts, seq_len=options.seq_len, fidelity="fast")
    plain = float_module(HfFolder.read(folder), integers.info.head).train()
    shape = options.batch, options.seq_len
    ids = torch.randint(5, integers.info.vocab_size, shape)
    mask = torch.ones(shape, dtype=torch.int64)
    name = integers.info.outputs[0].name

    def step(module: Any, output: Callable[[Any], Any]) -> Callable[[], None]:
        optimiser = torch.optim.AdamW(module.parameters(), lr=1e-6)

        def once() -> None:
            (output(module(input_ids=ids, attention_mask=mask)) ** 2).mean().backward()
            optimiser.step()
            optimiser.zero_grad()

        return once

    return step(plain, lambda result: result), step(integers, lambda result: result[name])


def _measure(options: argparse.Namespace) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {"float": [], "integers": []}
    steps = dict(zip(seconds, _steps(options), strict=True))
    for number in range(options.steps + 1):
        for name, step in steps.items():
            started = time.process_time()
            step()
            if number:  # the first one allocates
                seconds[name].append(round(time.process_time() - started, 3))
            LOG.info("%s: %.2f s", name, time.process_time() - started)
    ratios = [b / a for a, b in zip(*seconds.values(), strict=True)]
    return {
        "batch": options.batch,
        "seq_len": options.seq_len,
        "threads": options.threads,
        "processor_seconds": seconds,
        "ratio": round(statistics.median(ratios), 2),
    }


def _markdown(result: dict[str, Any]) -> str:
    rows = [
        (
            f"{row['batch']} x {row['seq_len']}",
            str(row["threads"]),
            *(f"{statistics.median(row['processor_seconds'][k]):.2f}" for k in row["kinds"]),
            f"{row['ratio']:.2f}",
        )
        for row in result["rows"]
    ]
    header = ("tokens", "threads", "float, s", "integers, s", "ratio")
    lines = [
        "# A step of a training with integers",
        "",
        "Written by `python -m benchmarks.training`: all-MiniLM-L6-v2, forward pass, backward pass",
        "and AdamW; processor time, medians of steps in turns.",
        "",
        *table(header, rows),
        "",
        *machine_lines(result),
    ]
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training", description=__doc__)
    parser.add_argument("--model", type=Path, help="a Hugging Face folder; MiniLM by default")
    parser.add_argument(
        "--trained", action="store_true", help="the folder has scales: calibrate nothing"
    )
    for name, default in (("batch", 16), ("seq-len", 64), ("steps", 5), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--output", type=Path, default=_OUTPUT)
    options = parser.parse_args(arguments)
    result = new_result([], {"threads": options.threads})
    row = _measure(options)
    result["rows"] = [{**row, "kinds": list(row["processor_seconds"])}]
    document = options.output.with_name(options.output.name + ".json")
    save(result, document)
    document.with_suffix(".md").write_text(_markdown(result), encoding="utf-8")
    json.dump(result["rows"], sys.stdout)
    sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
