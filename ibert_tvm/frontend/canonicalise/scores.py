"""Attention scores, what is done to them, and their probabilities."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ibert_tvm.relay_passes.canonical import UNBOUNDED

from ...common.types import Array, Flags, Longs
from .builder import Builder
from .mismatch import Mismatch
from .values import Hidden, LaidOut, Scalable, Value, Weight
from .views import View


@dataclass(frozen=True, eq=False)
class ScoreTerm:
    """What is done to scores besides their scale.

    Parameters
    ----------
    mask
        Name of the input that masks keys; None if none does.
    before, after
        Window: the largest distance at which a key in front of its query counts, and behind it.
    bias
        Added, by distance: entry d + L - 1 of [1 or heads, 2 L - 1] for d = key - query, L tokens
        of the probe shape; or, where every sequence has as many, by pair: [1 or heads, L, L].
    """

    mask: str | None = None
    before: int = UNBOUNDED
    after: int = UNBOUNDED
    bias: Weight | None = None

    @property
    def masks(self) -> bool:
        """Whether it leaves a key out."""
        return self.mask is not None or min(self.before, self.after) < UNBOUNDED

    def joined(self, other: ScoreTerm) -> ScoreTerm:
        """Return what both together do.

        Raises
        ------
        Mismatch
            If two inputs mask keys.
        """
        if other.mask is not None and self.mask not in (None, other.mask):
            raise Mismatch(f"two inputs mask the keys: {self.mask} and {other.mask}")
        bias = self.bias or other.bias
        if self.bias is not None and other.bias is not None:
            one, more = self.bias.array, other.bias.array
            if one.ndim != more.ndim:
                one, more = by_pair(one), by_pair(more)
            bias = replace(self.bias, array=one + more)
        return ScoreTerm(
            other.mask or self.mask,
            min(self.before, other.before),
            min(self.after, other.after),
            bias,
        )

    @property
    def seen_bias(self) -> Weight | None:
        """The bias with 0 where the window leaves every key out."""
        if self.bias is None:
            return None
        array = self.bias.array
        edge = array.shape[1] // 2
        distance = np.arange(-edge, edge + 1)
        if array.ndim == 3:
            distance = _distances(array.shape[1])
        inside = (distance >= -self.before) & (distance <= self.after)
        return replace(self.bias, array=np.where(inside, array, np.float32(0)))

    def scaled(self, factor: float) -> ScoreTerm:
        """Return what it is where the scores are multiplied afterwards.

        Raises
        ------
        Mismatch
            If it masks keys: what is left of a low score is not known to be low.
        """
        if self.masks:
            raise Mismatch("the scores are scaled after they were masked")
        if self.bias is None:
            return self
        return replace(self, bias=replace(self.bias, array=self.bias.array * np.float32(factor)))


def by_pair(bias: Array) -> Array:
    """A bias of scores, by distance or by pair, as [1 or heads, query, key]."""
    if bias.ndim == 3:
        return bias
    edge = bias.shape[1] // 2
    return bias[:, _distances(edge + 1) + edge]


def _distances(length: int) -> Longs:
    """Key - query, [query, key]."""
    places = np.arange(length)
    return places[None, :] - places[:, None]


@dataclass(frozen=True, eq=False)
class Scores(LaidOut, Scalable):
    """Products of queries and keys, scaled, perhaps masked or with a bias.

    Parameters
    ----------
    q, k
        The operands, standard layout [batch, seq_len, channels].
    heads
        Number of heads.
    scale
        Factor so far, of the products alone.
    view
        Layout over the atoms batch, head, query, key.
    term
        What was added to them or selected of them so far.
    key_positions, query_positions
        Vectors for distances whose products with queries, and with keys, were added to them: [2 L -
        1, channels], row d + L - 1 for d = key - query, L tokens of the probe shape.
    cap
        Factor so far of their hyperbolic tangent, where that was taken: `scale` and the vectors
        are in front of it, `term` is behind.
    """

    q: Hidden
    k: Hidden
    heads: int
    scale: float
    view: View
    term: ScoreTerm = ScoreTerm()
    key_positions: Weight | None = None
    query_positions: Weight | None = None
    cap: float | None = None

    WHAT: ClassVar[str] = "attention scores before the softmax"

    def times(self, number: float, op: str) -> Scores:
        """Return the scores and what was added to them so far, multiplied."""
        if self.cap is not None:
            term = self.term.scaled(number)
            return self.after(op, cap=self.cap * number, term=term)
        vectors = {
            label: replace(weight, array=weight.array * number)
            for label in ("key_positions", "query_positions")
            if (weight := getattr(self, label)) is not None
        }
        scale, term = self.scale * number, self.term.scaled(number)
        return self.after(op, scale=scale, term=term, **vectors)

    def over(self, number: float, op: str) -> Scores:
        # The quotient itself: one over the number is rounded.
        quotient = self.times(1 / number, op)
        if self.cap is not None:
            return replace(quotient, cap=self.cap / number)
        return replace(quotient, scale=self.scale / number)

    def normalised(self, op: str) -> Probabilities:
        """Return their softmax over the keys."""
        return Probabilities(self, self.view, ops=(*self.ops, op), layer=self.layer)

    def elementwise(self, c: Builder, op: str) -> Value:
        return self.capped(op) if op == "relax.tanh" else super().elementwise(c, op)

    def capped(self, op: str) -> Scores:
        """Return their hyperbolic tangent.

        Raises
        ------
        Mismatch
            If they were capped or masked already, or have a bias.
        """
        if self.cap is not None or self.term.masks or self.term.bias is not None:
            raise Mismatch(
                "scores are capped (softcap) behind their mask, bias or another cap, and only "
                "scaled scores may be: masked keys would count again"
            )
        if self.key_positions is not None or self.query_positions is not None:
            raise Mismatch(
                "scores that are capped (softcap) hold products with vectors by distance"
            )
        return self.after(op, cap=1.0)


@dataclass(frozen=True, eq=False)
class Probabilities(LaidOut):
    """Softmax of scores over the keys.

    Parameters
    ----------
    scores
        What it was taken of.
    view
        Its layout.
    """

    scores: Scores
    view: View

    WHAT: ClassVar[str] = "attention probabilities"


@dataclass(frozen=True, eq=False)
class KeptTest(Value):
    """A condition on which scores are masked, on the way to "has this row any key?".

    Parameters
    ----------
    scores
        The scores that were tested.
    samples
        The condition for the example rows `KEPT_ROWS`.
    """

    scores: Scores
    samples: Array


KEPT_ROWS: Flags = np.array([[1, 1, 1], [0, 1, 1], [1, 0, 0], [0, 0, 0]], np.bool_)
"""Example rows of scores: which of three keys are kept. Only the last has none."""
