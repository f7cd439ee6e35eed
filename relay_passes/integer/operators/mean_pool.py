"""`integer.mean_pool`: the mean over the tokens of each sequence."""

from __future__ import annotations

from dataclasses import dataclass

from ...dialect.record import Operand
from ...spec import pooling
from ...spec.values import Ranged
from ..checks import check_attribute
from ..domain import Domain, Tensor
from ..operator import Operator
from ..pooling import Tokens
from ..types import MASK, NARROW


@dataclass(frozen=True)
class MeanPool(Operator):
    """Mean over the tokens that the mask keeps, [b, C]; without a mask, over all.

    x is packed if `slots` are given; the mask must be given, then.

    Parameters
    ----------
    fraction_bits : int
        The result's scale is the input's times 2^-fraction_bits.
    """

    fraction_bits: int = 0

    OP = "integer.mean_pool"
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
