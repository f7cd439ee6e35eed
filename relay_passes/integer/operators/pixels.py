"""Images and features cut into rows."""

from __future__ import annotations

from collections.abc import Mapping

from ...dialect.record import Operand
from ...dialect.rules import PatchesRule, WindowsRule
from ..borders import Axis, filled
from ..checks import check_attribute
from ..domain import Domain, Entry, Index, T
from ..operator import Operator
from ..types import LARGEST_INDEX, TensorType, dtype_bounds


class Patches(PatchesRule, Operator):
    """8-bit images [b, c, H, W] as rows of patches, [b, patches, c h w], of the same type."""

    OPERANDS = (Operand("pixel_values", ("int8", "uint8"), "b P H W"),)
    KEEPS = "pixel_values"

    def body(self, domain: Domain[T], **operands: T) -> T:
        """Gather pixels patch by patch."""
        pixels = operands["pixel_values"]
        batch, channels, height, width = pixels.shape
        tall, wide = self.patch_height, self.patch_width
        across, area = width // wide, tall * wide
        count = height // tall * across

        def entry(row: Index, column: Index) -> Entry:
            patch, inside = row % count, column % area
            return pixels[
                row // count,
                column // area,
                patch // across * tall + inside // wide,
                patch % across * wide + inside % wide,
            ]

        return domain.define("patches", (batch * count, channels * area), entry, pixels.dtype)


class Windows(WindowsRule, Operator):
    """8-bit images [b, P, H, W] or features [b, P, W] as rows, [b, windows, P * area].

    Parameters
    ----------
    zero_point
        What lies around an image: the integer of the real 0.
    """

    zero_point: int

    OPERANDS = (Operand("pixel_values", ("int8", "uint8"), "b P H W or b P W"),)

    def __post_init__(self) -> None:
        for name in ("height", "width", "stride_down", "stride_across"):
            check_attribute(self, name, 1, LARGEST_INDEX)
        for name, extent in zip(
            ("top", "bottom", "left", "right"), (self.height,) * 2 + (self.width,) * 2, strict=True
        ):
            check_attribute(self, name, 0, extent - 1)

    def result_dtype(self, types: Mapping[str, TensorType]) -> str:
        """That of the pixels, which holds the zero point."""
        dtype = types["pixel_values"].dtype
        check_attribute(self, "zero_point", *dtype_bounds(dtype))
        return dtype

    def body(self, domain: Domain[T], **operands: T) -> T:
        """Gather pixels window by window."""
        pixels, batch = operands["pixel_values"], domain.batch
        by_rows = len(pixels.shape) == 4  # features are seen as [b P, W]
        width = pixels.shape[-1]
        height = pixels.shape[2] if by_rows else 1
        planes = pixels.shape[1] if by_rows else pixels.shape[0] // batch
        down, across = self.counts(height, width)
        windows, area = down * across, self.height * self.width
        rows = _reach(height, self.height, self.stride_down, self.top, down)
        columns = _reach(width, self.width, self.stride_across, self.left, across)

        def entry(row: Index, column: Index) -> Entry:
            window, inside = row % windows, column % area
            y = window // across * self.stride_down + inside // self.width - self.top
            x = window % across * self.stride_across + inside % self.width - self.left
            image, plane = row // windows, column // area
            near = columns.nearest(domain, x)
            if by_rows:
                found = pixels[image, plane, rows.nearest(domain, y), near]
            else:
                found = pixels[image * planes + plane, near]
            return filled(domain, found, [(rows, y), (columns, x)], self.zero_point)

        return domain.define("windows", (batch * windows, planes * area), entry, pixels.dtype)


def _reach(extent: int, width: int, stride: int, before: int, windows: int) -> Axis:
    """Return the axis with what windows really reach behind its end."""
    last = (windows - 1) * stride + width - 1 - before
    return Axis(extent, before, max(0, last - (extent - 1)))
