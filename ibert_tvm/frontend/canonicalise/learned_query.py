"""Attention of one query that is a weight: what it sees of a sequence is a pooling of it.

The scores of such a query are a linear function of the tokens, so the projection of the keys folds
into one row of weights per head; adding a number to all scores of a head changes nothing, so its
bias goes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from tvm import relax

from . import views
from .builder import Builder, layer_of
from .computed import Linear
from .heads import heads_of
from .mismatch import Mismatch
from .values import Emitted, Hidden, LaidOut, Value, Weight
from .views import Atom, View


@dataclass(frozen=True, eq=False)
class QueryScores(LaidOut):
    """Scores of one query that is a weight, or their softmax.

    Parameters
    ----------
    k
        The keys.
    name
        Of the weight.
    queries
        float64 [heads, channels of a head], scaled as the scores are.
    view
        Their layout; there is one query.
    probabilities
        Whether their softmax was taken.
    """

    k: Hidden
    name: str
    queries: NDArray[np.float64]
    view: View
    probabilities: bool = False

    def normalised(self, op: str) -> QueryScores:
        """Return their softmax over the keys."""
        return self.after(op, probabilities=True)


def query_scores(c: Builder, _call: relax.Call, op: str, query: Weight, keys: Value) -> QueryScores:
    """Return the scores that a weight [..., 1, channels of a head] gives to keys.

    Parameters
    ----------
    c
        The function under construction.
    op
        The operator.
    query
        Broadcasts to the layout of batch and heads of the keys.
    keys
        [batch and heads, channels of a head, tokens].

    Raises
    ------
    Mismatch
        If the weight is not one query for all sequences, or the keys are no such layout.
    """
    k = keys.hidden(c)
    rows, width = query.array.shape[-2:] if query.array.ndim > 1 else (0, 0)
    if len(k.view) < 3 or rows != 1 or not views.is_tokens(k.view[-1]):
        raise Mismatch(
            "a weight multiplies a hidden tensor from the left, and is not the one learned query "
            "of a pooling"
        )
    heads, repeated = heads_of(c, k, k.view[:-2], k.view[-2], "keys")
    outer = views.flatten(k.view[:-2])
    extents = views.shape_of(k.view[:-2])
    if repeated > 1 or views.shape_of(k.view[-2:-1]) != (width,):
        raise Mismatch("a learned query has other heads than the keys")
    try:
        wide = np.broadcast_to(query.array, (*extents, 1, width))
    except ValueError as error:
        raise Mismatch(
            f"a learned query of shape {query.array.shape} does not fit {views.describe(k.view)}"
        ) from error
    by_atom = wide.reshape(*(atom.extent for atom in outer), width)
    for axis, atom in enumerate(outer):
        if atom.kind == "batch":
            if np.any(by_atom != by_atom.take([0], axis=axis)):
                raise Mismatch("a learned query differs between the sequences of a batch")
            by_atom = by_atom.take([0], axis=axis)
    queries = by_atom.reshape(heads, width) * np.float64(k.factor)
    (tokens,) = views.shape_of(k.view[-1:])
    view = (*k.view[:-2], (), (Atom("key", tokens),))
    k = replace(k, factor=1.0)
    return QueryScores(k, query.name, queries, view, ops=(*k.ops, op), layer=k.layer)


def pooled_by_query(
    c: Builder, _call: relax.Call, op: str, weights: QueryScores, values: Value
) -> Hidden:
    """Return what a learned query sees: the product of its probabilities and the values.

    Raises
    ------
    Mismatch
        If keys and values are not the projections of the same tokens.
    """
    v, source = values.hidden(c), weights.k.source
    if not weights.probabilities or weights.view[:-2] != v.view[:-2] or weights.view[-2] != ():
        raise Mismatch(f"scores of a learned query multiply {views.describe(v.view)}")
    if not isinstance(source, Linear) or not views.is_tokens(v.view[-2]):
        raise Mismatch("the keys of a learned query are made by no linear layer")
    heads, repeated = heads_of(c, v, v.view[:-2], v.view[-1], "values")
    if repeated > 1 or heads != len(weights.queries):
        raise Mismatch("keys and values of a learned query have different numbers of heads")
    by_head = source.weight.array.reshape(heads, -1, source.weight.array.shape[1])
    rows = np.einsum("hd,hdi->hi", weights.queries, by_head.astype(np.float64))
    layer = layer_of(weights.name)
    scores = Linear(
        f"{layer}.scores",
        heads,
        weights.ops,
        source.x,
        Weight(f"{layer}.scores.weight", rows.astype(np.float32)),
        Weight(f"{layer}.scores.bias", np.zeros(heads, np.float32)),
    )
    given, pooled = scores.emit(c), v.emit(c)
    operands = given, pooled, c.attention_mask(None)
    all_ops, name = (*v.ops, op), f"{layer}.pooled"
    emitted = Emitted.call(c, "attention_pool", name, pooled.channels, all_ops, *operands)
    return Hidden(emitted, (*v.view[:-2], (), v.view[-1]), layer=emitted.name)
