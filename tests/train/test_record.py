"""For the record: random batches, what is trained beside the reference and compiled libraries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import ibert_tvm as ibert
from ibert_tvm.artefact import QuantizedModel
from ibert_tvm.relay_passes.integer.evaluate import evaluate_all
from ibert_tvm.train.integers import IntegerProgram
from tests.golden.models import quantized
from tests.train.small import MODELS, VOCABULARY, batch, integer_model

BATCHES, ROWS, LENGTH = 1000, 3, 12
CASES = [*((name, preset) for name in MODELS for preset in ("accurate", "paper"))]
CASES += [("roberta", "accurate"), ("roberta", "paper"), ("ibert", "released")]


def _model(name: str, preset: str) -> QuantizedModel:
    if name in MODELS:
        return integer_model(name, preset).quantized()
    return quantized(name if preset != "paper" else f"{name}-paper")


@pytest.mark.record
@pytest.mark.parametrize(("name", "preset"), CASES)
def test_a_thousand_random_batches_have_the_integers_of_libraries(
    name: str, preset: str, tmp_path: Path
) -> None:
    model = _model(name, preset)
    program = IntegerProgram(model.program, model.parameters, torch.device("cpu"))
    ibert.compile(model, target="host", shapes=[(ROWS, LENGTH)]).export(tmp_path / "host.so")
    board = ibert.compile(model, target="rpi4", shapes=[(ROWS, LENGTH)], runtime="none")
    board.export(tmp_path / "board.so")
    libraries = [
        ibert.load_library(tmp_path / "host.so", num_threads=1),
        ibert.load_library(tmp_path / "board.so", emulate=True),
    ]
    outputs = [(info.name, entry["value"]) for info, entry in _outputs(model)]
    random = np.random.default_rng(7)
    vocabulary = min(VOCABULARY, model.info.vocab_size)
    for seed in range(BATCHES):
        rows, length = (int(random.integers(1, most + 1)) for most in (ROWS, LENGTH))
        given = batch(seed, rows, length)
        given["input_ids"] %= vocabulary
        if "token_type_ids" in model.info.inputs:
            given["token_type_ids"] = given["input_ids"] % model.info.type_vocab_size
        _, wanted = evaluate_all(model.program, given, model.parameters)
        found = program.run({key: torch.from_numpy(array) for key, array in given.items()})
        for key, values in wanted.items():
            np.testing.assert_array_equal(found[key].numpy(), values, err_msg=f"{key}, {seed}")
        for library in libraries:
            results = library.run(**given, dequantize=False)
            for output, value in outputs:
                np.testing.assert_array_equal(
                    results[output].values, wanted[value], err_msg=f"{output}, {seed}"
                )


def _outputs(model: QuantizedModel) -> list[tuple[object, dict[str, object]]]:
    return list(zip(model.info.outputs, model.quantization["outputs"], strict=True))
