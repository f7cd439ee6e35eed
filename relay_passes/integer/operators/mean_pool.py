"""`integer.mean_pool`: the mean over the tokens of each sequence."""

from __future__ import annotations

from dataclasses import dataclass

from ...spec import pooling
from ...spec.values import Ranged
from ..domain import Domain, Tensor
from ..pooling import ScaledPool, Tokens


@dataclass(frozen=True)
class MeanPool(ScaledPool):
    """Mean over the tokens that the mask keeps."""

    OP = "integer.mean_pool"

    def body(self, domain: Domain, **operands: Tensor) -> Tensor:
        """Sum of the tokens, their count, one division per sequence."""
        tokens = Tokens(domain, **operands)
        total, count = tokens.sum(), tokens.count()
        reciprocal = domain.define(
            "reciprocal",
            tokens.shape[:1],
            lambda b: pooling.reciprocal_of_count(count[b]),
            "int32",
        )
        bounds = Ranged(*domain.bounds(tokens.x))
        return domain.define(
            "mean",
            tokens.shape,
            lambda b, c: pooling.mean_of_tokens(
                total[b, c], reciprocal[b], self.fraction_bits, entry=bounds
            ),
            "int32",
        )
