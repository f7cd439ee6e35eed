"""`integer.weighted_mean_pool`: a mean of tokens in which later ones weigh more."""

from __future__ import annotations

from dataclasses import dataclass

from ...dialect.record import Operand
from ...spec import pooling
from ..checks import check_attribute
from ..domain import Domain, Entry, Index, Tensor
from ..operator import Operator
from ..pooling import Tokens
from ..types import MASK, NARROW


@dataclass(frozen=True)
class WeightedMeanPool(Operator):
    """Mean over the tokens that the mask keeps, [b, C], token t weighing t + 1.

    Without a mask, over all. x is packed if `slots` are given; the mask must be given, then.

    Parameters
    ----------
    fraction_bits : int
        The result's scale is the input's times 2^-fraction_bits.
    """

    fraction_bits: int = 0

    OP = "integer.weighted_mean_pool"
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
        """Sum of the weighted tokens and of their weights, one division per channel."""
        tokens = Tokens(domain, **operands)

        def weight(b: Index, s: Index) -> Entry:
            return (domain.number(s, 0, tokens.length - 1) + 1) * tokens.indicator(b, s)

        # The sum over long sequences needs 64 bits, over short ones the narrower type serves.
        total = domain.sum(
            "token_sum",
            tokens.shape,
            tokens.length,
            lambda b, c, s: tokens.entry(b, c, s) * weight(b, s),
        )
        weights = domain.sum("weight", tokens.shape[:1], tokens.length, weight, "int32")
        bounds = domain.bounds(tokens.x)
        return domain.define(
            "mean",
            tokens.shape,
            lambda b, c: pooling.quotient_within(
                total[b, c], weights[b], self.fraction_bits, bounds
            ),
            "int32",
        )
