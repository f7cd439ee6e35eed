"""`integer.shift_tokens`: at every token its neighbour at one distance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...dialect.record import Operand
from ...spec.values import select
from ..checks import check_attribute
from ..domain import Domain, Entry, Index, Tensor
from ..operator import Operator
from ..types import LARGEST_INDEX, NARROW, TensorType


@dataclass(frozen=True)
class ShiftTokens(Operator):
    """``y[s] = x[s + distance]``, 0 where the sequence has no such token; padding counts as one.

    Parameters
    ----------
    distance : int
        Positive: the token behind.
    """

    distance: int

    OP = "integer.shift_tokens"
    OPERANDS = (Operand("x", NARROW, "b s C"),)
    RESULT = "b s C"

    def __post_init__(self) -> None:
        check_attribute(self, "distance", -LARGEST_INDEX, LARGEST_INDEX)

    def result_dtype(self, types: Mapping[str, TensorType]) -> str:
        """That of x."""
        return types["x"].dtype

    def body(self, domain: Domain, **operands: Tensor) -> Tensor:
        x = operands["x"]
        length = x.shape[0] // domain.batch

        def entry(row: Index, channel: Index) -> Entry:
            batch, token = row // length, row % length
            if self.distance < 0:
                place = domain.at_least(token + self.distance, 0)
                inside = token >= -self.distance
            else:
                place = domain.at_most(token + self.distance, length - 1)
                inside = token < length - self.distance
            found = x[batch * length + place, channel]
            return select(domain.condition(inside), found, 0)

        return domain.define("shifted", x.shape, entry, x.dtype)
