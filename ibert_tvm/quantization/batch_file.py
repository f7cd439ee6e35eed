"""Calibration batches from a file of NumPy arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..common.array_file import read_arrays
from ..common.errors import DocumentError, UsageError

# Rows that the float model runs at once.
_ROWS = 8


def read_batches(
    path: str | Path, limit: int | None = None
) -> list[dict[str, NDArray[np.generic]]]:
    """Read calibration batches from an ``.npz`` file, as ``numpy.savez`` writes it.

    Parameters
    ----------
    path
        The file. Its arrays are named as the model's inputs: ``input_ids`` and, where there is
        padding, ``attention_mask``, each [sequences, tokens]. Batches of several lengths are told
        apart by a number behind a dot: ``input_ids.0``, ``input_ids.1``.
    limit
        Use only the first sequences of the file.

    Returns
    -------
    list of dict of str to numpy.ndarray
        Batches of at most 8 sequences, in the order of the file's batches.

    Raises
    ------
    UsageError
        If the file cannot be read, holds nothing, or the arrays of a batch differ in length.
    """
    groups: dict[str, dict[str, NDArray[np.generic]]] = {}
    for key, array in _arrays(Path(path).expanduser()).items():
        name, _, number = key.partition(".")
        groups.setdefault(number, {})[name] = array
    batches = []
    left = limit
    for number, arrays in groups.items():
        rows = {array.shape[0] if array.ndim else 0 for array in arrays.values()}
        if len(rows) != 1 or rows == {0}:
            shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
            raise UsageError(
                "the arrays of a calibration batch do not belong together",
                where=f"{path}" + (f", batch {number}" if number else ""),
                why=f"their shapes are {shapes}",
                todo="give arrays [sequences, tokens] of one shape per batch",
            )
        count = rows.pop() if left is None else min(rows.pop(), left)
        left = None if left is None else left - count
        batches += [
            {name: array[start : min(start + _ROWS, count)] for name, array in arrays.items()}
            for start in range(0, count, _ROWS)
        ]
    return batches


def _arrays(file: Path) -> dict[str, NDArray[np.generic]]:
    todo = "write it with numpy.savez(file, input_ids=..., attention_mask=...)"
    try:
        arrays = read_arrays(file)
    except DocumentError as error:
        where = ", ".join(filter(None, (str(file), error.where)))
        raise UsageError(
            "cannot read the calibration batches", where=where, why=error.what, todo=todo
        ) from error
    if not arrays:
        raise UsageError("there is no array in the file", where=str(file), todo=todo)
    return arrays
