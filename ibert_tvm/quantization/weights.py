"""Int8 weights with a scale per row.

Rounding to the nearest treats every weight alone. `compensated_rounding` instead rounds column by
column and lets the columns that are still free absorb the error that the layer's output has made
so far (GPTQ, Frantar et al. 2023), which costs one Cholesky factorisation per matrix.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ibert_tvm.relay_passes.quantization_table import WeightQuant

from ..model.trained_scales import FINE_LEVELS, LEVELS, nearest, nearest_fine
from .routines import inverse_of_upper, second_moments

_CLIPPINGS = (1.0, 0.97, 0.94, 0.91, 0.88, 0.85)
# A row whose weights vanish beside those of the others gets fewer levels instead of a scale so
# small that its bias would leave int32.
_SMALLEST_ROW = 2.0**-10
_DAMPING = 0.1
_BLOCK = 64
# Entries that a search looks at together, so that all its passes find them in the cache.
_ENTRIES = 2**16


def row_scales(
    weight: NDArray[np.float32], column_weight: NDArray[np.float32] | None = None
) -> NDArray[np.float64]:
    """Choose a scale per row.

    Parameters
    ----------
    weight
        [N, K], float.
    column_weight
        [K]: mean square of what each column is multiplied with. Given, the clipping with the
        smallest weighted squared error is searched per row; otherwise nothing is clipped.

    Returns
    -------
    numpy.ndarray
        float64 [N], positive.
    """
    largest = np.maximum(weight.max(axis=1), -weight.min(axis=1)).astype(np.float64)
    top = float(largest.max()) or 1.0
    scales = np.maximum(largest, top * _SMALLEST_ROW) / LEVELS
    if column_weight is None:
        return scales
    best, smallest = scales.copy(), np.full(scales.shape, np.inf)
    count = max(_ENTRIES // weight.shape[1], 1)
    for start in range(0, weight.shape[0], count):
        block = slice(start, start + count)
        rows = weight[block]
        for clipping in _CLIPPINGS:
            candidate = scales[block] * clipping
            step = candidate[:, None].astype(np.float32)
            error = rows / step
            np.rint(error, out=error)
            np.clip(error, -LEVELS, LEVELS, out=error)
            error *= step
            error -= rows
            error *= error
            weighted = error @ column_weight
            better = weighted < smallest[block]
            best[block] = np.where(better, candidate, best[block])
            smallest[block] = np.where(better, weighted, smallest[block])
    return best


def compensated_rounding(
    weight: NDArray[np.float32], scale: NDArray[np.float64], inputs: NDArray[np.float32]
) -> NDArray[np.int8]:
    """Round weights so that the outputs for `inputs` change little.

    Parameters
    ----------
    weight
        [N, K], float.
    scale
        Scale per row [N].
    inputs
        What the matrix is multiplied with, after its own quantisation, [tokens, K].

    Returns
    -------
    numpy.ndarray
        int8 [N, K] in -127..127.
    """
    inner = weight.shape[1]
    # Its upper half, which is all that is read: NumPy takes as long again to copy the other.
    hessian = second_moments(inputs).astype(np.float64, copy=False)
    mean = float(np.trace(hessian)) / inner
    if mean == 0.0:
        return nearest(weight, scale)
    hessian[np.diag_indices(inner)] += _DAMPING * mean
    steps = np.broadcast_to(scale.astype(np.float32)[:, None], weight.shape)
    return rounded_in_order(weight, steps, (-LEVELS, LEVELS), hessian).astype(np.int8)


def rounded_in_order(
    weight: NDArray[np.floating],
    steps: NDArray[np.float32],
    bounds: tuple[ArrayLike, ArrayLike],
    hessian: NDArray[np.float64],
) -> NDArray[np.float32]:
    """Round column by column; later columns absorb the errors of earlier ones.

    Parameters
    ----------
    weight
        [N, K].
    steps
        Of each entry, [N, K].
    bounds
        Least and largest number of steps, one or for each entry.
    hessian
        Second moments of what the columns are multiplied with, positive definite, [K, K].

    Returns
    -------
    numpy.ndarray
        Numbers of steps, [N, K].
    """
    inner = weight.shape[1]
    factor = _factor_of_inverse(hessian).astype(np.float32)
    remaining = weight.astype(np.float32, copy=True)
    low, high = (np.broadcast_to(np.asarray(end, np.float32), weight.shape) for end in bounds)
    result = np.empty(weight.shape, np.float32)
    for start in range(0, inner, _BLOCK):
        stop = min(start + _BLOCK, inner)
        block = np.ascontiguousarray(remaining[:, start:stop].T)  # [columns, N]
        errors = np.empty_like(block)
        for column in range(stop - start):
            place = start + column
            row, step = factor[place, place:stop], steps[:, place]
            integers = np.clip(np.rint(block[column] / step), low[:, place], high[:, place])
            result[:, place] = integers
            errors[column] = (block[column] - integers * step) / row[0]
            block[column:] -= row[:, None] * errors[column]
        remaining[:, stop:] -= errors.T @ factor[start:stop, stop:]
    return result


def _factor_of_inverse(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """The upper factor U of the inverse of a positive definite matrix, which is U^T U.

    Its rows say how an error in one column is best spread over the later ones. With rows and
    columns in the opposite order, the matrix is M M^T of a lower M, and U is the inverse of M: that
    takes a fifth of the operations of the inverse and its factor.
    """
    lower = np.linalg.cholesky(matrix[::-1, ::-1])
    # Fortran's order is that of the transpose: its upper inverse is that of the lower factor.
    return np.asarray(inverse_of_upper(np.asarray(lower.T, np.float64)).T[::-1, ::-1])


def quantize_embedding(
    table: NDArray[np.float32], per_row: bool, fine: bool = False
) -> WeightQuant:
    """Integer rows of an embedding table.

    Parameters
    ----------
    table
        [V, C], float.
    per_row
        A scale per row, or (as published) one for the table.
    fine
        Rows of 14 bits, whose requantisation still fits int32, instead of 8.
    """
    scale = row_scales(table)
    if fine:
        scale = scale * (LEVELS / FINE_LEVELS)
        return WeightQuant(nearest_fine(table, scale), scale)
    if not per_row:
        scale = np.full_like(scale, scale.max())
    return WeightQuant(nearest(table, scale), scale)
