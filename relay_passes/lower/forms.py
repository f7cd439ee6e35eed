"""Integer forms of a value, and the multipliers that lead from one to another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tvm import relax

from ..dialect.arrays import Reals
from ..quantization_table import ActivationQuant
from ..spec.fixed_point import DyadicVector, dyadic_vector

# A channel whose multiplier keeps 9 bits is exact to 0.1%, far below one step of an int8 result;
# with 14 bits it is exact to one step of an int16 result.
_USEFUL_BITS = {8: 9, 16: 14}
_INT32_PRODUCT_BITS = 30
_INT64_PRODUCT_BITS = 61


@dataclass(frozen=True, eq=False)
class Form:
    """One integer tensor that stands for a value.

    Parameters
    ----------
    var
        The integer tensor.
    value
        Attribute ``name`` of the integer operator that produces it.
    scale : numpy.ndarray
        float64, shape (1,), or (C,) for a scale per channel of the last axis. May be negative
        (the published i-GELU has a negative leading coefficient).
    zero_point
        Integer that stands for 0.
    magnitude
        Upper bound of the absolute integer.
    readable
        Whether a reader that takes any form may take it. If not, it is only to be requantised: a
        product of two values, which is far wider than its entries need.
    columns
        The channel of each entry of the last axis, where channels are split (`ActivationQuant`).
    excess : numpy.ndarray
        By how many steps integers are too large in the mean, float64, one or one per entry of the
        last axis: what rounding in two steps adds.
    zero_points
        int64 (C,): the integer of each channel that stands for 0, where that differs. Only a
        product with weights reads such a form.
    offset : numpy.ndarray, optional
        float64 (C,): numbers that are to be added to what the integers stand for. Only what can
        make up for them reads such a form: attention, and products with weights.
    row_magnitude
        int32 [..., 1], where a row has a scale of its own: the integers times this times `scale`
        are the value. Only a product with weights reads such a form.
    """

    var: relax.Var
    value: str
    scale: Reals
    zero_point: int
    magnitude: int
    readable: bool = True
    columns: NDArray[np.int64] | None = None
    excess: Reals | float = 0.0
    zero_points: NDArray[np.int64] | None = None
    offset: Reals | None = None
    row_magnitude: relax.Var | None = None

    @classmethod
    def of(cls, var: relax.Var, value: str, quant: ActivationQuant) -> Form:
        """Return what was requantised to the range and scale of `quant`."""
        magnitude = max(-quant.low, quant.high)
        return cls(var, value, quant.channel_scale, quant.zero_point, magnitude)

    @property
    def per_tensor(self) -> bool:
        """Whether all channels share one scale."""
        return self.scale.size == 1

    @property
    def plain(self) -> bool:
        """Whether any reader may take it for ``scale * integer``, with a single positive scale."""
        special = (self.row_magnitude, self.zero_points, self.offset)
        readable = self.readable and all(item is None for item in special)
        return readable and self.per_tensor and self.zero_point == 0 and self.scale[0] > 0


def storage(quant: ActivationQuant) -> str:
    """Narrowest integer type that holds the range of `quant`."""
    if quant.low >= 0 and quant.high <= 255:
        return "uint8"
    for bits in (8, 16):
        if -(1 << (bits - 1)) <= quant.low and quant.high < 1 << (bits - 1):
            return f"int{bits}"
    return "int32"


def stored(quant: ActivationQuant) -> dict[str, int | str]:
    """Attributes of an operator that requantises to `quant`."""
    return {
        "low": quant.low,
        "high": quant.high,
        "dtype": storage(quant),
        "zero_point": quant.zero_point,
    }


def multipliers(factors: Reals, magnitude: int, result_bits: int = 16) -> DyadicVector:
    """Choose dyadic multipliers for integers of a known size.

    Parameters
    ----------
    factors : numpy.ndarray
        Real factors, one or one per channel.
    magnitude
        Largest absolute integer that will be multiplied.
    result_bits : {8, 16}
        Precision that the result asks for; 16 also stands for wider ones.

    Returns
    -------
    DyadicVector
        Of as many bits as leave the product in int32 where that serves every channel well,
        otherwise of as many as leave it in int64, 31 at most.

    Raises
    ------
    RangeError
        If a factor is not finite, too large, or lost beside the largest.
    """
    bits = magnitude.bit_length()
    # Of a factor so small nothing is left after rounding.
    factors = np.where(np.abs(factors) * magnitude < 0.25, 0.0, factors)
    sizes = np.abs(factors[factors != 0])
    spread = int(np.ceil(np.log2(sizes.max() / sizes.min()))) if sizes.size else 0
    narrow = _INT32_PRODUCT_BITS - bits
    fits = sizes.max(initial=0.0) < 2.0 ** (narrow - 1)
    if fits and narrow - spread >= _USEFUL_BITS[result_bits]:
        return dyadic_vector(factors, narrow)
    return dyadic_vector(factors, max(min(_INT64_PRODUCT_BITS - bits, 31), 1))
