"""`integer.mean_pool`: the mean over the tokens of each sequence."""

from __future__ import annotations

from dataclasses import dataclass

from ...dialect.record import Operand
from ...spec import pooling
from ...spec.values import Ranged, indicator, not_equal
from ..checks import check_attribute
from ..domain import Domain, Entry, Index, Tensor
from ..operator import Operator
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
        x, mask, slots = operands["x"], operands.get("mask"), operands.get("slots")
        batch, channels = domain.batch, x.shape[1]
        seq_len = x.shape[0] // batch

        def is_token(row: Index, token: Index) -> Entry:
            return 1 if mask is None else indicator(not_equal(mask[row, token], 0))

        total = domain.sum(
            "token_sum",
            (batch, channels),
            seq_len,
            lambda b, c, s: x[domain.row_of_token(x, slots, b, s), c] * is_token(b, s),
            "int32",
        )
        if mask is None:
            count = domain.define("count", (batch,), lambda b: seq_len, "int32")
        else:
            count = domain.sum("count", (batch,), seq_len, is_token, "int32")
        reciprocal = domain.define(
            "reciprocal", (batch,), lambda b: pooling.reciprocal_of_count(count[b]), "int32"
        )
        return domain.define(
            "mean",
            (batch, channels),
            lambda b, c: pooling.mean_of_tokens(
                total[b, c], reciprocal[b], self.fraction_bits, entry=Ranged(*domain.bounds(x))
            ),
            "int32",
        )
