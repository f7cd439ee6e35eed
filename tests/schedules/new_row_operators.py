"""Row operators that the product does not have, written with TE as emission would write them.

Nothing of their names, of their stages or of their kinds occurs in any schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tvm import te, tirx

from tests.arm.row_program import RowKernel

ROWS, CHANNELS = 6, 40


def _axis(extent: int) -> te.IterVar:
    return te.reduce_axis((0, extent), name="r")


def _int32(value: tirx.Expr) -> tirx.Expr:
    return value.astype("int32")


def _clamped(value: tirx.Expr, dtype: str) -> tirx.Expr:
    low, high = (-127, 127) if dtype == "int8" else (0, 255)
    bounds = (tirx.const(low, "int32"), tirx.const(high, "int32"))
    return tirx.max(tirx.min(value, bounds[1]), bounds[0]).astype(dtype)


def _kernel(
    name: str,
    tensors: Sequence[te.Tensor],
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
) -> RowKernel:
    func = te.create_prim_func(list(tensors))
    for key in ("ibert.kernel", "ibert.layer"):
        func = func.with_attr(key, name)
    return RowKernel(name, func, list(inputs), list(outputs), ROWS * CHANNELS)


def _input(low: int, high: int, dtype: str, seed: int = 3) -> tuple[te.Tensor, np.ndarray]:
    random = np.random.default_rng(seed)
    array = random.integers(low, high, (ROWS, CHANNELS), endpoint=True).astype(dtype)
    return te.placeholder((ROWS, CHANNELS), dtype, name="x"), array


def root_mean_square_like() -> RowKernel:
    """Three numbers of a row, one of which waits for another; two results."""
    x, array = _input(-2000, 2000, "int16")
    a, b, c = (_axis(CHANNELS) for _ in range(3))
    alpha = te.compute((ROWS,), lambda i: te.sum(_int32(x[i, a]) * _int32(x[i, a]), a), "alpha")
    beta = te.compute((ROWS,), lambda i: te.max(_int32(x[i, b]), b), "beta")
    gamma = te.compute(
        (ROWS,), lambda i: te.sum(tirx.min(_int32(x[i, c]), beta[i] >> 1), c), "gamma"
    )
    delta = te.compute(
        (ROWS,),
        lambda i: tirx.truncdiv(
            tirx.const(1 << 20, "int32"), (alpha[i] >> 12) + (beta[i] >> 3) + 1
        ),
        "delta",
    )
    scaled = te.compute(
        (ROWS, CHANNELS), lambda i, j: (_int32(x[i, j]) * (delta[i] >> 6) + gamma[i]) >> 8, "scaled"
    )
    narrow = te.compute((ROWS, CHANNELS), lambda i, j: _clamped(scaled[i, j], "int8"), "narrow")
    wide = te.compute((ROWS, CHANNELS), lambda i, j: scaled[i, j] - _int32(x[i, j]), "wide")

    v = array.astype("int64")
    alphas, betas = (v * v).sum(1), v.max(1)
    gammas = np.minimum(v, (betas >> 1)[:, None]).sum(1)
    deltas = (1 << 20) // ((alphas >> 12) + (betas >> 3) + 1)
    y = (v * (deltas >> 6)[:, None] + gammas[:, None]) >> 8
    outputs = [np.clip(y, -127, 127).astype("int8"), (y - v).astype("int32")]
    return _kernel("root_mean_square_like", [x, narrow, wide], [array], outputs)


def softmax_like() -> RowKernel:
    """A reduction of entries that wait for another reduction."""
    x, array = _input(-128, 127, "int8")
    a, b = _axis(CHANNELS), _axis(CHANNELS)
    top = te.compute((ROWS,), lambda i: te.max(_int32(x[i, a]), a), "top")
    soft = te.compute(
        (ROWS, CHANNELS),
        lambda i, j: tirx.max(1000 - (top[i] - _int32(x[i, j])) * 9, tirx.const(0, "int32")),
        "soft",
    )
    whole = te.compute((ROWS,), lambda i: te.sum(soft[i, b], b), "whole")
    part = te.compute(
        (ROWS,), lambda i: tirx.truncdiv(tirx.const(255 << 16, "int32"), whole[i]), "part"
    )
    share = te.compute(
        (ROWS, CHANNELS), lambda i, j: _clamped((soft[i, j] * part[i]) >> 16, "uint8"), "share"
    )
    v = array.astype("int64")
    e = np.maximum(1000 - (v.max(1, keepdims=True) - v) * 9, 0)
    outputs = [np.minimum((e * ((255 << 16) // e.sum(1, keepdims=True))) >> 16, 255)]
    return _kernel("softmax_like", [x, share], [array], [outputs[0].astype("uint8")])


def requantise_by_maximum() -> RowKernel:
    """Each row is rescaled by its largest absolute value."""
    x, array = _input(-5000, 5000, "int32")
    a = _axis(CHANNELS)
    peak = te.compute((ROWS,), lambda i: te.max(tirx.max(x[i, a], -x[i, a]), a), "peak")
    factor = te.compute(
        (ROWS,),
        lambda i: tirx.truncdiv(
            tirx.const(127 << 16, "int32"), tirx.max(peak[i], tirx.const(1, "int32"))
        ),
        "factor",
    )
    result = te.compute(
        (ROWS, CHANNELS), lambda i, j: _clamped((x[i, j] * factor[i] + 32768) >> 16, "int8"), "q"
    )
    v = array.astype("int64")
    factors = (127 << 16) // np.maximum(np.abs(v).max(1, keepdims=True), 1)
    output = np.clip((v * factors + 32768) >> 16, -127, 127).astype("int8")
    return _kernel("requantise_by_maximum", [x, result], [array], [output])


def pooled_and_centred() -> RowKernel:
    """Sums over rows, whose results are a row that is reduced again."""
    tokens = 3
    random = np.random.default_rng(4)
    array = random.integers(-1000, 1000, (ROWS, tokens, CHANNELS)).astype("int32")
    x = te.placeholder(array.shape, "int32", name="x")
    a, b = _axis(tokens), _axis(CHANNELS)
    pooled = te.compute((ROWS, CHANNELS), lambda i, j: te.sum(x[i, a, j], a), "pooled")
    level = te.compute((ROWS,), lambda i: te.sum(pooled[i, b], b), "level")
    result = te.compute((ROWS, CHANNELS), lambda i, j: pooled[i, j] * 8 - (level[i] >> 2), "out")
    sums = array.sum(1)
    output = sums * 8 - (sums.sum(1, keepdims=True) >> 2)
    return _kernel("pooled_and_centred", [x, result], [array], [output.astype("int32")])


def totals() -> RowKernel:
    """One number per row is all there is, and one that is made of it."""
    x, array = _input(-128, 127, "int8")
    a = _axis(CHANNELS)
    total = te.compute((ROWS,), lambda i: te.sum(_int32(x[i, a]), a), "tally")
    doubled = te.compute((ROWS,), lambda i: total[i] * 2, "doubled")
    sums = array.astype("int32").sum(1, dtype="int32")
    return _kernel("totals", [x, total, doubled], [array], [sums, sums * 2])


def two_of_one_statistic() -> RowKernel:
    """Two results that need the same number of a row, and nothing of each other."""
    x, array = _input(-128, 127, "int8")
    a = _axis(CHANNELS)
    total = te.compute((ROWS,), lambda i: te.sum(_int32(x[i, a]), a), "tally")
    above = te.compute((ROWS, CHANNELS), lambda i, j: _int32(x[i, j]) + total[i], "above")
    below = te.compute((ROWS, CHANNELS), lambda i, j: _int32(x[i, j]) - total[i], "below")
    v = array.astype("int32")
    sums = v.sum(1, keepdims=True, dtype="int32")
    return _kernel("two_of_one_statistic", [x, above, below], [array], [v + sums, v - sums])


OPERATORS: tuple[Callable[[], RowKernel], ...] = (
    root_mean_square_like,
    softmax_like,
    requantise_by_maximum,
    pooled_and_centred,
    totals,
    two_of_one_statistic,
)
