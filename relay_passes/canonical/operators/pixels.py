"""Images and features cut into rows."""

from __future__ import annotations

import numpy as np

from ...dialect.arrays import Floats
from ...dialect.record import Operand
from ...dialect.rules import PatchesRule, WindowsRule
from ..operator import FLOAT, CanonicalOperator


class Patches(PatchesRule, CanonicalOperator):
    """Cut images [b, planes, height, width] into patches, [b, patches, planes * area].

    Patches come row by row; within one, planes are outermost and columns innermost, which is the
    order of a convolution's weights. Rows and columns that fill no whole patch are left out.
    """

    OPERANDS = (Operand("pixel_values", FLOAT, "b P H W", is_input=True),)

    def evaluate(self, pixel_values: Floats) -> Floats:
        batch, planes, height, width = pixel_values.shape
        down, across = self.counts(height, width)
        whole = pixel_values[:, :, : down * self.patch_height, : across * self.patch_width]
        cut = whole.reshape(batch, planes, down, self.patch_height, across, self.patch_width)
        return cut.transpose(0, 2, 4, 1, 3, 5).reshape(batch, down * across, -1)


class Windows(WindowsRule, CanonicalOperator):
    """Cut windows out of images [b, P, H, W] or features [b, P, W]: [b, windows, P * area].

    They are what a convolution multiplies: 0 lies around an image, windows come row by row, and
    within one, planes are outermost and columns innermost. `canonical.patches` are windows that
    touch.
    """

    OPERANDS = (Operand("pixel_values", FLOAT, "b P H W or b P W", is_input=True),)

    def evaluate(self, pixel_values: Floats) -> Floats:
        batch, planes, *sides = pixel_values.shape
        pixels = pixel_values.reshape(batch, planes, -1, sides[-1])
        borders = ((0, 0), (0, 0), (self.top, self.bottom), (self.left, self.right))
        shape = (self.height, self.width)
        every = np.lib.stride_tricks.sliding_window_view(np.pad(pixels, borders), shape, (2, 3))
        cut = every[:, :, :: self.stride_down, :: self.stride_across]
        rows = cut.transpose(0, 2, 3, 1, 4, 5)
        return rows.reshape(batch, rows.shape[1] * rows.shape[2], -1)
