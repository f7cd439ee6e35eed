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
from ibert_tvm.relay_passes.spec import nibbles
from ibert_tvm.relay_passes.spec.clipped import ClippedPolynomial, clipped_scale
from ibert_tvm.relay_passes.spec.exponential import Exponential, PolynomialExponential
from ibert_tvm.relay_passes.spec.gelu import GELU
from ibert_tvm.relay_passes.spec.released import ReleasedExponential
from ibert_tvm.relay_passes.spec.short_requantise import short_factors
from ibert_tvm.relay_passes.spec.short_softmax import ShortExponential
from ibert_tvm.targets import TargetDescription
from tests.lowering import layout_of

from .row_program import INT8, STREAM, RowKernel, RowProgram


def linear(
    target: TargetDescription,
    rows: int,
    depth: int,
    columns: int,
    *,
    dtype: str = "int8",
    epilogue: str = "requantise",
    halves: bool = False,
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
        Of x: int8, uint8 with all of its values, or int16 of 15 bits.
    epilogue
        ``none`` stores accumulators, ``requantise`` 8 bits, ``gelu`` a GELU in 8 bits, ``residual``
        the sum with another value of 15 bits.
    halves
        Whether W is in half bytes.
    seed
        Of the numbers.
    """
    weights: dict[str, tuple[np.ndarray, str]] = {}

    def body(p: RowProgram) -> Sequence[relax.Var]:
        bounds = {"int8": INT8, "uint8": (0, 255), "int16": STREAM}[dtype]
        x = p.input("x", p.entries(bounds, (1, rows, depth), dtype), bounds)
        if halves:
            groups = -(-depth // nibbles.GROUP)
            entries = p.entries((-8, 7), (columns, groups, nibbles.GROUP), "int8")
            scales = p.entries((1, 16), (columns, groups), "int64")
            entries[0], scales[0] = -8, 16
            narrow = nibbles.pack(entries, scales)
            weights.update(weight=(narrow[0], "entries"), scales=(narrow[1], "columns"))
        else:
            weight = p.entries((-128, 127), (columns, depth), "int8")
            weight[0], weight[-1] = -128, 127
            weights["weight"] = weight, "entries"
        residual = p.rows_of("residual") if epilogue == "residual" else None
        bias = p.entries((-(2**16), 2**16), (columns,), "int32")
        constants = [p.parameter(name, array) for name, (array, _packed) in weights.items()]
        product = integer.nibble_linear if halves else integer.linear
        y = p.emit(product(x, *constants, p.parameter("bias", bias), name="linear"))
        if epilogue == "none":
            return [y]
        magnitude, spread = 2**31 - 1, 1.0 / (80 * depth**0.5)
        factors = p.random.uniform(spread / 2, spread, columns)
        if epilogue == "requantise":
            return [p.narrowed("out", y, factors, magnitude)]
        wide = p.narrowed("wide", y, factors, magnitude, STREAM, "int16")
        if residual is not None:
            low, high = STREAM
            return [p.emit(integer.add_short(wide, residual, name="sum", low=low, high=high))]
        scale = clipped_scale(GELU.limit, 9.0)
        g = p.emit(integer.gelu(wide, ClippedPolynomial.from_scale(scale, GELU), name="gelu"))
        return [p.narrowed("out", g, np.array([scale / 0.03]), 2**14)]

    program = RowProgram("linear", "linear", rows, columns, seed)
    kernel = program.finish(target, body, rows * columns)
    # Kernels read weights packed.
    inputs = list(kernel.inputs)
    for name, (array, packed) in weights.items():
        position = len(program.arrays) + list(program.parameters).index(name)
        inputs[position] = layout_of(target).pack(array, packed)
    return replace(kernel, inputs=inputs)


def attention(
    target: TargetDescription,
    batch: int,
    seq_len: int,
    heads: int,
    head_dim: int,
    *,
    preset: str = "accurate",
    masked: int = 0,
    seed: int = 0,
) -> RowKernel:
    """Attention of a preset, requantised per channel; `masked` tokens are padding."""
    channels = heads * head_dim
    scale = 1e-4 / head_dim**0.5

    def body(p: RowProgram) -> Sequence[relax.Var]:
        shape = (batch, seq_len, channels)
        q, k, v = (p.input(name, p.entries(INT8, shape, "int8"), INT8) for name in "qkv")
        mask = np.ones((batch, seq_len), "int32")
        mask[:, seq_len - masked :] = 0
        keep = p.input("mask", mask, (0, 1))
        shift = 20
        exponential: Exponential | ShortExponential
        if preset == "accurate":
            out = short_factors(p.random.uniform(0.005, 0.011, channels), 2**14, *INT8)
            multiplier, shift = out.multipliers, out.shift
            exponential = ShortExponential.from_scale(scale)
        else:
            multiplier = p.entries((2**13, 2**14), (channels,), "int32")
            exponential = PolynomialExponential.from_scale(scale)
        if preset == "released":
            top = np.floor(1.0 / 0.35815147 / scale**2) * 2.0**30
            exponential = ReleasedExponential.from_scales(scale, top / 32767)
        call = integer.attention(
            q,
            k,
            v,
            keep,
            p.parameter("multiplier", multiplier),
            name="attention",
            num_heads=heads,
            softmax="short" if preset == "accurate" else "normalised",
            exponential=exponential,
            shift=shift,
            low=INT8[0],
            high=INT8[1],
        )
        return [p.emit(call)]

    program = RowProgram("attention", "attention", batch * seq_len, channels, seed)
    return program.finish(target, body, batch * heads * seq_len * seq_len)
