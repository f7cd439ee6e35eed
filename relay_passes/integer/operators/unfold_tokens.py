"""`integer.unfold_tokens`: the channels of neighbouring tokens, one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...dialect.record import Operand
from ...dialect.windows import count
from ...errors import LoweringError
from ..borders import Axis, filled
from ..checks import check_attribute
from ..domain import Domain, Entry, Index, Tensor
from ..operator import Operator
from ..types import LARGEST_INDEX, NARROW, Dim, TensorType


@dataclass(frozen=True)
class UnfoldTokens(Operator):
    """``y[t, k C + c] = x[t stride + k - before, c]``, 0 outside; padding counts as a token.

    Parameters
    ----------
    width : int
        Neighbouring tokens.
    stride : int
        From the first of them to those of the next row.
    before, after : int
        Tokens of 0 at either end of a sequence.
    """

    width: int
    stride: int
    before: int
    after: int

    OP = "integer.unfold_tokens"
    OPERANDS = (Operand("x", NARROW, "b s C"),)

    def __post_init__(self) -> None:
        check_attribute(self, "width", 1, LARGEST_INDEX)
        check_attribute(self, "stride", 1, LARGEST_INDEX)
        check_attribute(self, "before", 0, self.width - 1)
        check_attribute(self, "after", 0, self.width - 1)

    @property
    def _as_long(self) -> bool:
        return self.stride == 1 and self.before + self.after == self.width - 1

    def _count(self, length: int) -> int:
        return count(length, self.width, self.stride, self.before + self.after)

    def check_dims(self, dims: Mapping[str, Any]) -> None:
        """A sequence has as many rows as tokens, or a length that is known."""
        length = dims["s"]
        if not self._as_long and not (isinstance(length, int) and self._count(length) >= 1):
            raise LoweringError(
                f"{self.width} of {length} tokens with a stride of {self.stride}, and "
                f"{self.before} + {self.after} of 0 around them",
                self.where,
                "a sequence whose length is free keeps it, and one whose length is known has "
                "that many tokens",
                "give inputs of one length",
            )

    def result_shape(self, dims: Mapping[str, Any]) -> tuple[Dim, ...]:
        """[b, rows, width C]."""
        rows = dims["s"] if self._as_long else self._count(dims["s"])
        return (dims["b"], rows, dims["C"] * self.width)

    def result_dtype(self, types: Mapping[str, TensorType]) -> str:
        """That of x."""
        return types["x"].dtype

    def body(self, domain: Domain, **operands: Tensor) -> Tensor:
        x = operands["x"]
        length, channels = x.shape[0] // domain.batch, x.shape[1]
        rows = self._count(length)
        last = (rows - 1) * self.stride + self.width - 1 - self.before
        axis = Axis(length, self.before, max(0, last - (length - 1)))

        def entry(row: Index, column: Index) -> Entry:
            token = row % rows * self.stride + column // channels - self.before
            place = row // rows * length + axis.nearest(domain, token)
            return filled(domain, x[place, column % channels], [(axis, token)], 0)

        shape = (domain.batch * rows, channels * self.width)
        return domain.define("unfolded", shape, entry, x.dtype)
