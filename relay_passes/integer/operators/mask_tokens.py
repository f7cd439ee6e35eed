"""`integer.mask_tokens`: 0 at padding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...dialect.record import Operand
from ...spec.values import not_equal, select
from ..domain import Domain, Entry, Index, Tensor
from ..operator import Operator
from ..traits import Traits
from ..types import MASK, NARROW, TensorType


@dataclass(frozen=True)
class MaskTokens(Operator):
    """x where the mask is not 0, else 0; x is packed if `slots` are given, the result is not."""

    OP = "integer.mask_tokens"
    OPERANDS = (
        Operand("x", ("uint8", *NARROW), "b s C"),
        Operand("mask", MASK, "b s", is_mask=True),
        Operand("slots", ("int32",), "b s", optional=True, counted=-1),
    )
    RESULT = "b s C"
    TRAITS = Traits(takes_epilogue=False, hides_padding=True)

    def result_dtype(self, types: Mapping[str, TensorType]) -> str:
        """That of x."""
        return types["x"].dtype

    def body(self, domain: Domain, **operands: Tensor) -> Tensor:
        x, mask, slots = operands["x"], operands["mask"], operands.get("slots")
        seq_len = mask.shape[1]

        def entry(row: Index, channel: Index) -> Entry:
            batch, token = row // seq_len, row % seq_len
            found = x[domain.row_of_token(x, slots, batch, token), channel]
            return select(not_equal(mask[batch, token], 0), found, 0)

        return domain.define("masked", x.shape, entry, x.dtype)
