"""`integer.max_pool`: the largest value of every channel among the tokens of each sequence."""

from __future__ import annotations

from dataclasses import dataclass

from ...dialect.record import Operand
from ...spec.values import known, not_equal, select
from ..domain import Domain, Entry, Index, Tensor
from ..operator import Operator
from ..pooling import Tokens
from ..types import MASK, NARROW, dtype_bounds


@dataclass(frozen=True)
class MaxPool(Operator):
    """Maximum over the tokens that the mask keeps, [b, C]; without a mask, over all.

    0 for a sequence without tokens. x is packed if `slots` are given; the mask must be given, then.
    """

    OP = "integer.max_pool"
    OPERANDS = (
        Operand("x", ("uint8", *NARROW), "b s C"),
        Operand("mask", MASK, "b s", optional=True, is_mask=True),
        Operand("slots", ("int32",), "b s", optional=True, counted=-1),
    )
    RESULT = "b C"
    dtype = "int32"

    def body(self, domain: Domain, **operands: Tensor) -> Tensor:
        """Maximum of the tokens, with the least number of the type in the place of padding."""
        tokens = Tokens(domain, **operands)
        if tokens.mask is None:
            return domain.max("largest", tokens.shape, tokens.length, tokens.entry, "int32")
        least = dtype_bounds(tokens.x.dtype)[0]

        def kept(b: Index, c: Index, s: Index) -> Entry:
            return select(tokens.kept(b, s), tokens.entry(b, c, s), least)

        largest = domain.max("largest", tokens.shape, tokens.length, kept, "int32")
        count = tokens.count()
        low, high = domain.bounds(tokens.x)

        def pooled(b: Index, c: Index) -> Entry:
            # Where there is a token, the maximum is one of x.
            found = select(not_equal(count[b], 0), largest[b, c], 0)
            return known(found, min(low, 0), max(high, 0))

        return domain.define("pooled", tokens.shape, pooled, "int32")
