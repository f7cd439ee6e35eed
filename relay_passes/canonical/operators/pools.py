"""Poolings: one row for each sequence."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ...dialect.arrays import Floats, Ids
from ...dialect.record import Operand
from ...dialect.rules import AttentionPoolRule
from ..operator import FLOAT, INDEX, PADDING_MASK, CanonicalOperator


class Pool(CanonicalOperator, abstract=True):
    """Base of poolings of the tokens that the mask keeps, or of all."""

    OPERANDS: ClassVar[tuple[Operand, ...]] = (Operand("x", FLOAT, "b s C"), PADDING_MASK)
    RESULT: ClassVar[str] = "b C"


class MeanPool(Pool):
    """Mean of x over the tokens that the mask keeps, or over all; 0 where there is none."""

    def evaluate(self, x: Floats, attention_mask: Ids | None = None) -> Floats:
        if attention_mask is None:
            return x.mean(axis=1)
        kept = (attention_mask != 0).astype(x.dtype)
        total = np.einsum("bsc,bs->bc", x, kept)
        return total / np.maximum(kept.sum(axis=1, keepdims=True), np.float32(1))


class WeightedMeanPool(Pool):
    """Mean of x over the tokens that the mask keeps, or over all, token t weighing t + 1.

    Tokens are counted from the start of the row, padding included. 0 where no token is kept.
    Source: SGPT, https://arxiv.org/abs/2202.08904, section 4.1.2.
    """

    def evaluate(self, x: Floats, attention_mask: Ids | None = None) -> Floats:
        weights = np.broadcast_to(np.arange(1, x.shape[1] + 1, dtype=x.dtype), x.shape[:2])
        if attention_mask is not None:
            weights = weights * (attention_mask != 0)
        total = np.einsum("bsc,bs->bc", x, weights)
        return total / np.maximum(weights.sum(axis=1, keepdims=True), np.float32(1))


class SqrtMeanPool(Pool):
    """``sum / sqrt(n)`` of the n tokens of x that the mask keeps, or of all; 0 where n is 0."""

    def evaluate(self, x: Floats, attention_mask: Ids | None = None) -> Floats:
        if attention_mask is None:
            return x.sum(axis=1) / np.sqrt(np.float32(x.shape[1]))
        kept = (attention_mask != 0).astype(x.dtype)
        total = np.einsum("bsc,bs->bc", x, kept)
        return total / np.sqrt(np.maximum(kept.sum(axis=1, keepdims=True), np.float32(1)))


class MaxPool(Pool):
    """Maximum of x over the tokens that the mask keeps, or over all; 0 where there is none."""

    def evaluate(self, x: Floats, attention_mask: Ids | None = None) -> Floats:
        if attention_mask is None:
            return x.max(axis=1)
        kept = (attention_mask != 0)[:, :, None]
        largest = np.where(kept, x, -np.inf).max(axis=1)
        return np.where(kept.any(axis=1), largest, 0).astype(x.dtype)


class LastToken(CanonicalOperator):
    """The last token of x that the mask keeps, on whichever side padding is; 0 if none is kept."""

    OPERANDS = (
        Operand("x", FLOAT, "b s C"),
        Operand("attention_mask", INDEX, "b s", is_mask=True, is_input=True),
    )
    RESULT = "b C"

    def evaluate(self, x: Floats, attention_mask: Ids) -> Floats:
        kept = attention_mask != 0
        last = kept.shape[1] - 1 - np.argmax(kept[:, ::-1], axis=1)
        found = x[np.arange(x.shape[0]), last]
        found *= kept.any(axis=1, keepdims=True)
        return found


class SelectToken(CanonicalOperator):
    """One token of x.

    Parameters
    ----------
    index
        Its place.
    """

    index: int = 0

    OPERANDS = (Operand("x", FLOAT, "b s C"),)
    RESULT = "b C"

    def evaluate(self, x: Floats) -> Floats:
        return x[:, self.index]


class AttentionPool(AttentionPoolRule, CanonicalOperator):
    """``softmax(scores) v`` by head, over the tokens of a sequence, [b, C].

    The scores are those of a query that is the same for every sequence, a linear function of the
    tokens: [b, s, H]. Tokens whose mask is 0 weigh exactly 0; 0 where there is none. Source: Set
    Transformer, https://arxiv.org/abs/1810.00825, section 3.2, with one seed vector.
    """

    OPERANDS = (Operand("scores", FLOAT, "b s H"), Operand("v", FLOAT, "b s C"), PADDING_MASK)
    RESULT = "b C"

    def evaluate(self, scores: Floats, v: Floats, attention_mask: Ids | None = None) -> Floats:
        if attention_mask is not None:
            scores = np.where((attention_mask != 0)[:, :, None], scores, -np.inf)
        least = np.finfo(np.float32).min
        weights = np.exp(scores - np.maximum(scores.max(axis=1, keepdims=True), least))
        weights /= np.maximum(weights.sum(axis=1, keepdims=True), np.finfo(np.float32).tiny)
        heads = v.reshape(*v.shape[:2], scores.shape[2], -1)
        return np.einsum("bsh,bshd->bhd", weights, heads).reshape(len(v), -1).astype(v.dtype)
