"""`integer.join_parts`: the product with an operand, from those with its parts."""

from __future__ import annotations

from dataclasses import dataclass

from ...dialect.record import Operand
from ...spec import parts
from ..domain import Entry
from ..operator import Elementwise
from ..traits import Traits


@dataclass(frozen=True)
class JoinParts(Elementwise):
    """``2^8 high + x``: x is the product with low parts, `high` that with high ones."""

    OP = "integer.join_parts"
    OPERANDS = (Operand("x", ("int32",), "... C"), Operand("high", ("int32",), "... C"))
    RESULT = "... C"
    dtype = "int32"
    TRAITS = Traits(elementwise=True, per_token=True)
    STAGE = "joined"

    def entry(self, x: Entry, high: Entry) -> Entry:
        return parts.joined(high, x, parts.OPERAND_BITS)
