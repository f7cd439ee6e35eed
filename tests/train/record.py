"""Random batches for the record: training modules beside the reference and libraries.

nice -n 15 python -m tests.train.record --seconds 3600

goes on behind `record.json` until every case has its thousand.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ibert_tvm as ibert
from ibert_tvm.model.artefact import QuantizedModel
from ibert_tvm.relay_passes.integer.evaluate import evaluate_all
from ibert_tvm.train.integers import IntegerProgram
from tests.golden.models import quantized
from tests.processes import run_captured
from tests.train.small import MODELS, VOCABULARY, batch, integer_model

BATCHES, ROWS, LENGTH = 1000, 3, 12
CASES = [*((name, preset) for name in MODELS for preset in ("accurate", "paper"))]
CASES += [("roberta", "accurate"), ("roberta", "paper"), ("ibert", "released")]
ARM = "rpi4"
RECORD = Path(__file__).with_name("record.json")
_PART = 50
"""Batches of a case before the next one has its turn."""


class Comparison:
    """One model: its training module, the reference, a library of the host and one of ARM.

    Parameters
    ----------
    name, preset : str
        Of `CASES`.
    folder : pathlib.Path
        For the libraries.
    """

    def __init__(self, name: str, preset: str, folder: Path) -> None:
        self.model = _model(name, preset)
        model = self.model
        self.program = IntegerProgram(model.program, model.parameters, torch.device("cpu"))
        shapes = [(ROWS, LENGTH)]
        host, board = folder / f"{name}-{preset}.so", folder / f"{name}-{preset}-{ARM}.so"
        ibert.compile(model, target="host", shapes=shapes).export(host)
        ibert.compile(model, target=ARM, shapes=shapes, runtime="none").export(board)
        self.libraries = [
            ibert.load_library(host, num_threads=1),
            ibert.load_library(board, emulate=True),
        ]

    def inputs(self, seed: int) -> dict[str, Any]:
        """A random batch of up to `ROWS` x `LENGTH` tokens."""
        random = np.random.default_rng([7, seed])
        info = self.model.info
        rows, length = (int(random.integers(1, most + 1)) for most in (ROWS, LENGTH))
        given = batch(seed, rows, length)
        given["input_ids"] %= min(VOCABULARY, info.vocab_size)
        if "token_type_ids" in info.inputs:
            given["token_type_ids"] = given["input_ids"] % info.type_vocab_size
        return given

    def check(self, seed: int) -> int:
        """Compare all integers of a batch; returns how many.

        Raises
        ------
        AssertionError
            If one differs.
        """
        given = self.inputs(seed)
        model = self.model
        _, wanted = evaluate_all(model.program, given, model.parameters)
        tensors = {key: torch.from_numpy(array) for key, array in given.items()}
        found = self.program.run(tensors)
        assert found.keys() == wanted.keys()
        compared = 0
        for key, values in wanted.items():
            np.testing.assert_array_equal(found[key].numpy(), values, err_msg=f"{key}, {seed}")
            compared += values.size
        outputs = zip(model.info.outputs, model.quantization["outputs"], strict=True)
        values_of = [(info.name, entry["value"]) for info, entry in outputs]
        for library in self.libraries:
            results = library.run(**given, dequantize=False)
            for output, value in values_of:
                np.testing.assert_array_equal(
                    results[output].values, wanted[value], err_msg=f"{output}, {seed}"
                )
                compared += wanted[value].size
        return compared


def _model(name: str, preset: str) -> QuantizedModel:
    if name in MODELS:
        return integer_model(name, preset).quantized()
    return quantized(name if preset != "paper" else f"{name}-paper")


def _missing(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Cases in turn, until each has its batches."""
    for case in itertools.cycle(CASES):
        if all(document.get("-".join(c), {}).get("batches", 0) >= BATCHES for c in CASES):
            return
        if document.get("-".join(case), {}).get("batches", 0) < BATCHES:
            yield case


def main() -> None:
    """Check batches behind those of the record; write what was found after each part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="When to stop.")
    end = time.monotonic() + parser.parse_args().seconds
    document = json.loads(RECORD.read_text()) if RECORD.is_file() else {}
    commit = run_captured(["git", "rev-parse", "--short", "HEAD"], check=True).stdout.strip()
    torch.set_num_threads(1)  # tensors are small
    prepared: dict[tuple[str, str], Comparison] = {}
    with tempfile.TemporaryDirectory() as folder:
        for case in _missing(document):
            if time.monotonic() > end:
                break
            if case not in prepared:
                prepared[case] = Comparison(*case, Path(folder))
            entry = document.setdefault("-".join(case), {"batches": 0, "integers": 0})
            for seed in range(entry["batches"], min(entry["batches"] + _PART, BATCHES)):
                entry["integers"] += prepared[case].check(seed)
                entry["batches"] = seed + 1
            entry["commits"] = sorted({*entry.get("commits", []), commit})
            RECORD.write_text(json.dumps(document, indent=1) + "\n")
    print({name: entry["batches"] for name, entry in document.items()})


if __name__ == "__main__":
    main()
