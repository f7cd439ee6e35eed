"""Quantise a matrix operand together with the weights that read it.

Activations of transformers have channels that are a hundred times larger than the others; with one
8-bit scale they take the precision of all. Smoothing (Xiao et al. 2023) divides channel c of the
activation by ``magnitude_x[c]^alpha / magnitude_w[c]^(1 - alpha)`` and multiplies column c of the
weights by the same number. At run time it is free: the divisor goes into the multipliers of the
requantisation that makes the 8-bit form. How much to move differs between layers, so every alpha of
a list is tried, and the one with the smallest error of the layers' outputs is taken.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ibert_tvm.relay_passes.quantization_table import MOST_COLUMNS, ActivationQuant, WeightQuant

from ..model.trained_scales import nearest_steps
from . import row_scaling
from .balancing import balanced_divisor
from .observers import RangeForm, Statistics, choose_range, finer
from .options import CalibrationOptions
from .weights import compensated_rounding, nearest, row_scales

# Split channels with outliers into several columns (outlier channel splitting, Zhao et al. 2019).
#
# A few channels of what a feed-forward layer computes are a hundred times larger than the others,
# at a few tokens, and one 8-bit scale serves all. Smoothing moves their size into the weights,
# which then lose precision instead. A channel of several columns has a range that is as many times
# larger at the same scale, without loss, and costs as many columns of the next product: one in
# fifty is enough to do without smoothing where it matters.

# Columns come in whole vectors.
_COLUMNS = 16


def extra_columns(channels: int, share: float) -> int:
    """Number of columns that may be added to so many channels."""
    return int(channels * share) // _COLUMNS * _COLUMNS


def split_channels(magnitude: NDArray[np.float64], columns: int) -> NDArray[np.int64] | None:
    """Say how many columns each channel gets, so that the largest part becomes smallest.

    Parameters
    ----------
    magnitude
        Largest absolute value per channel [C].
    columns
        Columns to be added; all of them are.

    Returns
    -------
    numpy.ndarray or None
        int64 [C], 1 to `MOST_COLUMNS`; None for no columns.
    """
    if columns == 0:
        return None
    splits = np.ones(magnitude.size, np.int64)
    parts = [(-float(size), channel) for channel, size in enumerate(magnitude)]
    heapq.heapify(parts)
    for _ in range(columns):
        _, channel = parts[0]
        splits[channel] += 1
        size = float(magnitude[channel]) / splits[channel]
        if splits[channel] == MOST_COLUMNS:
            size = 0.0
        heapq.heapreplace(parts, (-size, channel))
    return splits


_SEARCH_ROWS = 512
_SMALLEST = 1e-6
# Divisors further apart would cost the weights, and the 15-bit multipliers, too many bits.
_LARGEST_SPREAD = 2.0**10
# What products with operands of 16 bits may add up to: half of 32 bits, since biases are added.
_MOST = 2**30


@dataclass(frozen=True)
class OperandQuant:
    """A matrix operand and the weights of its readers, quantised.

    Attributes
    ----------
    activation
        With the divisor in ``channel_divisor`` if there is one.
    weights
        By the name of the reading layer; the divisor is moved into them.
    alpha
        Strength of the smoothing, from which divisors may have been balanced; 0 for none.
    error
        Mean relative squared error of the layers' outputs, weights rounded to the nearest, on
        tokens of the sample that the search did not look at, where there are any.
    """

    activation: ActivationQuant
    weights: dict[str, WeightQuant]
    alpha: float
    error: float


@dataclass(frozen=True)
class OperandForm:
    """What may be done with a matrix operand, by its preset and its place in the model.

    Parameters
    ----------
    smooth, compensate
        Whether the preset allows a divisor per channel, and rounding with compensation.
    unsigned
        Use 0..255 with a zero point.
    columns
        Columns into which channels with outliers are split.
    may_be_by_row
        Whether the operand may have a scale per row.
    centred
        Whether each channel has a zero point of its own.
    limit
        Largest integer of an operand of more than 8 bits, which is symmetric; smaller where sums
        of its products need it to be. 0 for 8 bits.
    """

    smooth: bool = True
    compensate: bool = True
    unsigned: bool = False
    columns: int = 0
    may_be_by_row: bool = False
    centred: bool = False
    limit: int = 0


def channel_divisor(
    magnitude: NDArray[np.float64], columns: NDArray[np.float64], alpha: float
) -> NDArray[np.float64]:
    """Return the divisor per channel, with a geometric mean of 1.

    Parameters
    ----------
    magnitude
        Largest absolute activation per channel [C].
    columns
        Largest absolute weight per column [C].
    alpha
        In (0, 1).

    Returns
    -------
    numpy.ndarray
        float64 [C], positive, no two further apart than a factor of 2^10.
    """
    x = np.maximum(magnitude, float(magnitude.max()) * 1e-5 or _SMALLEST)
    w = np.maximum(columns, float(columns.max()) * 1e-5 or _SMALLEST)
    logs = alpha * np.log(x) - (1.0 - alpha) * np.log(w)
    logs -= logs.mean()
    half = np.log(_LARGEST_SPREAD) / 2
    return np.asarray(np.exp(np.clip(logs, -half, half)))


def quantize_operand(
    statistics: Statistics,
    weights: Mapping[str, NDArray[np.float32]],
    options: CalibrationOptions,
    form: OperandForm = OperandForm(),
) -> OperandQuant:
    """Choose scale, divisor and integer weights for one activation.

    Parameters
    ----------
    statistics
        Of the activation, with a sample.
    weights
        Matrices [N, C] of the layers that read it, by layer name.
    options
        Observer, alphas.
    form
        What preset and place allow.
    """
    matrix = np.concatenate(list(weights.values())).astype(np.float32)
    sample, seen = statistics.sample, options.observation
    rows = sample[:: max(sample.shape[0] // _SEARCH_ROWS, 1)]
    target = rows @ matrix.T
    token = np.ones((rows.shape[0], 1), np.float32)
    if form.columns:
        # Tokens with outliers are few, and not what the others are measured by.
        token = 1 / np.maximum(np.linalg.norm(target, axis=1, keepdims=True), _SMALLEST)
    norms = _norms(target * token, weights)
    best: dict[bool, tuple[float, float, ActivationQuant]] = {}
    largest = np.abs(matrix).max(axis=0).astype(np.float64)
    ends = statistics.channel_ends(rare=form.unsigned) if form.centred else None
    extent = statistics.channel_magnitude if ends is None else (ends[1] - ends[0]) / 2

    def attempt(divisor: NDArray[np.float64] | None, alpha: float, forms: Iterable[bool]) -> None:
        divided = extent / (1.0 if divisor is None else divisor)
        static = RangeForm(
            divisor,
            split_channels(divided, form.columns),
            form.unsigned,
            form.centred,
            options.forms.first_tokens,
            ends,
        )
        moved = _moved(matrix, divisor)
        scale = row_scales(moved)
        transposed = nearest_steps(moved, scale).T
        for by_row in forms:
            quant = (
                row_scaling.form(statistics, divisor)
                if by_row
                else choose_range(statistics, seen.observer, seen.percentile, static)
            )
            if form.limit:
                quant = finer(quant, form.limit)
            output = _steps(rows, quant) @ transposed
            output *= (quant.scale * scale).astype(np.float32)
            output -= target
            error = float((_norms(output * token, weights) / norms).mean())
            if by_row not in best or error < best[by_row][0]:
                best[by_row] = (error, alpha, quant)

    forms = row_scaling.choices(options.forms.row_scales, form.may_be_by_row)
    for alpha in options.search.alphas if form.smooth else (0.0,):
        attempt(channel_divisor(extent, largest, alpha) if alpha > 0 else None, alpha, forms)
    if form.smooth and options.search.balance and False in best:
        _, alpha, quant = best[False]
        parts = extent if quant.splits is None else extent / quant.splits
        first = np.ones(extent.size) if quant.channel_divisor is None else quant.channel_divisor
        variance = sample.var(axis=0, dtype=np.float64)
        for share in options.search.balance:
            divisor = balanced_divisor(parts, matrix, variance, share, first)
            attempt(np.maximum(divisor, 1 / _LARGEST_SPREAD), alpha, (False,))
    if len(best) == 2:
        others = _others(sample)
        held_out = {by_row: _output_error(others, best[by_row][2], weights) for by_row in best}
        best.pop(not row_scaling.pays(held_out[False], held_out[True]))
    ((error, alpha, quant),) = best.values()  # options refuse an empty list of alphas
    if sample.size:
        error = _output_error(_others(sample), quant, weights)
    integers, scale = _round(matrix, quant, sample, options, form.compensate)
    if form.limit:
        sums = int(np.abs(integers, dtype=np.int64).sum(axis=1).max(initial=1))
        quant = finer(quant, min(form.limit, _MOST // sums))
    result, start = {}, 0
    for name, weight in weights.items():
        stop = start + weight.shape[0]
        rounded = integers[start:stop]
        if quant.splits is not None:
            rounded = rounded[:, quant.columns]
        result[name] = WeightQuant(rounded, scale[start:stop])
        start = stop
    return OperandQuant(quant, result, alpha, error)


def _others(sample: NDArray[np.float32]) -> NDArray[np.float32]:
    """Tokens that the search did not look at, where there are any."""
    step = max(sample.shape[0] // _SEARCH_ROWS, 1)
    return sample[step // 2 :: step]


def _output_error(
    rows: NDArray[np.float32], quant: ActivationQuant, weights: Mapping[str, NDArray[np.float32]]
) -> float:
    """Mean relative squared error of the layers' outputs, weights rounded to the nearest."""
    matrix = np.concatenate(list(weights.values())).astype(np.float32)
    moved = _moved(matrix, quant.channel_divisor)
    scale = row_scales(moved)
    target = rows @ matrix.T
    output = _steps(rows, quant) @ nearest_steps(moved, scale).T
    output *= (quant.scale * scale).astype(np.float32)
    return float((_norms(output - target, weights) / _norms(target, weights)).mean())


def _moved(matrix: NDArray[np.float32], divisor: NDArray[np.float64] | None) -> NDArray[np.float32]:
    return matrix if divisor is None else matrix * divisor.astype(np.float32)


def _norms(
    output: NDArray[np.float32], weights: Mapping[str, NDArray[np.float32]]
) -> NDArray[np.float64]:
    """Squared norm of the part of `output` [tokens, sum N] that each layer has; [layers]."""
    edges = np.cumsum([0] + [weight.shape[0] for weight in weights.values()])
    square = np.einsum("tn,tn->n", output, output, dtype=np.float64)
    parts = [square[a:b].sum() for a, b in pairwise(edges)]
    return np.maximum(np.array(parts), 1e-30)


def _steps(rows: NDArray[np.float32], quant: ActivationQuant) -> NDArray[np.float32]:
    """Steps that integers of `rows` stand for, as float32; where rows have scales, multiples."""
    steps = quant.rounded(rows / quant.channel_scale.astype(np.float32))
    return row_scaling.effective_steps(steps) if quant.by_row else steps


def _round(
    matrix: NDArray[np.float32],
    quant: ActivationQuant,
    sample: NDArray[np.float32],
    options: CalibrationOptions,
    compensate: bool,
) -> tuple[NDArray[np.int8], NDArray[np.float64]]:
    moved = _moved(matrix, quant.channel_divisor)
    steps = _steps(sample, quant)
    # Unlike activations, weights do not go further in later use: clipping them is safe.
    search = options.search.compensate or options.observation.observer == "mse"
    scale = row_scales(moved, (steps**2).mean(axis=0) if search else None)
    if compensate and options.search.compensate and steps.size:
        return compensated_rounding(moved, scale, steps), scale
    return nearest(moved, scale), scale
