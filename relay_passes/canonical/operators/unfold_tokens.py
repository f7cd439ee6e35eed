"""`canonical.unfold_tokens`: the channels of neighbouring tokens, one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...dialect.record import Operand
from ...dialect.types import Dim
from ...dialect.windows import count
from ..errors import CanonicalError
from ..operator import FLOAT, CanonicalOperator


@dataclass(frozen=True)
class UnfoldTokens(CanonicalOperator):
    """``y[t, k C + c] = x[t stride + k - before, c]``, 0 outside; padding counts as a token.

    A linear layer behind it is a convolution along the sequence.

    Parameters
    ----------
    width : int
        Neighbouring tokens.
    stride : int
        From the first of them to those of the next row.
    before, after : int
        Tokens of 0 at either end of a sequence, less than `width`.
    """

    width: int
    stride: int
    before: int
    after: int

    OP = "canonical.unfold_tokens"
    OPERANDS = (Operand("x", FLOAT, "b s C"),)
    BY_SEQUENCE = True

    def check_dims(self, dims: Mapping[str, Any]) -> None:
        """A sequence has as many rows as tokens, or a length that is known."""
        sound = self.stride >= 1 and 0 <= self.before < self.width and 0 <= self.after < self.width
        if not sound or not (self._as_long or self._count(dims["s"]) >= 1):
            raise CanonicalError(
                f"{self.width} of {dims['s']} tokens with a stride of {self.stride}, and "
                f"{self.before} + {self.after} of 0 around them",
                self.where,
                "a sequence whose length is free keeps it, and one whose length is known has "
                "that many tokens",
                "pad to the same length, or give inputs of one length",
            )

    @property
    def _as_long(self) -> bool:
        return self.stride == 1 and self.before + self.after == self.width - 1

    def _count(self, length: Dim) -> int:
        borders = self.before + self.after
        return count(length, self.width, self.stride, borders) if isinstance(length, int) else 0

    def result_shape(self, dims: Mapping[str, Any]) -> tuple[Dim, ...]:
        rows = dims["s"] if self._as_long else self._count(dims["s"])
        return dims["b"], rows, dims["C"] * self.width

    def evaluate(self, x: NDArray[Any]) -> NDArray[Any]:
        padded = np.pad(x, ((0, 0), (self.before, self.after), (0, 0)))
        every = np.lib.stride_tricks.sliding_window_view(padded, self.width, 1)
        kept = every[:, :: self.stride].swapaxes(2, 3)
        return kept.reshape(x.shape[0], kept.shape[1], -1)
