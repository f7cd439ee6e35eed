"""`integer.linear`: the matrix product."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ...dialect.record import Operand
from ..domain import Domain, Tensor
from ..operator import Operator
from ..traits import Traits
from ..types import TensorType, static


@dataclass(frozen=True)
class Linear(Operator):
    """``x weight^T + bias``, in int32.

    x has value semantics (no hidden offset; its zero point is folded in the bias).
    """

    OP = "integer.linear"
    OPERANDS = (
        Operand("x", ("int8", "uint8", "int16"), "... K"),
        Operand("weight", ("int8",), "N K", packed=True),
        Operand("bias", ("int32",), "N"),
    )
    RESULT = "... N"
    dtype = "int32"
    TRAITS = Traits(per_token=True, matrix_product=True)

    def multiply_accumulates(self, types: Mapping[str, TensorType]) -> int:
        """All entries of x with all rows of the weight."""
        return math.prod(static(types["x"].shape)) * static(types["weight"].shape)[0]

    def body(self, domain: Domain, **operands: Tensor) -> Tensor:
        return domain.linear(operands["x"], operands["weight"], operands["bias"])
