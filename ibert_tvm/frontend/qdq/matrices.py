"""The integers of the source's weights in the matrices of the canonical module.

Importers transpose, slice and scale weights on the way to canonical form. Instead of following
every step, rows are recognised by their content: a row of a canonical matrix that equals a row (or
a column) of a dequantised tensor, up to one factor for the whole matrix, has the integers and the
scale of that row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...common.types import Array
from ..given import GivenMatrix
from .strip import GivenTensor

_RELATIVE = 1e-6


@dataclass(frozen=True, eq=False)
class _Rows:
    """One orientation of a given tensor: views of its floats and integers, a scale per row."""

    tensor: str
    values: NDArray[np.float32]
    integers: Array
    zero_point: NDArray[np.int32]
    scale: NDArray[np.float64]

    def steps(self, rows: Any = slice(None)) -> NDArray[np.int32]:
        """Integers of some rows, counted from their zero points."""
        return self.integers[rows].astype(np.int32) - self.zero_point[rows][..., None]


class MatrixIndex:
    """Finds rows of the source's quantised matrices.

    Parameters
    ----------
    given
        Quantised constants; those that are no matrices, or have no scale per row in either
        orientation, take no part.
    """

    def __init__(self, given: Iterable[GivenTensor]) -> None:
        self._by_width: dict[int, list[_Rows]] = {}
        for tensor in given:
            shape = _matrix_shape(tensor.integers)
            for rows in _orientations(tensor, shape) if shape is not None else []:
                self._by_width.setdefault(rows.values.shape[1], []).append(rows)
        self._lookup: dict[int, dict[bytes, list[tuple[_Rows, int]]]] = {}

    def find(self, matrix: NDArray[np.float32], hint: str = "") -> GivenMatrix | None:
        """Return the integers of a canonical matrix.

        Parameters
        ----------
        matrix
            float32 [N, K].
        hint
            Name of the source's array that it comes from, if known: preferred among equal rows.

        Returns
        -------
        GivenMatrix or None
            None if no row is found: the source holds the matrix as floats, or with scales that
            change within the rows.
        """
        scaled = self._scaled(matrix)
        if scaled is not None:
            return scaled
        lookup = self._rows_of_width(matrix.shape[1])
        integers = np.zeros(matrix.shape, np.int32)
        scale = np.ones(len(matrix))
        found = np.zeros(len(matrix), np.bool_)
        tensor = ""
        for index, row in enumerate(np.ascontiguousarray(matrix, np.float32)):
            candidates = lookup.get(row.tobytes(), [])
            if not candidates:
                continue
            rows, at = min(candidates, key=lambda item: item[0].tensor not in (hint, tensor))
            integers[index], scale[index], found[index] = rows.steps(at), rows.scale[at], True
            tensor = rows.tensor
        return GivenMatrix(integers, scale, found, tensor) if tensor else None

    def _rows_of_width(self, width: int) -> dict[bytes, list[tuple[_Rows, int]]]:
        if width not in self._lookup:
            table: dict[bytes, list[tuple[_Rows, int]]] = {}
            for rows in self._by_width.get(width, []):
                for index, row in enumerate(rows.values):
                    table.setdefault(row.tobytes(), []).append((rows, index))
            self._lookup[width] = table
        return self._lookup[width]

    def _scaled(self, matrix: NDArray[np.float32]) -> GivenMatrix | None:
        """Match a whole matrix up to one factor: exporters multiply weights by a scale."""
        for rows in self._by_width.get(matrix.shape[1], []):
            if rows.values.shape != matrix.shape:
                continue
            at = int(np.abs(rows.values).argmax())
            largest = float(rows.values.flat[at])
            factor = float(matrix.flat[at]) / largest if largest else 0.0
            if not factor or not np.isfinite(factor):
                continue
            limit = _RELATIVE * abs(largest * factor)
            # One row tells nearly all other matrices apart.
            if all(
                np.abs(rows.values[part] * np.float64(factor) - matrix[part]).max() <= limit
                for part in (slice(0, 1), slice(None))
            ):
                # Exactly 1 must not become 1 + an ulp: the scale would differ from the source's.
                exact = factor if not np.array_equal(rows.values, matrix) else 1.0
                sign = int(np.sign(exact))
                return GivenMatrix(
                    rows.steps() * np.int32(sign),
                    rows.scale * abs(exact),
                    np.ones(len(matrix), np.bool_),
                    rows.tensor,
                )
        return None


def _matrix_shape(array: Array) -> tuple[int, int] | None:
    """Shape of a matrix, also of one that is broadcast over a batch; None for anything else."""
    shape = array.shape
    while len(shape) > 2 and shape[0] == 1:
        shape = shape[1:]
    return (shape[0], shape[1]) if len(shape) == 2 and array.size else None


def _orientations(tensor: GivenTensor, shape: tuple[int, int]) -> list[_Rows]:
    """Both ways to read a matrix as rows with one scale each, where there is one."""
    grid, integers = tensor.grid, tensor.integers
    matrices = [array.reshape(shape) for array in (grid.dequantize(integers), integers)]
    result = []
    for rows_first in (True, False):
        values, steps = (array if rows_first else array.T for array in matrices)
        scale = _per_row(tensor, grid.scale, shape, rows_first)
        zero = _per_row(tensor, grid.zero_point, shape, rows_first)
        if scale is not None and zero is not None:
            result.append(
                _Rows(tensor.name, values, steps, zero.astype(np.int32), scale.astype(np.float64))
            )
    return result


def _per_row(
    tensor: GivenTensor, array: Array, shape: tuple[int, int], rows_first: bool
) -> Array | None:
    """Scales or zero points of the rows; None if they change within one."""
    whole = tensor.integers.shape
    spread = np.broadcast_to(tensor.grid.spread(array, whole), whole).reshape(shape)
    matrix = spread if rows_first else spread.T
    return matrix[:, 0] if bool((matrix == matrix[:, :1]).all()) else None
