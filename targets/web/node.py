"""Running a package for browsers in Node.js."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ibert_tvm.common.strict_json import JsonObject

from ..bare_metal.firmware import run_on_files
from ..description import TargetDescription
from ..emulation import find_emulator

_SCRIPT = Path(__file__).with_name("run.mjs")


def run_in_node(
    package: Path,
    document: JsonObject,
    index: int,
    inputs: Mapping[str, np.ndarray],
    folder: Path,
    description: TargetDescription,
) -> dict[str, np.ndarray]:
    """Run a shape of a package.

    Parameters
    ----------
    package
        Its folder.
    document
        Its ``ibert_model.json``.
    index
        Number of the shape.
    inputs
        By name.
    folder
        Where files are made.
    description
        The target.

    Returns
    -------
    dict of str to numpy.ndarray
        Integers of the outputs.

    Raises
    ------
    TargetError
        If Node.js is not installed, or the model refuses the inputs.
    """
    function = document["functions"][index]
    shape = (str(function["batch"]), str(function["seq_len"]))
    command = [find_emulator(description), str(_SCRIPT), str(package.resolve()), *shape]
    return run_on_files(command, document, index, inputs, folder, description)
