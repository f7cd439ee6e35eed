"""`integer.weighted_mean_pool`: a mean of tokens in which later ones weigh more."""

from __future__ import annotations

from dataclasses import dataclass

from ...spec import pooling
from ..domain import Domain, Entry, Index, Tensor
from ..pooling import ScaledPool, Tokens


@dataclass(frozen=True)
class WeightedMeanPool(ScaledPool):
    """Mean over the tokens that the mask keeps, token t weighing t + 1."""

    OP = "integer.weighted_mean_pool"

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
