"""Matrix products as single kernels, with inputs and what the specification says of them.

Emitted as the compiler emits them for a model, from operators of the integer dialect; in the form
of `tests.arm.row_kernels`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from tvm import relax

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.spec.clipped import ClippedPolynomial, clipped_scale
from ibert_tvm.relay_passes.spec.gelu import GELU
from ibert_tvm.relay_passes.spec.short_requantise import short_factors
from ibert_tvm.relay_passes.spec.short_softmax import ShortExponential
from ibert_tvm.targets import TargetDescription

from .row_kernels import RowKernel, _Program, layout_of

_INT8 = (-127, 127)
_STREAM = (-(2**14) + 1, 2**14 - 1)


def linear(
    target: TargetDescription,
    rows: int,
    depth: int,
    columns: int,
    *,
    dtype: str = "int8",
    epilogue: str = "requantise",
    seed: int = 0,
) -> RowKernel:
    """``x W^T + b``, requantised per channel: a linear layer and its fused epilogue.

    Parameters
    ----------
    target
        The target.
    rows, depth, columns
        x is [rows, depth], W [columns, depth].
    dtype
        Of x: int8, or uint8 with all of its values.
    epilogue
        ``none`` stores accumulators, ``requantise`` 8 bits, ``gelu`` a GELU in 8 bits, ``residual``
        the sum with another value of 15 bits.
    seed
        Of the numbers.
    """
    p = _Program("linear", "linear", seed)
    bounds = (0, 255) if dtype == "uint8" else _INT8
    x = p.input("x", p.entries(bounds, (1, rows, depth), dtype), bounds)
    weight = p.entries((-128, 127), (columns, depth), "int8")
    weight[0], weight[-1] = -128, 127
    residual = None
    if epilogue == "residual":
        data = p.entries(_STREAM, (1, rows, columns), "int16")
        residual = p.input("residual", data, _STREAM)

    def body() -> Sequence[relax.Var]:
        y = p.emit(
            integer.linear(
                x,
                p.parameter("weight", weight),
                p.parameter("bias", p.entries((-(2**16), 2**16), (columns,), "int32")),
                name="linear",
            )
        )
        if epilogue == "none":
            return [y]
        magnitude, spread = 2**31 - 1, 1.0 / (80 * depth**0.5)
        factors = p.random.uniform(spread / 2, spread, columns)
        if epilogue == "requantise":
            return [p.requantise_short("out", y, factors, magnitude, _INT8, "int8")]
        wide = p.requantise_short("wide", y, factors, magnitude, _STREAM, "int16")
        if residual is not None:
            low, high = _STREAM
            return [p.emit(integer.add_short(wide, residual, name="sum", low=low, high=high))]
        scale = clipped_scale(GELU.limit, 9.0)
        g = p.emit(integer.gelu(wide, ClippedPolynomial.from_scale(scale, GELU), name="gelu"))
        return [p.requantise_short("out", g, np.array([scale / 0.03]), 2**14, _INT8, "int8")]

    kernel = p.finish(target, body, rows * columns)
    # Kernels read weights packed.
    packed = layout_of(target).pack(weight)
    position = len(p.arrays) + list(p.parameters).index("weight")
    inputs = [packed if i == position else array for i, array in enumerate(kernel.inputs)]
    return replace(kernel, inputs=inputs)


def attention(
    target: TargetDescription,
    batch: int,
    seq_len: int,
    heads: int,
    head_dim: int,
    *,
    masked: int = 0,
    seed: int = 0,
) -> RowKernel:
    """Attention of preset accurate, requantised per channel; `masked` tokens are padding."""
    p = _Program("attention", "attention", seed)
    shape = (batch, seq_len, heads * head_dim)
    q, k, v = (p.input(name, p.entries(_INT8, shape, "int8"), _INT8) for name in "qkv")
    mask = np.ones((batch, seq_len), "int32")
    mask[:, seq_len - masked :] = 0
    keep = p.input("mask", mask, (0, 1))

    def body() -> Sequence[relax.Var]:
        out = short_factors(p.random.uniform(0.005, 0.011, shape[2]), 2**14, *_INT8)
        return [
            p.emit(
                integer.attention(
                    q,
                    k,
                    v,
                    keep,
                    p.parameter("multiplier", out.multipliers),
                    name="attention",
                    num_heads=heads,
                    softmax="short",
                    exponential=ShortExponential.from_scale(1e-4 / head_dim**0.5),
                    shift=out.shift,
                    low=_INT8[0],
                    high=_INT8[1],
                )
            )
        ]

    return p.finish(target, body, batch * heads * seq_len * seq_len)
