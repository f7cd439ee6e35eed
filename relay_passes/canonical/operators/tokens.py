"""Tokens: looked up, masked, prepended, cut out and moved."""

from __future__ import annotations

import numpy as np

from ...dialect.arrays import Floats, Ids
from ...dialect.record import Operand
from ...dialect.rules import PrependTokensRule, SliceTokensRule, UnfoldTokensRule
from ..operator import FLOAT, INDEX, CanonicalOperator


class Embedding(CanonicalOperator):
    """Rows of `table` at `ids`."""

    OPERANDS = (
        Operand("table", FLOAT, "V C", section="embeddings", rows_of="ids"),
        Operand("ids", INDEX, "b s"),
    )
    RESULT = "b s C"

    def evaluate(self, table: Floats, ids: Ids) -> Floats:
        return table[ids]


class MaskTokens(CanonicalOperator):
    """x where the mask is not 0, else 0."""

    OPERANDS = (
        Operand("x", FLOAT, "b s C"),
        Operand("attention_mask", INDEX, "b s", is_mask=True, is_input=True),
    )
    RESULT = "b s C"

    def evaluate(self, x: Floats, attention_mask: Ids) -> Floats:
        return x * (attention_mask != 0).astype(x.dtype)[:, :, None]


class PrependTokens(PrependTokensRule, CanonicalOperator):
    """Put the rows `tokens` before every sequence of x."""

    OPERANDS = (Operand("x", FLOAT, "b s C"), Operand("tokens", FLOAT, "N C"))

    def evaluate(self, x: Floats, tokens: Floats) -> Floats:
        rows = np.broadcast_to(tokens, (len(x), *tokens.shape))
        return np.concatenate([rows, x], axis=1)


class ShiftTokens(CanonicalOperator):
    """``y[s] = x[s + distance]``, 0 where the sequence has no such token; padding counts as one.

    Parameters
    ----------
    distance
        Positive: the token behind.
    """

    distance: int

    OPERANDS = (Operand("x", FLOAT, "b s C"),)
    RESULT = "b s C"
    BY_SEQUENCE = True

    def evaluate(self, x: Floats) -> Floats:
        length, result = x.shape[1], np.zeros_like(x)
        first, last = max(0, -self.distance), min(length, length - self.distance)
        if first < last:
            result[:, first:last] = x[:, first + self.distance : last + self.distance]
        return result


class SliceTokens(SliceTokensRule, CanonicalOperator):
    """Tokens `first` to ``first + count - 1`` of x, whose length is static."""

    OPERANDS = (Operand("x", FLOAT, "b S C"),)
    BY_SEQUENCE = True

    def evaluate(self, x: Floats) -> Floats:
        return x[:, self.first : self.first + self.count]


class UnfoldTokens(UnfoldTokensRule, CanonicalOperator):
    """``y[t, k C + c] = x[t stride + k - before, c]``, 0 outside; padding counts as a token.

    A linear layer behind it is a convolution along the sequence.
    """

    OPERANDS = (Operand("x", FLOAT, "b s C"),)
    BY_SEQUENCE = True

    def evaluate(self, x: Floats) -> Floats:
        padded = np.pad(x, ((0, 0), (self.before, self.after), (0, 0)))
        every = np.lib.stride_tricks.sliding_window_view(padded, self.width, 1)
        kept = every[:, :: self.stride].swapaxes(2, 3)
        return kept.reshape(x.shape[0], kept.shape[1], -1)
