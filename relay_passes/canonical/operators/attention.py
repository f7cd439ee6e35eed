"""`canonical.attention`: scaled dot-product attention of all heads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...dialect.arrays import Floats, Ids
from ...dialect.distances import UNBOUNDED
from ...dialect.heads import shares_heads
from ...dialect.record import Dims, Operand
from ...dialect.types import Dim
from ..errors import CanonicalError
from ..operator import FLOAT, CanonicalOperator, mask_operand


@dataclass(frozen=True)
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

    OP = "canonical.attention"
    OPERANDS = (
        Operand("q", FLOAT, "b s C"),
        *(Operand(name, FLOAT, "b s K") for name in "kv"),
        mask_operand(),
        Operand("bias", FLOAT, "1|H D or 1|H P P", optional=True),
        Operand("key_positions", FLOAT, "E C", optional=True),
        Operand("query_positions", FLOAT, "E K", optional=True),
    )
    RESULT = "b s C"
    BY_SEQUENCE = True

    def __post_init__(self) -> None:
        if min(self.before, self.after) < 0:
            raise CanonicalError(
                f"a window of {self.before} keys before and {self.after} after the query",
                self.where,
                "a query sees itself at least",
                "give distances of 0 and more",
            )
        if self.cap < 0:
            raise CanonicalError(
                f"scores capped at {self.cap:.4g}",
                self.where,
                "a cap is positive, and 0 for none",
                "change the sign of the scale instead",
            )

    @property
    def limits_distance(self) -> bool:
        """Whether a key can be too far from its query."""
        return min(self.before, self.after) < UNBOUNDED

    def check_dims(self, dims: Dims) -> None:
        """Heads divide the channels, and a bias has a row for each."""
        if self.num_heads < 1 or dims["C"] % self.num_heads:
            raise CanonicalError(
                f"{dims['C']} channels do not divide by {self.num_heads} heads",
                self.where,
                "every head has the same number of channels",
                "check num_heads",
            )
        if not shares_heads(self.num_heads, dims["C"], dims["K"]):
            raise CanonicalError(
                f"{dims['K']} channels of keys and values for {self.num_heads} heads of "
                f"{dims['C'] // self.num_heads} channels",
                self.where,
                "keys have a head for each of the queries', or one for every so many of them",
                "give keys and values a number of heads that divides num_heads",
            )
        if "D" in dims or "P" in dims:
            extents = (dims["D"],) if "D" in dims else (dims["P"], dims["P"])
            self._check_bias(dims.get("H", self.num_heads), extents, dims["s"])
        if "E" in dims:
            self._check_positions(dims["E"], dims["s"])
            if self.cap:
                raise CanonicalError(
                    "vectors for distances, and scores that are capped",
                    self.where,
                    "their products would be added before the cap, for which nothing is known to "
                    "be trained",
                    "leave the cap out, or add a bias by distance",
                )
            if dims["C"] != dims["K"]:
                raise CanonicalError(
                    "vectors for distances, and heads that share keys",
                    self.where,
                    "a key is multiplied with a vector for each head of the queries",
                    "give keys as many heads as queries",
                )

    def _check_positions(self, distances: int, length: Dim) -> None:
        short = isinstance(length, int) and length > (distances + 1) // 2
        if not distances % 2 or short:
            raise CanonicalError(
                f"vectors for {distances} distances and {length} tokens",
                self.where,
                "there is one for each distance from 1 - positions to positions - 1",
                "give vectors for sequences as long as the model takes",
            )

    def _check_bias(self, heads: int, extents: tuple[int, ...], length: Dim) -> None:
        entries = extents[-1]
        positions, odd = (entries, True) if len(extents) == 2 else ((entries + 1) // 2, entries % 2)
        short = isinstance(length, int) and length > positions
        if heads != self.num_heads or not odd or short:
            raise CanonicalError(
                f"a bias of {heads} rows of {' x '.join(map(str, extents))} entries for "
                f"{self.num_heads} heads and {length} tokens",
                self.where,
                "it has a row for each head, or one for all, and an entry for each distance from "
                "1 - positions to positions - 1, or for each pair of positions",
                "give the bias for sequences as long as the model takes",
            )

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
            self._check_bias(self.num_heads if rows == 1 else rows, tuple(extents), length)
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
        self._check_positions(len(vectors), length)
        near = vectors[edge - length + 1 : edge + length]
        products = x @ near.reshape(len(near), self.num_heads, -1).transpose(1, 2, 0)
        places = np.broadcast_to(_distances(length) + length - 1, (*x.shape[:3], length))
        return np.take_along_axis(products, places, axis=3)


def _distances(length: int) -> Ids:
    """Key - query, [query, key]."""
    places = np.arange(length)
    return places[None, :] - places[:, None]
