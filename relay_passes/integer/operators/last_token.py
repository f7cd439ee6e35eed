"""`integer.last_token`: the last token of each sequence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...dialect.record import Operand
from ...spec.values import indicator
from ..domain import Domain, Entry, Index, Tensor
from ..operator import Operator
from ..pooling import Tokens
from ..traits import Traits
from ..types import MASK, NARROW, TensorType


@dataclass(frozen=True)
class LastToken(Operator):
    """The last token that the mask keeps, [b, C]; 0 for a sequence without tokens.

    x is packed if `slots` are given.
    """

    OP = "integer.last_token"
    OPERANDS = (
        Operand("x", ("uint8", *NARROW), "b s C"),
        Operand("mask", MASK, "b s", is_mask=True),
        Operand("slots", ("int32",), "b s", optional=True, counted=-1),
    )
    RESULT = "b C"
    TRAITS = Traits(takes_epilogue=False)

    def result_dtype(self, types: Mapping[str, TensorType]) -> str:
        """That of x."""
        return types["x"].dtype

    def body(self, domain: Domain, **operands: Tensor) -> Tensor:
        """The largest position that is kept, then its token."""
        tokens = Tokens(domain, **operands)

        def position(b: Index, s: Index) -> Entry:
            return indicator(tokens.kept(b, s)) * domain.number(s, 0, tokens.length - 1)

        last = domain.max("last", tokens.shape[:1], tokens.length, position, "int32")

        def selected(b: Index, c: Index) -> Entry:
            place = domain.index(last[b])
            return tokens.entry(b, c, place) * indicator(tokens.kept(b, place))

        return domain.define("selected", tokens.shape, selected, tokens.x.dtype)
