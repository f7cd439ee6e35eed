"""`integer.patches`: images cut into patches, in the order of convolution weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...dialect.record import Operand
from ...errors import LoweringError
from ..domain import Domain, Entry, Index, Tensor
from ..operator import Operator
from ..types import Dim, TensorType


@dataclass(frozen=True)
class Patches(Operator):
    """8-bit images [b, c, H, W] as rows of patches, [b, patches, c h w], of the same type.

    Parameters
    ----------
    patch_height, patch_width : int
        Size of a patch in pixels.
    """

    patch_height: int
    patch_width: int

    OP = "integer.patches"
    OPERANDS = (Operand("pixel_values", ("int8", "uint8"), "b C H W"),)

    def _counts(self, height: int, width: int) -> tuple[int, int]:
        sides = ((height, self.patch_height), (width, self.patch_width))
        down, across = (extent // size if size > 0 else 0 for extent, size in sides)
        return down, across

    def check_dims(self, dims: Mapping[str, Any]) -> None:
        """An image holds a patch."""
        if min(self._counts(dims["H"], dims["W"])) < 1:
            raise LoweringError(
                f"patches of {self.patch_height} x {self.patch_width} of images of "
                f"{dims['H']} x {dims['W']}",
                self.where,
                "an image holds at least one whole patch",
                "set the patch size as the source model does",
            )

    def result_shape(self, dims: Mapping[str, Any]) -> tuple[Dim, ...]:
        """[b, patches, c h w]."""
        down, across = self._counts(dims["H"], dims["W"])
        return (dims["b"], down * across, dims["C"] * self.patch_height * self.patch_width)

    def result_dtype(self, types: Mapping[str, TensorType]) -> str:
        """That of the pixels."""
        return types["pixel_values"].dtype

    def body(self, domain: Domain, **operands: Tensor) -> Tensor:
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
