"""Dense layers."""

from __future__ import annotations

from ...dialect.arrays import Floats
from ...dialect.record import Operand
from ..operator import FLOAT, CanonicalOperator


class Linear(CanonicalOperator):
    """``x weight^T + bias``."""

    OPERANDS = (
        Operand("x", FLOAT, "... K"),
        Operand("weight", FLOAT, "N K", section="weights"),
        Operand("bias", FLOAT, "N"),
    )
    RESULT = "... N"

    def evaluate(self, x: Floats, weight: Floats, bias: Floats) -> Floats:
        product = x.reshape(-1, x.shape[-1]) @ weight.T
        product += bias
        return product.reshape(*x.shape[:-1], -1)
