"""`integer.gather_channels`: channels by number, some of them several times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...dialect.record import Operand
from ..domain import Domain, Entry, Index, Tensor
from ..operator import Operator
from ..traits import Traits
from ..types import DTYPES, TensorType


@dataclass(frozen=True)
class GatherChannels(Operator):
    """Channel ``channels[n]`` of x as channel n of the result, of the same type.

    `ibert_tvm.relay_passes.passes.repeat_rows` has a linear layer compute it instead.
    """

    OP = "integer.gather_channels"
    OPERANDS = (
        Operand("x", ("uint8", *DTYPES), "... C"),
        Operand("channels", ("int32",), "N"),
    )
    RESULT = "... N"
    TRAITS = Traits(per_token=True, gathers_channels=True)

    def result_dtype(self, types: Mapping[str, TensorType]) -> str:
        """That of x."""
        return types["x"].dtype

    def body(self, domain: Domain, **operands: Tensor) -> Tensor:
        x, channels = operands["x"], operands["channels"]
        *leading, count = x.shape

        def entry(*index: Index) -> Entry:
            return x[(*index[:-1], domain.lookup(channels[index[-1]], count, channels))]

        return domain.define("gathered", (*leading, channels.shape[0]), entry, x.dtype)
