"""`integer.concatenate`: the channels of two values, one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...dialect.record import Operand
from ..domain import Domain, Entry, Index, Tensor
from ..operator import Operator
from ..traits import Traits
from ..types import NARROW, Dim


@dataclass(frozen=True)
class Concatenate(Operator):
    """The channels of a, then those of b, as they are."""

    OP = "integer.concatenate"
    OPERANDS = (
        Operand("a", ("uint8", *NARROW), "... C"),
        Operand("b", ("uint8", *NARROW), "... D"),
    )
    dtype = "int32"
    TRAITS = Traits(per_token=True)

    def result_shape(self, dims: Mapping[str, Any]) -> tuple[Dim, ...]:
        """[..., C + D]."""
        return (*dims["..."], dims["C"] + dims["D"])

    def body(self, domain: Domain, **operands: Tensor) -> Tensor:
        a, b = operands["a"], operands["b"]
        rows, first = a.shape
        second = b.shape[1]

        def entry(row: Index, channel: Index) -> Entry:
            return domain.choose(
                channel < first,
                # Within the operand wherever it is read. LLVM dies of a maximum here, for MVE.
                a[row, channel % first],
                b[row, (channel - first) % second],
            )

        return domain.define("joined", (rows, first + second), entry, "int32")
