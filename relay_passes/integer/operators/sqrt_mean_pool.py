"""`integer.sqrt_mean_pool`: the sum of tokens over the root of their number."""

from __future__ import annotations

from dataclasses import dataclass

from ...dialect.record import Operand
from ...spec import pooling
from ..checks import check_attribute
from ..domain import Domain, Tensor
from ..operator import Operator
from ..pooling import Tokens
from ..types import MASK, NARROW


@dataclass(frozen=True)
class SqrtMeanPool(Operator):
    """``sum / sqrt(n)`` of the n tokens that the mask keeps, [b, C]; without a mask, of all.

    x is packed if `slots` are given; the mask must be given, then.

    Parameters
    ----------
    fraction_bits : int
        The result's scale is the input's times 2^-fraction_bits.
    """

    fraction_bits: int = 0

    OP = "integer.sqrt_mean_pool"
    OPERANDS = (
        Operand("x", NARROW, "b s C"),
        Operand("mask", MASK, "b s", optional=True, is_mask=True),
        Operand("slots", ("int32",), "b s", optional=True),
    )
    RESULT = "b C"
    dtype = "int32"

    def __post_init__(self) -> None:
        check_attribute(self, "fraction_bits", 0, 15)

    def body(self, domain: Domain, **operands: Tensor) -> Tensor:
        """Sum of the tokens, the root of their count, one division per channel."""
        tokens = Tokens(domain, **operands)
        total, count = tokens.sum(), tokens.count()
        rows = tokens.shape[:1]
        half = domain.define("half_bits", rows, lambda b: pooling.root_half_bits(count[b]), "int32")
        root = domain.define(
            "square_root", rows, lambda b: pooling.root_of_count(count[b], half[b]), "int32"
        )
        return domain.define(
            "mean",
            tokens.shape,
            lambda b, c: pooling.over_root(total[b, c], root[b], self.fraction_bits),
            "int32",
        )
