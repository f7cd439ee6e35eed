"""`integer.slice_tokens`: some neighbouring tokens of every sequence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...dialect.record import Operand
from ...errors import LoweringError
from ..checks import check_attribute
from ..domain import Domain, Entry, Index, Tensor
from ..operator import Operator
from ..types import LARGEST_INDEX, NARROW, Dim, TensorType


@dataclass(frozen=True)
class SliceTokens(Operator):
    """Tokens `first` to ``first + count - 1`` of x.

    Parameters
    ----------
    first, count : int
        Place of the first one, and how many.
    """

    first: int
    count: int

    OP = "integer.slice_tokens"
    OPERANDS = (Operand("x", NARROW, "b s C"),)

    def __post_init__(self) -> None:
        check_attribute(self, "first", 0, LARGEST_INDEX)
        check_attribute(self, "count", 1, LARGEST_INDEX)

    def check_dims(self, dims: Mapping[str, Any]) -> None:
        """A sequence has such tokens; a symbolic one is checked when it is specialised."""
        if isinstance(dims["s"], int) and self.first + self.count > dims["s"]:
            raise LoweringError(
                f"tokens {self.first} to {self.first + self.count - 1} of {dims['s']}",
                self.where,
                "tokens are counted from 0",
                "slice inside of the sequence",
            )

    def result_shape(self, dims: Mapping[str, Any]) -> tuple[Dim, ...]:
        """[b, count, C]."""
        return (dims["b"], self.count, dims["C"])

    def result_dtype(self, types: Mapping[str, TensorType]) -> str:
        """That of x."""
        return types["x"].dtype

    def body(self, domain: Domain, **operands: Tensor) -> Tensor:
        x = operands["x"]
        length = x.shape[0] // domain.batch

        def entry(row: Index, channel: Index) -> Entry:
            batch, token = row // self.count, row % self.count
            return x[batch * length + token + self.first, channel]

        return domain.define("kept", (domain.batch * self.count, x.shape[1]), entry, x.dtype)
