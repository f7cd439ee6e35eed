"""Integer weights of a model that came quantised: the source's own wherever int8 rows hold them.

A row of the canonical matrix keeps the source's integers, counted from their zero point, when they
fit int8. The others are rounded again, row by row: integers with a zero point far from the middle
(saturated at the same scale, or with a coarser scale, whichever is nearer to the source's weights),
matrices that the source leaves in float, scales that change within a row, more than 8 bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ibert_tvm.relay_passes.quantization_table import WeightQuant

from ..frontend.given import GivenMatrix, GivenScale
from .weights import nearest, row_scales

# Half of int32: the other half is for the products.
_BIAS_LIMIT = 2.0**30


@dataclass(frozen=True)
class WeightUse:
    """How the integers of one matrix came about.

    Attributes
    ----------
    tensor
        The source's quantised tensor; empty where the source has floats.
    rows
        Rows of the matrix.
    exact
        Rows that hold the source's integers.
    why
        Why the other rows were rounded again; empty if there are none.
    """

    tensor: str
    rows: int
    exact: int
    why: str = ""


def linear_rows(
    matrix: NDArray[np.float32],
    given: GivenMatrix | None,
    bias: NDArray[np.float32],
    operand_scale: float,
    divisor: NDArray[np.float64] | None,
) -> tuple[WeightQuant, WeightUse]:
    """Int8 rows of a linear layer.

    Parameters
    ----------
    matrix
        float32 [N, K].
    given
        The source's integers.
    bias
        float32 [N]; a row whose bias would leave int32 gets a coarser scale.
    operand_scale
        Scale of the activation that it multiplies.
    divisor
        float64 [K]: the activation's channel divisor, which moves into the weights.

    Returns
    -------
    rows : WeightQuant
    use : WeightUse
    """
    if divisor is not None:
        moved = matrix * divisor.astype(np.float32)
        scale = row_scales(moved)
        use = WeightUse(
            given.tensor if given is not None else "",
            len(matrix),
            0,
            "the activation has a scale per channel, which moves into the weights",
        )
        return WeightQuant(nearest(moved, scale), scale), use
    values, scale, exact, why = _rows(matrix, given)
    smallest = np.abs(bias.astype(np.float64)) / _BIAS_LIMIT / operand_scale
    coarse = scale < smallest
    if coarse.any():
        scale = np.where(coarse, smallest, scale)
        values[coarse] = nearest(matrix[coarse], scale[coarse])
        exact &= ~coarse
        why = "; ".join(filter(None, (why, "the bias would leave int32")))
    tensor = given.tensor if given is not None else ""
    return WeightQuant(values, scale), WeightUse(tensor, len(matrix), int(exact.sum()), why)


def embedding_rows(
    table: NDArray[np.float32], given: GivenMatrix | None, rounded: GivenScale | None
) -> tuple[WeightQuant, WeightUse]:
    """Int8 rows of an embedding.

    Parameters
    ----------
    table
        float32 [V, C].
    given
        The source's integers.
    rounded
        The grid that the source rounds looked up rows to; of one scale.

    Returns
    -------
    rows : WeightQuant
    use : WeightUse
    """
    if rounded is not None and rounded.bits <= 8:
        scale, zero = float(rounded.scale), int(rounded.zero_point)
        steps = np.rint(table / np.float32(scale)).astype(np.int32)
        steps = np.clip(steps, rounded.low - zero, rounded.high - zero)
        same = (
            given is not None and (steps == given.integers).all() and (given.scale == scale).all()
        )
        tensor = given.tensor if given is not None and same else rounded.tensor
        whole = np.full(len(table), scale)
        given = GivenMatrix(steps, whole, np.ones(len(table), np.bool_), tensor)
        table = (steps * scale).astype(np.float32)
    values, scales, exact, why = _rows(table, given)
    tensor = given.tensor if given is not None else ""
    return WeightQuant(values, scales), WeightUse(tensor, len(table), int(exact.sum()), why)


def _rows(
    matrix: NDArray[np.float32], given: GivenMatrix | None
) -> tuple[NDArray[np.int8], NDArray[np.float64], NDArray[np.bool_], str]:
    """Integers and scales per row, which rows are the source's, and why others are not."""
    count = len(matrix)
    if given is None:
        scale = row_scales(matrix)
        return nearest(matrix, scale), scale, np.zeros(count, np.bool_), "floats in the source"
    values = np.zeros(matrix.shape, np.int8)
    scale = np.ones(count)
    usable = given.found & np.isfinite(given.scale) & (given.scale > 0)
    fits = (given.integers.min(axis=1) >= -128) & (given.integers.max(axis=1) <= 127)
    exact = usable & fits
    values[exact] = given.integers[exact].astype(np.int8)
    scale[exact] = given.scale[exact]
    reasons = []
    lost = usable & ~fits
    if lost.any():
        values[lost], scale[lost] = _squeezed(given.integers[lost], given.scale[lost])
        reasons.append("integers beyond int8, counted from their zero point")
    rest = ~usable
    if rest.any():
        scale[rest] = row_scales(matrix[rest])
        values[rest] = nearest(matrix[rest], scale[rest])
        reasons.append("no single scale for the row in the source")
    return values, scale, exact, "; ".join(reasons)


def _squeezed(
    integers: NDArray[np.int32], scale: NDArray[np.float64]
) -> tuple[NDArray[np.int8], NDArray[np.float64]]:
    """Rows beyond int8: saturated or coarser, whichever has the smaller squared error per row."""
    integers = integers.astype(np.int64)
    clipped = np.clip(integers, -128, 127)
    factor = np.abs(integers).max(axis=1) / 127.0
    coarse = np.rint(integers / factor[:, None])
    clip_error = ((clipped - integers) ** 2).sum(axis=1)
    coarse_error = ((coarse * factor[:, None] - integers) ** 2).sum(axis=1)
    better = clip_error <= coarse_error
    values = np.where(better[:, None], clipped, coarse).astype(np.int8)
    return values, np.where(better, scale, scale * factor)
