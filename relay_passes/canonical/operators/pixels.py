"""Images and features cut into rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...dialect.arrays import Floats
from ...dialect.record import Dims, Operand
from ...dialect.types import Dim
from ...dialect.windows import count
from ..errors import CanonicalError
from ..operator import FLOAT, CanonicalOperator


@dataclass(frozen=True)
class Patches(CanonicalOperator):
    """Cut images [b, planes, height, width] into patches, [b, patches, planes * area].

    Patches come row by row; within one, planes are outermost and columns innermost, which is the
    order of a convolution's weights. Rows and columns that fill no whole patch are left out.

    Parameters
    ----------
    patch_height, patch_width
        Pixels.
    """

    patch_height: int
    patch_width: int

    OP = "canonical.patches"
    OPERANDS = (Operand("pixel_values", FLOAT, "b P H W", is_input=True),)

    def check_dims(self, dims: Dims) -> None:
        """An image holds at least one whole patch."""
        if min(self.patch_height, self.patch_width) < 1 or min(self._counts(dims)) < 1:
            raise CanonicalError(
                f"patches of {self.patch_height} x {self.patch_width} of an image of "
                f"{dims['H']} x {dims['W']}",
                self.where,
                "an image holds at least one whole patch",
                "check the patch size and the image size",
            )

    def _counts(self, dims: Dims) -> tuple[int, int]:
        return dims["H"] // self.patch_height, dims["W"] // self.patch_width

    def result_shape(self, dims: Dims) -> tuple[Dim, ...]:
        down, across = self._counts(dims)
        return dims["b"], down * across, dims["P"] * self.patch_height * self.patch_width

    def evaluate(self, pixel_values: Floats) -> Floats:
        batch, planes, height, width = pixel_values.shape
        down, across = height // self.patch_height, width // self.patch_width
        whole = pixel_values[:, :, : down * self.patch_height, : across * self.patch_width]
        cut = whole.reshape(batch, planes, down, self.patch_height, across, self.patch_width)
        return cut.transpose(0, 2, 4, 1, 3, 5).reshape(batch, down * across, -1)


@dataclass(frozen=True)
class Windows(CanonicalOperator):
    """Cut windows out of images [b, P, H, W] or features [b, P, W]: [b, windows, P * area].

    They are what a convolution multiplies: 0 lies around an image, windows come row by row, and
    within one, planes are outermost and columns innermost. `canonical.patches` are windows that
    touch.

    Parameters
    ----------
    height, width
        Of a window, in pixels; features are 1 high.
    stride_down, stride_across
        From one window to the next.
    top, bottom, left, right
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

    def check_dims(self, dims: Dims) -> None:
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

    def _counts(self, dims: Dims) -> tuple[int, int]:
        return (
            count(dims.get("H", 1), self.height, self.stride_down, self.top + self.bottom),
            count(dims["W"], self.width, self.stride_across, self.left + self.right),
        )

    def result_shape(self, dims: Dims) -> tuple[Dim, ...]:
        down, across = self._counts(dims)
        return dims["b"], down * across, dims["P"] * self.height * self.width

    def evaluate(self, pixel_values: Floats) -> Floats:
        batch, planes, *sides = pixel_values.shape
        pixels = pixel_values.reshape(batch, planes, -1, sides[-1])
        borders = ((0, 0), (0, 0), (self.top, self.bottom), (self.left, self.right))
        shape = (self.height, self.width)
        every = np.lib.stride_tricks.sliding_window_view(np.pad(pixels, borders), shape, (2, 3))
        cut = every[:, :, :: self.stride_down, :: self.stride_across]
        rows = cut.transpose(0, 2, 3, 1, 4, 5)
        return rows.reshape(batch, rows.shape[1] * rows.shape[2], -1)
