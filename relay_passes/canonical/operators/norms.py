"""Norms of rows: the channels of a token, or of one of its heads."""

from __future__ import annotations

import numpy as np

from ...dialect.arrays import Floats
from ...dialect.heads import BY_CHANNEL_OF_ROW
from ...dialect.record import Operand
from ...dialect.rules import NormRule
from ..operator import FLOAT, CanonicalOperator


class Norm(NormRule, CanonicalOperator, abstract=True):
    """Base of norms of rows: all channels of a token, or where gamma is [H or 1, D] each head.

    Parameters
    ----------
    epsilon
    """

    epsilon: float


def by_rows(x: Floats, gamma: Floats) -> Floats:
    """See x [..., C] as rows that weights are for: [..., heads, D] where they are of heads."""
    return x if gamma.ndim == 1 else x.reshape(*x.shape[:-1], -1, gamma.shape[-1])


class LayerNorm(Norm):
    """``(x - mean) / sqrt(variance + epsilon) gamma + beta`` of every row; see `Norm`."""

    OPERANDS = (
        Operand("x", FLOAT, "... C"),
        Operand("gamma", FLOAT, BY_CHANNEL_OF_ROW),
        Operand("beta", FLOAT, BY_CHANNEL_OF_ROW),
    )
    RESULT = "... C"

    def evaluate(self, x: Floats, gamma: Floats, beta: Floats) -> Floats:
        shape = x.shape
        x = by_rows(x, gamma)
        centred = x - x.mean(axis=-1, keepdims=True)
        squares = np.einsum("...c,...c->...", centred, centred)[..., None]
        centred /= np.sqrt(squares / np.float32(x.shape[-1]) + np.float32(self.epsilon))
        centred *= gamma
        centred += beta
        return centred.reshape(shape)


class RmsNorm(Norm):
    """``x / sqrt(mean of x^2 + epsilon) gamma`` of every row of channels; see `Norm`."""

    OPERANDS = (Operand("x", FLOAT, "... C"), Operand("gamma", FLOAT, BY_CHANNEL_OF_ROW))
    RESULT = "... C"

    def evaluate(self, x: Floats, gamma: Floats) -> Floats:
        shape = x.shape
        x = by_rows(x, gamma)
        squares = np.einsum("...c,...c->...", x, x)[..., None]
        result = x / np.sqrt(squares / np.float32(x.shape[-1]) + np.float32(self.epsilon))
        result *= gamma
        return result.reshape(shape)


class L2Norm(CanonicalOperator):
    """``x / |x|`` of every row of channels, |x| its Euclidean length; a row of zeros stays one."""

    OPERANDS = (Operand("x", FLOAT, "... C"),)
    RESULT = "... C"

    def evaluate(self, x: Floats) -> Floats:
        length = np.sqrt(np.einsum("...c,...c->...", x, x))[..., None]
        return x / np.maximum(length, np.finfo(x.dtype).tiny)
