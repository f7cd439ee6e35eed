"""`integer.sqrt_mean_pool`: the sum of tokens over the root of their number."""

from __future__ import annotations

from dataclasses import dataclass

from ...spec import pooling
from ..domain import Domain, Tensor
from ..pooling import ScaledPool, Tokens


@dataclass(frozen=True)
class SqrtMeanPool(ScaledPool):
    """``sum / sqrt(n)`` of the n tokens that the mask keeps."""

    OP = "integer.sqrt_mean_pool"

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
