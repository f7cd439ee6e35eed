"""`integer.row_magnitude`: the largest magnitude of each row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...dialect.record import Operand
from ...spec import row_scale
from ...spec.values import absolute, maximum
from ..domain import Domain, Tensor
from ..operator import Operator
from ..traits import Traits
from ..types import NARROW, Dim


@dataclass(frozen=True)
class RowMagnitude(Operator):
    """``max(1, max_c |x[..., c]|)``, x clamped to 15 bits and a sign: [..., 1]."""

    OP = "integer.row_magnitude"
    OPERANDS = (Operand("x", NARROW, "... C"),)
    dtype = "int32"
    TRAITS = Traits(per_token=True, takes_epilogue=False, row_statistics=True, joins_rows=True)

    def result_shape(self, dims: Mapping[str, Any]) -> tuple[Dim, ...]:
        """One number of each row."""
        return (*dims["..."], 1)

    def body(self, domain: Domain, **operands: Tensor) -> Tensor:
        x = operands["x"]
        rows, channels = x.shape
        largest = domain.max(
            "largest",
            (rows,),
            channels,
            lambda row, channel: absolute(row_scale.bounded(x[row, channel])),
        )
        return domain.define(
            "magnitude", (rows, 1), lambda row, _: maximum(largest[row], 1), self.dtype
        )
