"""A scale per row: the 8-bit form of a value that has one, and the products that are made of it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from tvm import relax

from .. import integer
from ..errors import RangeError
from ..quantization_table import ROW_LIMIT, ActivationQuant
from ..spec.row_scale import LARGEST
from .context import LoweringContext
from .forms import Form

# A sum times m, of 8-bit integers with the offset that an instruction may ask for, and the bias
# have 30 bits each, so that both together have 31.
_BITS = 30
_LARGEST_TERM = 127 * (128 + 255)


def serves_as_rows(native: Form, quant: ActivationQuant) -> bool:
    """Whether rows can be divided by their magnitude as they are, without a requantisation."""
    whole = quant.channel_divisor is None and native.magnitude <= ROW_LIMIT
    return whole and native.plain and str(native.var.ty.dtype) in ("int8", "int16", "int32")


def quantised_rows(
    context: LoweringContext, source: Form, quant: ActivationQuant, name: str
) -> Form:
    """Emit ``integer.row_magnitude`` and ``integer.quantise_rows``.

    Parameters
    ----------
    context
        The lowering.
    source
        15 bits and a sign, at the scales of `quant`, or its own where these are one.
    quant
        Entry of the table, by row.
    name
        Of the value.

    Returns
    -------
    Form
        int8, with `Form.row_magnitude`; without the divisors of channels, which the weights have.
    """
    unit = quant.scale if quant.channel_divisor is not None else float(source.scale[0])
    magnitude = context.emit(integer.row_magnitude(source.var, name=f"{name}.magnitude"))
    label, bounds = f"{name}.matmul", {"low": -LARGEST, "high": LARGEST, "dtype": "int8"}
    out = context.emit(integer.quantise_rows(source.var, magnitude, name=label, **bounds))
    scale = np.array([unit / LARGEST])
    return Form(out, label, scale, 0, LARGEST, readable=False, row_magnitude=magnitude)


def product_shift(channels: int) -> int:
    """Bits by which sums over so many channels are shifted when a magnitude multiplies them.

    They depend on nothing else, so that products of one value can be merged.
    """
    largest = channels * _LARGEST_TERM
    return max(largest.bit_length() + ROW_LIMIT.bit_length() - _BITS, 0)


def restored_sums(
    context: LoweringContext,
    sums: Form,
    magnitude: relax.Var,
    shift: int,
    bias: NDArray[np.int64],
    parameter: str,
) -> Form:
    """Emit ``integer.scale_rows``.

    Parameters
    ----------
    context
        The lowering.
    sums
        Of products with 8-bit rows, int32, with a scale per channel.
    magnitude
        Of the rows.
    shift
        `product_shift`.
    bias
        int64 [N], in units of the result, which are 2^shift times those of the sums.
    parameter
        Name of the bias.

    Returns
    -------
    Form
        int32, with a scale per channel.

    Raises
    ------
    RangeError
        If the bias does not fit.
    """
    largest = int(np.abs(bias).max(initial=0))
    if largest >= 1 << _BITS:
        raise RangeError(
            f"a bias is {largest} units of the products that it is added to",
            where=sums.value,
            why=f"with a scale per row both have at most {_BITS} bits",
            todo="give this layer's input a static scale (row_scales), or prune the row",
        )
    name = f"{sums.value}.scaled"
    constant = context.parameter(parameter, bias.astype(np.int32))
    out = context.emit(integer.scale_rows(sums.var, magnitude, constant, name=name, shift=shift))
    bound = (sums.magnitude * ROW_LIMIT >> shift) + 1 + largest
    return Form(out, name, sums.scale * 2.0**shift, 0, bound)
