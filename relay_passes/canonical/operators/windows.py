"""`canonical.windows`: images or features cut into windows that may overlap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...dialect.record import Operand
from ...dialect.types import Dim
from ...dialect.windows import count
from ..errors import CanonicalError
from ..operator import FLOAT, CanonicalOperator


@dataclass(frozen=True)
class Windows(CanonicalOperator):
    """Cut windows out of images [b, P, H, W] or features [b, P, W]: [b, windows, P * area].

    They are what a convolution multiplies: 0 lies around an image, windows come row by row, and
    within one, planes are outermost and columns innermost. `canonical.patches` are windows that
    touch.

    Parameters
    ----------
    height, width : int
        Of a window, in pixels; features are 1 high.
    stride_down, stride_across : int
        From one window to the next.
    top, bottom, left, right : int
        Rows and columns of 0 around an image, less than a window has.
    """

    height: int
    width: int
    stride_down: int
    stride_across: int
    top: int
    bottom: int
    left: int
    right: int

    OP = "canonical.windows"
    OPERANDS = (Operand("pixel_values", FLOAT, "b P H W or b P W", is_input=True),)

    def check_dims(self, dims: Mapping[str, Any]) -> None:
        """Strides and borders are those of a convolution, and a window fits."""
        sides = (
            (self.height, self.stride_down, self.top, self.bottom),
            (self.width, self.stride_across, self.left, self.right),
        )
        sound = all(
            stride >= 1 and 0 <= before < extent and 0 <= after < extent
            for extent, stride, before, after in sides
        )
        if not sound or min(self._counts(dims)) < 1:
            shown = " x ".join(str(dims[side]) for side in "HW" if side in dims)
            raise CanonicalError(
                f"windows of {self.height} x {self.width} of an input of {shown}",
                self.where,
                "a window fits, strides are at least 1 and borders narrower than a window",
                "check the sizes",
            )

    def _counts(self, dims: Mapping[str, Any]) -> tuple[int, int]:
        return (
            count(dims.get("H", 1), self.height, self.stride_down, self.top + self.bottom),
            count(dims["W"], self.width, self.stride_across, self.left + self.right),
        )

    def result_shape(self, dims: Mapping[str, Any]) -> tuple[Dim, ...]:
        down, across = self._counts(dims)
        return dims["b"], down * across, dims["P"] * self.height * self.width

    def evaluate(self, pixel_values: NDArray[Any]) -> NDArray[Any]:
        batch, planes, *sides = pixel_values.shape
        pixels = pixel_values.reshape(batch, planes, -1, sides[-1])
        borders = ((0, 0), (0, 0), (self.top, self.bottom), (self.left, self.right))
        shape = (self.height, self.width)
        every = np.lib.stride_tricks.sliding_window_view(np.pad(pixels, borders), shape, (2, 3))
        cut = every[:, :, :: self.stride_down, :: self.stride_across]
        rows = cut.transpose(0, 2, 3, 1, 4, 5)
        return rows.reshape(batch, rows.shape[1] * rows.shape[2], -1)
