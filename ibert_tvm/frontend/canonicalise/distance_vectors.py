"""Scores of queries or keys with learned vectors for distances (disentangled attention).

DeBERTa multiplies queries with vectors for buckets of distances, picks for each key the product of
its bucket, and adds that to the scores; keys and queries change places for a second such term. What
is looked at is the arithmetic: a product by head with a constant matrix, entries of it picked by
constant places that depend on the distance alone, and a sum with the scores of the same queries
and keys.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from . import views
from .builder import Builder
from .mismatch import Mismatch
from .scores import Scores
from .values import Change, FromInputs, Hidden, LaidOut, Scalable, Value, Weight
from .views import Atom, Axis, View


@dataclass(frozen=True, eq=False)
class HeadProducts(LaidOut):
    """Products of the heads of tokens with a constant matrix for each head.

    Parameters
    ----------
    x
        The tokens, by head.
    weight
        [heads, channels of a head, n].
    factor
        Of the products.
    view
        That of x with `n` columns in the place of the channels.
    """

    x: Hidden
    weight: Weight
    factor: float
    view: View


@dataclass(frozen=True, eq=False)
class PairTerm:
    """Products of the heads of tokens with vectors for their distance to others.

    Parameters
    ----------
    x
        The tokens, by head.
    vectors
        [2 L - 1, channels], row d + L - 1 for d = other token - token, L of the probe shape.
    factor
        Of the products.
    view
        Layout, with atoms ``sequence`` of the tokens and ``other``.
    """

    x: Hidden
    vectors: Weight
    factor: float
    view: View


@dataclass(frozen=True, eq=False)
class PairTerms(Scalable):
    """A sum of terms of pairs of tokens, on the way to scores.

    Parameters
    ----------
    terms
        They are added up.
    view
        That of the first.
    """

    terms: tuple[PairTerm, ...]
    view: View

    def moved(self, c: Builder, op: str, change: Change) -> Value:
        terms = (replace(term, view=change(term.view, ())) for term in self.terms)
        return self.after(op, terms=tuple(terms), view=change(self.view, ()))

    def times(self, number: float, op: str) -> PairTerms:
        terms = (replace(term, factor=term.factor * number) for term in self.terms)
        return self.after(op, terms=tuple(terms))


def head_products(x: Hidden, weight: Weight, heads: tuple[int, int], op: str) -> HeadProducts:
    """Interpret a product of the heads of tokens with a matrix for each head.

    Parameters
    ----------
    x
        Batch and heads, tokens, channels of a head.
    weight
        [..., channels of a head, n].
    heads
        Their number, and how often each is repeated.
    op
        The operator.

    Raises
    ------
    Mismatch
        If heads are repeated, or rows of the batch have other matrices.
    """
    count, repeated = heads
    *outer, _tokens, width = views.shape_of(x.view)
    if repeated > 1 or not views.is_tokens(x.view[-2]):
        raise Mismatch(f"{views.describe(x.view)} is multiplied with a matrix for each head")
    columns = weight.array.shape[-1]
    try:
        whole = np.broadcast_to(weight.array, (*outer, width, columns))
    except ValueError as error:
        raise Mismatch(
            f"the weight {weight.name} of shape {weight.array.shape} does not fit "
            f"{views.describe(x.view)}"
        ) from error
    by_row = whole.reshape(-1, count, width, columns)
    if np.any(by_row != by_row[:1]):
        raise Mismatch(f"rows of the batch are multiplied with different parts of {weight.name}")
    view = (*x.view[:-1], (Atom("column", columns),))
    return HeadProducts(
        replace(x, factor=1.0),
        replace(weight, array=by_row[0]),
        x.factor,
        view,
        ops=(*x.ops, op),
        layer=x.layer,
    )


def picked(products: HeadProducts, places: FromInputs, axis: int, op: str) -> PairTerms:
    """Interpret the choice of an entry for each pair of tokens by their distance.

    Parameters
    ----------
    products
        What entries are picked of.
    places
        Which one for each token (or one for all) and each other token.
    axis
        Along which axis.
    op
        The operator.

    Raises
    ------
    Mismatch
        If the places depend on anything but the distance.
    """
    *outer, tokens, columns = views.shape_of(products.view)
    fixed = places.fixed()
    if fixed is None or axis != len(outer) + 1:
        raise Mismatch("products of heads are picked by places that depend on the inputs")
    if fixed.shape != (*outer, tokens, tokens):
        raise Mismatch(f"products of heads are picked for {fixed.shape}, not for pairs of tokens")
    by_head = fixed.reshape(-1, tokens, tokens)
    distance = np.arange(tokens)[None, :] - np.arange(tokens)[:, None]
    by_distance = np.concatenate([by_head[0, ::-1, 0], by_head[0, 0, 1:]])
    if np.any(by_head != by_distance[distance + tokens - 1]):
        raise Mismatch("products of heads are picked by more than the distance of two tokens")
    if by_distance.min() < 0 or by_distance.max() >= columns:
        raise Mismatch(f"products of heads are picked outside of {columns} columns")
    vectors = products.weight.array[:, :, by_distance.astype(np.int64)]
    array = vectors.transpose(2, 0, 1).reshape(2 * tokens - 1, -1)
    view = (*products.view[:-1], (Atom("other", tokens),))
    term = PairTerm(products.x, replace(products.weight, array=array), products.factor, view)
    return PairTerms((term,), view, ops=(*products.ops, op), layer=products.layer)


def joined_terms(_c: Builder, op: str, left: PairTerms, right: PairTerms) -> PairTerms:
    """Interpret a sum of terms."""
    return replace(left, terms=(*left.terms, *right.terms), ops=(*left.ops, *right.ops, op))


def terms_plus(_c: Builder, op: str, terms: PairTerms, other: FromInputs) -> Value | None:
    """Interpret terms to which nothing is added; None if it is something."""
    return terms.after(op) if other.number() == 0.0 else None


def scores_plus_terms(_c: Builder, op: str, scores: Scores, terms: PairTerms) -> Scores:
    """Interpret the sum of scores and terms of the same queries and keys."""
    for term in terms.terms:
        of_queries = _in_place(term, ("query", "key")) == _merged(scores.view)
        if not of_queries and _in_place(term, ("key", "query")) != _merged(scores.view):
            raise Mismatch(
                f"a term by distance is laid out as {views.describe(term.view)}, the scores as "
                f"{views.describe(scores.view)}"
            )
        operand = scores.q if of_queries else scores.k
        if term.x.source is not operand.source:
            what = "queries" if of_queries else "keys"
            raise Mismatch(
                f"vectors for distances are multiplied with something other than the {what} of the "
                "scores"
            )
        array = term.vectors.array * np.float64(term.factor)
        # Keys count distances to queries: from the last to the first.
        array = array if of_queries else array[::-1]
        known = scores.key_positions if of_queries else scores.query_positions
        total = replace(term.vectors, array=array if known is None else known.array + array)
        if of_queries:
            scores = replace(scores, key_positions=total)
        else:
            scores = replace(scores, query_positions=total)
    return replace(scores, ops=(*scores.ops, *terms.ops, op))


def _in_place(term: PairTerm, kinds: tuple[str, str]) -> list[Axis]:
    """The view of a term as that of scores, if its tokens and the others are such."""
    (width,) = views.shape_of(term.x.view[-1:])
    names = {"sequence": kinds[0], "other": kinds[1]}

    def atom(a: Atom) -> Atom:
        if a.kind == "channel":
            return Atom("head", a.extent, a.stride // width)
        return Atom(names.get(a.kind, a.kind), a.extent, a.stride)

    return _merged(tuple(tuple(map(atom, axis)) for axis in term.view))


def _merged(view: View) -> list[Axis]:
    return [views.merged(axis) for axis in view]


def by_distance(vectors: Weight | None, scale: float) -> Weight | None:
    """Return vectors for distances, added to scaled scores, for an attention with this scale."""
    if vectors is None:
        return None
    return Weight(f"{vectors.name}.by_distance", vectors.array / scale)
