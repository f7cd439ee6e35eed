"""`canonical.slice_tokens`: some neighbouring tokens of every sequence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from ...dialect.record import Operand
from ...dialect.types import Dim
from ..operator import CANONICAL, FLOAT, CanonicalOperator


@dataclass(frozen=True)
class SliceTokens(CanonicalOperator):
    """Tokens `first` to ``first + count - 1`` of x, whose length is static.

    Parameters
    ----------
    first : int
        Place of the first one.
    count : int
        How many.
    """

    first: int
    count: int

    OP = "canonical.slice_tokens"
    OPERANDS = (Operand("x", FLOAT, "b S C"),)
    BY_SEQUENCE = True

    def check_dims(self, dims: Mapping[str, Any]) -> None:
        """There are such tokens."""
        if self.first < 0 or self.count < 1 or self.first + self.count > int(dims["S"]):
            raise CANONICAL.error(
                f"tokens {self.first} to {self.first + self.count - 1} of {dims['S']}",
                where=self.where,
                why="tokens are counted from 0, and at least one is kept",
                todo="slice inside of the sequence",
            )

    def result_shape(self, dims: Mapping[str, Any]) -> tuple[Dim, ...]:
        """[b, count, C]."""
        return dims["b"], self.count, dims["C"]

    def evaluate(self, x: NDArray[Any]) -> NDArray[Any]:
        return x[:, self.first : self.first + self.count]
