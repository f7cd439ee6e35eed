"""`canonical.attention`: scaled dot-product attention of all heads."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...dialect.arrays import Floats, Ids
from ...dialect.heads import (
    UNBOUNDED,
    attention_problems,
    bias_problems,
    distance_problems,
    window_problems,
)
from ...dialect.record import Dims, Operand
from ...dialect.types import Dim, TensorType, static
from ..operator import FLOAT, PADDING_MASK, CanonicalOperator


class Attention(CanonicalOperator):
    """``softmax(scale (q k^T + q u^T + w k^T) + bias + mask) v`` by head.

    Keys and values may have fewer heads than queries, G of them, in order: head h of the queries
    reads head h // (H / G).

    Keys whose mask is 0 weigh exactly 0, as do those outside of the window; a row without any key
    gives 0. Without a mask every token is a key of its sequence. A bias has a row for each head, or
    one for all: entry d + P - 1 of it for each distance d = key - query, or one for each query and
    key; P positions are as many as a sequence may have tokens. u and w (`key_positions`,
    `query_positions`) have a vector for each such distance: a query is multiplied with u of its
    distances, a key with w (disentangled attention).

    Parameters
    ----------
    num_heads
        H; the channels of q are H * D, those of k and v G * D.
    scale
        Of the scores, before the bias.
    before, after
        Window: the largest distance at which a key in front of its query counts, and behind it
        (0 for causal attention). By default nothing limits it.
    cap
        c of ``c tanh(s / c)``, which scaled scores become before a bias is added (softcap). By
        default, 0, they stay what they are.
    """

    num_heads: int
    scale: float
    before: int = UNBOUNDED
    after: int = UNBOUNDED
    cap: float = 0.0

    OPERANDS = (
        Operand("q", FLOAT, "b s C"),
        *(Operand(name, FLOAT, "b s K") for name in "kv"),
        PADDING_MASK,
        Operand("bias", FLOAT, "1|H D or 1|H P P", optional=True),
        Operand("key_positions", FLOAT, "E C", optional=True),
        Operand("query_positions", FLOAT, "E K", optional=True),
    )
    RESULT = "b s C"
    BY_SEQUENCE = True

    def __post_init__(self) -> None:
        for problem in window_problems(self.before, self.after):
            raise self.refused(*problem)
        if self.cap < 0:
            raise self.refused(
                f"scores capped at {self.cap:.4g}",
                "a cap is positive, and 0 for none",
                "change the sign of the scale instead",
            )

    @property
    def limits_distance(self) -> bool:
        """Whether a key can be too far from its query."""
        return min(self.before, self.after) < UNBOUNDED

    def check_dims(self, dims: Dims) -> None:
        """Heads divide the channels, and a bias has a row for each."""
        for problem in attention_problems(self.num_heads, dims):
            raise self.refused(*problem)
        if "E" in dims:
            self._check_distances(dims["E"], dims["s"])
            if self.cap:
                raise self.refused(
                    "vectors for distances, and scores that are capped",
                    "their products would be added before the cap, for which nothing is known to "
                    "be trained",
                    "leave the cap out, or add a bias by distance",
                )
            if dims["C"] != dims["K"]:
                raise self.refused(
                    "vectors for distances, and heads that share keys",
                    "a key is multiplied with a vector for each head of the queries",
                    "give keys as many heads as queries",
                )

    def _check_distances(self, distances: int, length: Dim) -> None:
        for problem in distance_problems(distances, length):
            raise self.refused(*problem)

    def longest(self, types: Mapping[str, TensorType]) -> int | None:
        """Tables by distance have 2 P - 1 entries, one by pairs P by P."""
        counts = []
        for name, axis in (("bias", 1), ("key_positions", 0), ("query_positions", 0)):
            if name in types:
                shape = static(types[name].shape)
                by_pair = name == "bias" and len(shape) == 3
                counts.append(shape[axis] if by_pair else (shape[axis] + 1) // 2)
        return min(counts, default=None)

    def evaluate(
        self,
        q: Floats,
        k: Floats,
        v: Floats,
        attention_mask: Ids | None = None,
        bias: Floats | None = None,
        key_positions: Floats | None = None,
        query_positions: Floats | None = None,
    ) -> Floats:
        width = q.shape[-1] // self.num_heads
        q, k, v = (x.reshape(*x.shape[:2], -1, width).transpose(0, 2, 1, 3) for x in (q, k, v))
        k, v = (x.repeat(self.num_heads // x.shape[1], axis=1) for x in (k, v))
        scores = q @ k.swapaxes(2, 3)
        if key_positions is not None:
            scores += self._by_distance(q, key_positions)
        if query_positions is not None:
            scores += self._by_distance(k, query_positions[::-1]).swapaxes(2, 3)
        scores *= np.float32(self.scale)
        if self.cap:
            cap = np.float32(self.cap)
            scores = np.tanh(scores / cap) * cap
        if bias is not None:
            rows, *extents = bias.shape
            length = scores.shape[-1]
            given = self.num_heads if rows == 1 else rows
            for problem in bias_problems(self.num_heads, given, tuple(extents), length):
                raise self.refused(*problem)
            if len(extents) == 2:
                scores += bias[:, :length, :length]
            else:
                scores += bias[:, _distances(length) + extents[0] // 2]
        if self.limits_distance:
            distance = _distances(scores.shape[-1])
            outside = (distance < -self.before) | (distance > self.after)
            scores += np.where(outside, -np.inf, np.float32(0)).astype(np.float32)
        if attention_mask is not None:
            scores += np.where(attention_mask != 0, np.float32(0), -np.inf)[:, None, None, :]
        # A row without keys has no largest score but -inf, and no weights but 0.
        scores -= np.maximum(scores.max(axis=-1, keepdims=True), np.finfo(np.float32).min)
        weights = np.exp(scores, out=scores)
        weights /= np.maximum(weights.sum(axis=-1, keepdims=True), np.finfo(np.float32).tiny)
        context = (weights @ v).transpose(0, 2, 1, 3)
        return context.reshape(*context.shape[:2], -1)

    def _by_distance(self, x: Floats, vectors: Floats) -> Floats:
        """``x[i] . vectors[j - i]`` by head, [batch, head, i, j]."""
        length, edge = x.shape[2], len(vectors) // 2
        self._check_distances(len(vectors), length)
        near = vectors[edge - length + 1 : edge + length]
        products = x @ near.reshape(len(near), self.num_heads, -1).transpose(1, 2, 0)
        places = np.broadcast_to(_distances(length) + length - 1, (*x.shape[:3], length))
        return np.take_along_axis(products, places, axis=3)


def _distances(length: int) -> Ids:
    """Key - query, [query, key]."""
    places = np.arange(length)
    return places[None, :] - places[:, None]
