"""`integer.pack_tokens`: numbers per token in the rows of a batch without padding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...dialect.record import Operand
from ..domain import Domain, Entry, Index, Tensor
from ..operator import Operator
from ..traits import Traits
from ..types import NARROW, TensorType


@dataclass(frozen=True)
class PackTokens(Operator):
    """Row r gets the number of token ``tokens[r]``, of the same type."""

    OP = "integer.pack_tokens"
    OPERANDS = (
        Operand("x", (*NARROW, "int64"), "b s"),
        Operand("tokens", ("int32",), "b s", counted=0),
    )
    RESULT = "b s"
    TRAITS = Traits(takes_epilogue=False, gathers=True)

    def result_dtype(self, types: Mapping[str, TensorType]) -> str:
        """That of x."""
        return types["x"].dtype

    def body(self, domain: Domain, **operands: Tensor) -> Tensor:
        x, tokens = operands["x"], operands["tokens"]
        seq_len = x.shape[1]

        def entry(batch: Index, token: Index) -> Entry:
            source = domain.index(tokens[batch, token])
            return x[source // seq_len, source % seq_len]

        return domain.define("packed", x.shape, entry, x.dtype)
