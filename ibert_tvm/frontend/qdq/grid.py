"""The grid of a QuantizeLinear or DequantizeLinear node: which real values its integers stand for.

Dequantisation follows the ONNX operator: the difference to the zero point is taken exactly, and
multiplied by the scale in float32.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...common.types import Array

INTEGER_RANGES = {
    "int2": (-2, 1),
    "uint2": (0, 3),
    "int4": (-8, 7),
    "uint4": (0, 15),
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
}
"""Smallest and largest integer by the name of an ONNX type."""


@dataclass(frozen=True, eq=False)
class Grid:
    """Scale, zero point and range of a quantised tensor.

    Parameters
    ----------
    scale
        float32, scalar (shape ()), or one per slice along `axis` (shape (N,)), or one per block.
    zero_point
        int64 of the shape of `scale`.
    dtype
        One of `INTEGER_RANGES`.
    axis
        Axis of a scale per slice or block; meaningless for a scalar.
    block
        Length of a block along `axis`; 0 where there are none.
    """

    scale: NDArray[np.float32]
    zero_point: NDArray[np.int64]
    dtype: str
    axis: int = 0
    block: int = field(default=0)

    @property
    def per_tensor(self) -> bool:
        """Whether one scale serves the whole tensor."""
        return self.scale.ndim == 0

    @property
    def low(self) -> int:
        """Smallest integer."""
        return INTEGER_RANGES[self.dtype][0]

    @property
    def high(self) -> int:
        """Largest integer."""
        return INTEGER_RANGES[self.dtype][1]

    @property
    def bits(self) -> int:
        """Bits of an integer."""
        return (self.high - self.low + 1).bit_length() - 1

    @property
    def usable(self) -> bool:
        """Whether every scale is finite and positive."""
        return bool((np.isfinite(self.scale) & (self.scale > 0)).all())

    def same_as(self, other: Grid) -> bool:
        """Whether both stand for the same real values, integer by integer."""
        return (
            self.dtype == other.dtype
            and self.block == other.block
            and self.scale.shape == other.scale.shape
            and (self.per_tensor or self.axis == other.axis)
            and np.array_equal(self.scale, other.scale)
            and np.array_equal(self.zero_point, other.zero_point)
        )

    def moved(self, permutation: tuple[int, ...]) -> Grid:
        """Return the grid of the tensor before a Transpose with `permutation`."""
        if self.per_tensor:
            return self
        axis = permutation[self.axis % len(permutation)]
        return Grid(self.scale, self.zero_point, self.dtype, axis, self.block)

    def spread(self, array: Array, shape: tuple[int, ...]) -> Array:
        """Broadcast the scales or zero points `array` along a tensor of `shape`.

        Raises
        ------
        ValueError
            If they do not fit the tensor.
        """
        if self.per_tensor:
            return array
        axis = self.axis % len(shape)
        if self.block:
            whole = np.repeat(array, self.block, axis=axis)
            cut = [slice(None)] * whole.ndim
            cut[axis] = slice(0, shape[axis])
            return np.broadcast_to(whole[tuple(cut)], shape)
        if array.shape != (shape[axis],):
            raise ValueError(f"{array.size} scales for {shape[axis]} slices along axis {axis}")
        return array.reshape([-1 if i == axis else 1 for i in range(len(shape))])

    def dequantize(self, integers: Array) -> NDArray[np.float32]:
        """Real values of `integers`, float32."""
        shape = integers.shape
        wide = np.int64 if self.dtype == "int32" else np.int32
        zero_point = self.spread(self.zero_point.astype(wide), shape)
        steps = integers.astype(wide) - zero_point
        with np.errstate(over="ignore"):  # the scale of a mask of -FLT_MAX rounds beyond it
            result = steps.astype(np.float32) * self.spread(self.scale, shape)
        return np.asarray(result, np.float32)

    def quantize(self, values: Array) -> NDArray[np.int64]:
        """Integers of real `values`, rounded half to even and saturated, int64."""
        shape = values.shape
        with np.errstate(over="ignore"):  # an infinite mask saturates
            steps = values.astype(np.float32) / self.spread(self.scale, shape)
        shifted = np.rint(steps).astype(np.float64) + self.spread(self.zero_point, shape)
        return np.clip(shifted, self.low, self.high).astype(np.int64)

    def __str__(self) -> str:
        if self.per_tensor:
            return f"{self.dtype}, scale {float(self.scale):.6g}, zero point {int(self.zero_point)}"
        what = f"blocks of {self.block}" if self.block else "slices"
        return f"{self.dtype}, {self.scale.size} scales for {what} along axis {self.axis}"
