"""A training step with the integers that will run beside the same step in float.

    python -m benchmarks.training
    python -m benchmarks.training --batch 32 --seq-len 32 --steps 9

MiniLM with its own weights in both; a step is forward, backward and AdamW, and with integers the
lowering of the changed weights. Both take turns on the same random tokens; figures are medians, of
processor time (what other programs on a machine disturb least) and of time by the wall clock.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .models import MODELS, model_folder
from .report import machine_lines, table
from .store import new_result, save_with_text

__all__ = ["GOAL", "main", "measure"]

GOAL = 4.0
"""Times a float step that an integer step may take."""
_CALIBRATION = 64


def _steps(batch: int, seq_len: int) -> dict[str, Callable[[], None]]:
    """One step of each kind."""
    import torch

    from ibert_tvm.frontend.hf_folder import HfFolder
    from ibert_tvm.frontend.transformers_import import float_module
    from ibert_tvm.texts import data_file
    from ibert_tvm.train import prepare

    with tempfile.TemporaryDirectory() as cache:
        folder = model_folder(MODELS["minilm"], Path(cache))
        lines = data_file("calibration.txt").read_text(encoding="utf-8").splitlines()
        integers = prepare(folder, calibration=lines[:_CALIBRATION])
        info = integers.info
        floating = float_module(HfFolder.read(folder), info.head)
    generator = np.random.default_rng(0)
    ids = torch.from_numpy(generator.integers(1000, info.vocab_size, (batch, seq_len)))
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if "token_type_ids" in info.inputs:
        given["token_type_ids"] = torch.zeros_like(ids)
    name = info.outputs[0].name

    def step_of(module: Any, output: Callable[[Any], Any]) -> Callable[[], None]:
        optimiser = torch.optim.AdamW(module.parameters(), lr=2e-6)

        def step() -> None:
            output(module(**given)).square().mean().backward()
            optimiser.step()
            optimiser.zero_grad()

        return step

    return {
        # Without dropout, which the integers do not have.
        "float": step_of(floating.eval(), lambda result: result),
        "integers": step_of(integers.eval(), lambda result: result[name]),
    }


def measure(batch: int, seq_len: int, steps: int, threads: int) -> dict[str, Any]:
    """Time steps of both kinds, in turns.

    Parameters
    ----------
    batch, seq_len : int
        Sequences, and tokens of each.
    steps : int
        Of each kind; one more goes before.
    threads : int
        Of torch.

    Returns
    -------
    dict
        Seconds by kind and clock, all and their medians, and ratios of the medians.
    """
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    clocks = {"processor": time.process_time, "wall": time.perf_counter}
    kinds = _steps(batch, seq_len)
    seconds: dict[str, dict[str, list[float]]] = {
        kind: {clock: [] for clock in clocks} for kind in kinds
    }
    for number in range(steps + 1):
        for kind, step in kinds.items():
            before = {clock: read() for clock, read in clocks.items()}
            step()
            if number:
                for clock, read in clocks.items():
                    seconds[kind][clock].append(read() - before[clock])
    medians = {
        kind: {clock: statistics.median(values) for clock, values in by_clock.items()}
        for kind, by_clock in seconds.items()
    }
    ratios = {clock: medians["integers"][clock] / medians["float"][clock] for clock in clocks}
    sizes = {"batch": batch, "seq_len": seq_len, "threads": threads, "steps": steps}
    return {**sizes, "seconds": seconds, "medians": medians, "ratios": ratios, "goal": GOAL}


def _markdown(result: dict[str, Any]) -> str:
    found = result["training"]
    rows = [
        [kind, *(f"{found['medians'][kind][clock]:.2f} s" for clock in ("processor", "wall"))]
        for kind in ("float", "integers")
    ]
    rows.append(["ratio", *(f"{found['ratios'][clock]:.2f}" for clock in ("processor", "wall"))])
    head = [
        "# A training step of MiniLM",
        "",
        f"{found['batch']} sequences of {found['seq_len']} tokens, {found['threads']} threads, "
        f"medians of {found['steps']} steps each, in turns; at most {found['goal']:g} times a "
        "float step is wanted.",
        "",
    ]
    lines = table(["step", "processor time", "wall clock"], rows)
    return "\n".join([*head, *lines, "", *machine_lines(result)]) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Measure and write the result; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.training",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seq-len", type=int, default=64)
    parser.add_argument("--steps", type=int, default=7, help="of each kind")
    parser.add_argument("--threads", type=int, default=1)
    results = Path(__file__).with_name("results")
    parser.add_argument("--output", type=Path, default=results / "training.json")
    options = parser.parse_args(arguments)
    result = new_result([], {})
    result["training"] = measure(options.batch, options.seq_len, options.steps, options.threads)
    text = _markdown(result)
    save_with_text(result, text, options.output.with_suffix(""))
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
