"""Tokens: looked up, masked, prepended, cut out and moved."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...dialect.arrays import Floats, Ids
from ...dialect.record import Dims, Operand
from ...dialect.types import Dim
from ...dialect.windows import count
from ..errors import CanonicalError
from ..operator import CANONICAL, FLOAT, INDEX, CanonicalOperator


@dataclass(frozen=True)
class Embedding(CanonicalOperator):
    """Rows of `table` at `ids`."""

    OP = "canonical.embedding"
    OPERANDS = (Operand("table", FLOAT, "V C", section="embeddings"), Operand("ids", INDEX, "b s"))
    RESULT = "b s C"

    def evaluate(self, table: Floats, ids: Ids) -> Floats:
        return table[ids]


@dataclass(frozen=True)
class MaskTokens(CanonicalOperator):
    """x where the mask is not 0, else 0."""

    OP = "canonical.mask_tokens"
    OPERANDS = (
        Operand("x", FLOAT, "b s C"),
        Operand("attention_mask", INDEX, "b s", is_mask=True, is_input=True),
    )
    RESULT = "b s C"

    def evaluate(self, x: Floats, attention_mask: Ids) -> Floats:
        return x * (attention_mask != 0).astype(x.dtype)[:, :, None]


@dataclass(frozen=True)
class PrependTokens(CanonicalOperator):
    """Put the rows `tokens` before every sequence of x."""

    OP = "canonical.prepend_tokens"
    OPERANDS = (Operand("x", FLOAT, "b s C"), Operand("tokens", FLOAT, "N C"))

    def result_shape(self, dims: Dims) -> tuple[Dim, ...]:
        """As many tokens more as there are rows."""
        return dims["b"], dims["s"] + dims["N"], dims["C"]

    def evaluate(self, x: Floats, tokens: Floats) -> Floats:
        rows = np.broadcast_to(tokens, (len(x), *tokens.shape))
        return np.concatenate([rows, x], axis=1)


@dataclass(frozen=True)
class ShiftTokens(CanonicalOperator):
    """``y[s] = x[s + distance]``, 0 where the sequence has no such token; padding counts as one.

    Parameters
    ----------
    distance
        Positive: the token behind.
    """

    distance: int

    OP = "canonical.shift_tokens"
    OPERANDS = (Operand("x", FLOAT, "b s C"),)
    RESULT = "b s C"
    BY_SEQUENCE = True

    def evaluate(self, x: Floats) -> Floats:
        length, result = x.shape[1], np.zeros_like(x)
        first, last = max(0, -self.distance), min(length, length - self.distance)
        if first < last:
            result[:, first:last] = x[:, first + self.distance : last + self.distance]
        return result


@dataclass(frozen=True)
class SliceTokens(CanonicalOperator):
    """Tokens `first` to ``first + count - 1`` of x, whose length is static.

    Parameters
    ----------
    first
        Place of the first one.
    count
        How many.
    """

    first: int
    count: int

    OP = "canonical.slice_tokens"
    OPERANDS = (Operand("x", FLOAT, "b S C"),)
    BY_SEQUENCE = True

    def check_dims(self, dims: Dims) -> None:
        """There are such tokens."""
        if self.first < 0 or self.count < 1 or self.first + self.count > int(dims["S"]):
            raise CANONICAL.error(
                f"tokens {self.first} to {self.first + self.count - 1} of {dims['S']}",
                where=self.where,
                why="tokens are counted from 0, and at least one is kept",
                todo="slice inside of the sequence",
            )

    def result_shape(self, dims: Dims) -> tuple[Dim, ...]:
        """[b, count, C]."""
        return dims["b"], self.count, dims["C"]

    def evaluate(self, x: Floats) -> Floats:
        return x[:, self.first : self.first + self.count]


@dataclass(frozen=True)
class UnfoldTokens(CanonicalOperator):
    """``y[t, k C + c] = x[t stride + k - before, c]``, 0 outside; padding counts as a token.

    A linear layer behind it is a convolution along the sequence.

    Parameters
    ----------
    width
        Neighbouring tokens.
    stride
        From the first of them to those of the next row.
    before, after
        Tokens of 0 at either end of a sequence, less than `width`.
    """

    width: int
    stride: int
    before: int
    after: int

    OP = "canonical.unfold_tokens"
    OPERANDS = (Operand("x", FLOAT, "b s C"),)
    BY_SEQUENCE = True

    def check_dims(self, dims: Dims) -> None:
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

    def result_shape(self, dims: Dims) -> tuple[Dim, ...]:
        rows = dims["s"] if self._as_long else self._count(dims["s"])
        return dims["b"], rows, dims["C"] * self.width

    def evaluate(self, x: Floats) -> Floats:
        padded = np.pad(x, ((0, 0), (self.before, self.after), (0, 0)))
        every = np.lib.stride_tricks.sliding_window_view(padded, self.width, 1)
        kept = every[:, :: self.stride].swapaxes(2, 3)
        return kept.reshape(x.shape[0], kept.shape[1], -1)
