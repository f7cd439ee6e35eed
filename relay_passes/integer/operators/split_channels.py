"""`integer.split_channels`: a run of channels, which readers find in place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...dialect.record import Operand
from ...errors import LoweringError
from ..domain import Domain, Tensor
from ..operator import Operator
from ..traits import Traits
from ..types import NARROW, Dim, TensorType


@dataclass(frozen=True)
class SplitChannels(Operator):
    """Run number `index` of `parts` equal runs of channels, of the same type.

    Parameters
    ----------
    index, parts : int
        Which of how many equal runs.
    """

    index: int
    parts: int

    OP = "integer.split_channels"
    OPERANDS = (Operand("x", ("uint8", *NARROW), "... C"),)
    TRAITS = Traits(per_token=True, view=True)

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.parts:
            raise LoweringError(
                f"part {self.index} of {self.parts}",
                self.name,
                "parts are counted from 0",
                "build the call in ibert_tvm.relay_passes.passes.merge_projections",
            )

    def check_dims(self, dims: Mapping[str, Any]) -> None:
        """Runs are equal."""
        if dims["C"] % self.parts:
            raise LoweringError(
                f"{self.parts} parts do not divide {dims['C']} channels",
                self.where,
                "every part has the same number of channels",
                "merge layers of equal width only",
            )

    def result_shape(self, dims: Mapping[str, Any]) -> tuple[Dim, ...]:
        """[..., C / parts]."""
        return (*dims["..."], dims["C"] // self.parts)

    def result_dtype(self, types: Mapping[str, TensorType]) -> str:
        """That of x."""
        return types["x"].dtype

    def run_of(self, channels: int) -> tuple[int, int]:
        """First channel and number of channels, of so many."""
        width = channels // self.parts
        return self.index * width, width

    def body(self, domain: Domain, **operands: Tensor) -> Tensor:
        x = operands["x"]
        *leading, channels = x.shape
        first, width = self.run_of(channels)
        return domain.define(
            "run_of_channels",
            (*leading, width),
            lambda *index: x[(*index[:-1], index[-1] + first)],
            x.dtype,
        )
