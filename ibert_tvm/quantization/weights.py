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
from .routines import cholesky_factor, second_moments

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
    hessian = second_moments(inputs)
    mean = float(np.trace(hessian, dtype=np.float64)) / inner
    if mean == 0.0:
        return nearest(weight, scale)
    hessian[np.diag_indices(inner)] += _DAMPING * mean
    steps = np.broadcast_to(scale.astype(np.float32)[:, None], weight.shape)
    rounded = rounded_in_order(weight, steps, (-LEVELS, LEVELS), hessian)
    return rounded.astype(np.int8, order="C")


def rounded_in_order(
    weight: NDArray[np.floating],
    steps: NDArray[np.float32],
    bounds: tuple[ArrayLike, ArrayLike],
    hessian: NDArray[np.floating],
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
        Second moments of what the columns are multiplied with, positive definite, float32 or
        float64 [K, K].

    Returns
    -------
    numpy.ndarray
        Numbers of steps, [N, K].
    """
    # A column's numbers lie together.
    wanted = np.ascontiguousarray(weight.T, np.float32)
    low, high = (np.broadcast_to(np.asarray(end, np.float32), weight.shape).T for end in bounds)
    factor = _unit_factor(hessian)
    result, left = np.empty_like(wanted), np.empty_like(wanted)
    for start in range(0, len(wanted), _BLOCK):
        stop = min(start + _BLOCK, len(wanted))
        block = factor[start:stop, :start] @ left[:start]
        block += wanted[start:stop]
        for place in range(start, stop):
            column, step, integers = block[place - start], steps[:, place], result[place]
            column += factor[place, start:place] @ left[start:place]
            np.divide(column, step, out=integers)
            np.rint(integers, out=integers)
            np.clip(integers, low[place], high[place], out=integers)
            np.subtract(wanted[place], integers * step, out=left[place])
    return result.T


def _unit_factor(matrix: NDArray[np.floating]) -> NDArray[np.float32]:
    """The lower factor M of a positive definite matrix M^T M, each row divided by its diagonal.

    Its rows say how an entry makes up for what rounding has left of the earlier ones. With rows and
    columns in the opposite order the matrix is L L^T, and M the transpose of L, likewise turned.
    What is above the diagonal means nothing.
    """
    turned = matrix[::-1, ::-1]
    try:
        lower = cholesky_factor(np.array(turned, order="F"))
    except np.linalg.LinAlgError:  # not positive definite in the precision that it came in
        lower = cholesky_factor(np.array(turned, np.float64, order="F"))
    factor = lower.T[::-1, ::-1].astype(np.float32, order="C")
    factor /= np.diag(factor)[:, None].copy()
    return factor


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
