"""Whole models on boards and microcontrollers, under their emulators, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ibert_tvm.model.artefact import QuantizedModel
from tests.cache import compiled_once

from .packages import assert_bit_exact, link_package, run_package
from .tools import board, run_library


def check_on_board(
    model: QuantizedModel, target: str, shape: tuple[int, int], inputs: dict[str, np.ndarray]
) -> None:
    """Compile for a board that runs Linux, run the library there, compare.

    Parameters
    ----------
    model
        The model.
    target
        The board; the test is skipped where its tools are missing.
    shape
        Batch and sequence length to compile.
    inputs
        int32, of that shape.
    """
    description = board(target)
    path = compiled_once(model, target, [shape], runtime="none")
    assert_bit_exact(model, inputs, list(run_library(path, description, inputs).values()))


def check_on_microcontroller(
    model: QuantizedModel, target: str, length: int, inputs: dict[str, np.ndarray], folder: Path
) -> None:
    """Compile a package of one sequence, run it in firmware, compare; parameters as above.

    `folder` is for what is built.
    """
    board(target)
    package = compiled_once(model, target, [(1, length)])
    run = run_package(package, link_package(package, folder), inputs, folder)
    assert_bit_exact(model, inputs, run.outputs)
