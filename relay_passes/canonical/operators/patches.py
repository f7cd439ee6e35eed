"""`canonical.patches`: images cut into patches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from ...dialect.record import Operand
from ...dialect.types import Dim
from ..errors import CanonicalError
from ..operator import FLOAT, CanonicalOperator


@dataclass(frozen=True)
class Patches(CanonicalOperator):
    """Cut images [b, planes, height, width] into patches, [b, patches, planes * area].

    Patches come row by row; within one, planes are outermost and columns innermost, which is the
    order of a convolution's weights. Rows and columns that fill no whole patch are left out.

    Parameters
    ----------
    patch_height, patch_width : int
        Pixels.
    """

    patch_height: int
    patch_width: int

    OP = "canonical.patches"
    OPERANDS = (Operand("pixel_values", FLOAT, "b P H W", is_input=True),)

    def check_dims(self, dims: Mapping[str, Any]) -> None:
        """An image holds at least one whole patch."""
        if min(self.patch_height, self.patch_width) < 1 or min(self._counts(dims)) < 1:
            raise CanonicalError(
                f"patches of {self.patch_height} x {self.patch_width} of an image of "
                f"{dims['H']} x {dims['W']}",
                self.where,
                "an image holds at least one whole patch",
                "check the patch size and the image size",
            )

    def _counts(self, dims: Mapping[str, Any]) -> tuple[int, int]:
        return dims["H"] // self.patch_height, dims["W"] // self.patch_width

    def result_shape(self, dims: Mapping[str, Any]) -> tuple[Dim, ...]:
        down, across = self._counts(dims)
        return dims["b"], down * across, dims["P"] * self.patch_height * self.patch_width

    def evaluate(self, pixel_values: NDArray[Any]) -> NDArray[Any]:
        batch, planes, height, width = pixel_values.shape
        down, across = height // self.patch_height, width // self.patch_width
        whole = pixel_values[:, :, : down * self.patch_height, : across * self.patch_width]
        cut = whole.reshape(batch, planes, down, self.patch_height, across, self.patch_width)
        return cut.transpose(0, 2, 4, 1, 3, 5).reshape(batch, down * across, -1)
