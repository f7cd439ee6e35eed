"""`integer.prepend_tokens`: the same rows before every sequence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...dialect.record import Operand
from ..domain import Domain, Entry, Index, Tensor
from ..operator import Operator
from ..types import NARROW, Dim


@dataclass(frozen=True)
class PrependTokens(Operator):
    """The rows `tokens`, then those of x; both at one scale."""

    OP = "integer.prepend_tokens"
    OPERANDS = (Operand("x", NARROW, "b s C"), Operand("tokens", ("int32",), "N C"))
    dtype = "int32"

    def result_shape(self, dims: Mapping[str, Any]) -> tuple[Dim, ...]:
        """[b, s + n, C]."""
        return (dims["b"], dims["s"] + dims["N"], dims["C"])

    def body(self, domain: Domain, **operands: Tensor) -> Tensor:
        x, tokens = operands["x"], operands["tokens"]
        count, channels = tokens.shape
        old = x.shape[0] // domain.batch
        new = old + count

        def entry(row: Index, channel: Index) -> Entry:
            batch, token = row // new, row % new
            return domain.choose(
                token < count,
                tokens[domain.at_most(token, count - 1), channel],
                x[batch * old + domain.at_least(token - count, 0), channel],
            )

        return domain.define("tokens", (domain.batch * new, channels), entry, "int32")
