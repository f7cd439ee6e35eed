"""`integer.channel_run`: a run of channels anywhere, which readers find in place."""

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
class ChannelRun(Operator):
    """`channels` neighbouring channels from number `first` on, of the same type.

    Where all runs are equal, `SplitChannels` says the same.

    Parameters
    ----------
    first : int
        The first of them, counted from 0.
    channels : int
        How many there are.
    """

    first: int
    channels: int

    OP = "integer.channel_run"
    OPERANDS = (Operand("x", ("uint8", *NARROW), "... C"),)
    TRAITS = Traits(per_token=True, view=True)

    def check_dims(self, dims: Mapping[str, Any]) -> None:
        """The run lies within the channels."""
        if self.first < 0 or self.channels < 1 or self.first + self.channels > dims["C"]:
            raise LoweringError(
                f"{self.channels} channels from number {self.first} on, of {dims['C']}",
                self.where,
                "channels are counted from 0, and a run has one at least",
                "build the call in ibert_tvm.relay_passes.passes.merge_projections",
            )

    def result_shape(self, dims: Mapping[str, Any]) -> tuple[Dim, ...]:
        """[..., channels]."""
        return (*dims["..."], self.channels)

    def result_dtype(self, types: Mapping[str, TensorType]) -> str:
        """That of x."""
        return types["x"].dtype

    def run_of(self, channels: int) -> tuple[int, int]:
        """First channel and number of channels, of so many."""
        return self.first, self.channels

    def body(self, domain: Domain, **operands: Tensor) -> Tensor:
        x = operands["x"]
        return domain.define(
            "run_of_channels",
            (*x.shape[:-1], self.channels),
            lambda *index: x[(*index[:-1], index[-1] + self.first)],
            x.dtype,
        )
