"""Rules of matrix products and of what happens to attention scores: linear layers, attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from tvm import relax

from ibert_tvm.relay_passes.canonical import UNBOUNDED

from ...common.types import Doubles
from . import views
from .builder import Builder, layer_of
from .computed import Joined, Linear
from .dispatch import Rule, by_kind
from .distance_vectors import by_distance, head_products
from .mismatch import Mismatch
from .operands import optional_axes, static_shape
from .rules_layout import joined_product
from .rules_pooling import UNMASKED, ToPool, filled_by_choice, largest
from .score_terms import ADDED, KEPT, MASKED, SUBTRACTED, ScoreLayout, as_score_term
from .scores import KEPT_ROWS, KeptTest, Probabilities, Scores, ScoreTerm
from .values import Emitted, FromInputs, Given, Hidden, LaidOut, Tokens, Value, Weight
from .views import Atom, Axis, View

# Heads of queries, keys and values: which axes of a hidden tensor enumerate them.


def heads_of(
    c: Builder, hidden: Hidden, batch: Sequence[Axis], channels: Axis, what: str
) -> tuple[int, int]:
    """Return the number of heads, and how often each is repeated.

    Parameters
    ----------
    c
        The function under construction.
    hidden
        Queries, keys or values.
    batch
        Axes of it that enumerate batch, head and repetition, in this order.
    channels
        That of the channels of a head.
    what
        What it is, for messages.

    Returns
    -------
    count, repeated : int
        Heads, and how often each is.

    Raises
    ------
    Mismatch
        If the axes enumerate anything else.
    """
    outer = views.flatten(batch)
    heads = outer[len(c.rows) :]
    own = tuple(atom for atom in heads if atom.kind == "channel")
    repeats = tuple(atom for atom in heads if atom.kind == "repeat")
    if outer[: len(c.rows)] != c.rows or len(own) + len(repeats) < len(heads):
        raise Mismatch(
            f"{what} are laid out as {views.describe(hidden.view)}, not batch, heads, "
            "sequence and channels of one head"
        )
    if heads != (*own, *repeats):
        raise Mismatch(
            f"{what} are repeated as {views.describe(hidden.view)}; heads that share keys have to "
            "be neighbours"
        )
    if views.merged((*own, *channels)) != views.channel_axis(hidden.source.channels):
        raise Mismatch(f"the heads of {what} are not contiguous channels of {hidden.source.name}")
    (count, repeated) = (views.shape_of((atoms,))[0] for atoms in (own, repeats))
    return count, repeated


# Attention of one query that is a weight: what it sees of a sequence is a pooling of it.
#
# The scores of such a query are a linear function of the tokens, so the projection of the keys
# folds into one row of weights per head; adding a number to all scores of a head changes nothing,
# so its bias goes.


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
    queries: Doubles
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


# -- matrix products ------------------------------------------------------------------------


def _by_weight(c: Builder, _call: relax.Call, op: str, value: Value, weight: Weight) -> Value:
    x = value.hidden(c)
    if weight.array.ndim > 2 and _is_by_head(x):
        heads = heads_of(c, x, x.view[:-2], x.view[-1], "queries or keys")
        return head_products(x, weight, heads, op)
    return linear(c, x, weight, op)


def _is_by_head(x: Hidden) -> bool:
    """Whether the channels of the last axis are those of a head."""
    return any(atom.kind == "channel" for atom in views.flatten(x.view[:-1]))


def linear(c: Builder, x: Hidden, weight: Weight, op: str) -> Hidden:
    """Return the product of a hidden tensor and a matrix of weights.

    Parameters
    ----------
    c
        The function under construction.
    x
        Channels last.
    weight
        [channels, outputs].
    op
        The operator.

    Returns
    -------
    Hidden
        It waits for a bias.

    Raises
    ------
    Mismatch
        If the two do not fit.
    """
    # Importers broadcast a matrix over the batch; such axes have stride 0.
    while weight.array.ndim > 2 and weight.array.strides[0] == 0:
        weight = replace(weight, array=weight.array[0])
    if weight.array.ndim != 2:
        raise Mismatch(f"the weight {weight.name} has {weight.array.ndim} dimensions, not 2")
    if isinstance(x.source, Joined):
        total = joined_product(x.source, weight, lambda part, rows: linear(c, part, rows, op))
        view = (*x.view[:-1], views.channel_axis(total.channels))
        return Hidden(total, view, missing=x.missing, layer=total.name)
    places = x.channel_places()
    operand = x.emit(c)
    if operand.channels != weight.array.shape[0]:
        raise Mismatch(
            f"the weight {weight.name} has {weight.array.shape[0]} rows for "
            f"{operand.channels} channels"
        )
    outputs = weight.array.shape[1]
    name = layer_of(weight.name)
    matrix = weight.array.T
    if places is not None:  # pixels of a patch in another order
        matrix = matrix[:, places]
    transposed = Weight(weight.name, matrix, layer=weight.layer)
    source = Linear(name, outputs, (*x.ops, op), operand, transposed, None)
    return Hidden(
        source, (*x.view[:-1], views.channel_axis(outputs)), missing=x.missing, layer=name
    )


def _by_head(batch: Sequence[Axis]) -> list[tuple[str, int]]:
    """What each axis enumerates, heads and their repetitions alike, and how many of it."""
    return [
        ("batch" if any(atom.kind == "batch" for atom in axis) else "head", extent)
        for axis, extent in zip(batch, views.shape_of(tuple(batch)), strict=True)
    ]


def _beside(c: Builder, keys: Hidden, queries: Sequence[Axis]) -> Hidden:
    """Keys or values as a product with heads of queries in these axes repeats them."""
    if len(keys.view) != len(queries) + 2:
        return keys
    shape = (*views.shape_of(tuple(queries)), *views.shape_of(keys.view[-2:]))
    return replace(keys, view=views.broadcast(keys.view, shape, keys.missing))


def _score_view(q: Hidden) -> View:
    """Layout of the scores of queries, whose channels in other axes than the last are heads."""
    (width,) = views.shape_of(q.view[-1:])

    def heads(axis: Axis) -> Axis:
        return tuple(
            Atom("head", a.extent, a.stride // width) if a.kind == "channel" else a for a in axis
        )

    return (*map(heads, q.view[:-2]), *_square(q.view[-2]))


def _scores(c: Builder, _call: relax.Call, op: str, queries: Value, keys: Value) -> Scores:
    q, k = queries.hidden(c), keys.hidden(c)
    if len(q.view) != len(k.view) or len(q.view) < 3:
        raise Mismatch("two hidden tensors are multiplied, and not as batches of matrices")
    if not views.is_tokens(q.view[-2]) or q.view[-2] != k.view[-1]:
        raise Mismatch(
            f"two hidden tensors are multiplied as {views.describe(q.view)} and "
            f"{views.describe(k.view)}, which is not queries by keys of one sequence"
        )
    own, other = q.view[-1], k.view[-2]
    if views.merged(own) == views.merged(other):  # a sum over channels may go in any order
        own = other = tuple(sorted(own, key=lambda atom: -atom.stride))
    heads, repeated = heads_of(c, q, q.view[:-2], own, "queries")
    if repeated > 1:
        raise Mismatch("heads of queries are repeated")
    k = _beside(c, k, q.view[:-2])
    shared, sharing = heads_of(c, k, k.view[:-2], other, "keys")
    if shared * sharing != heads:
        raise Mismatch("queries and keys have different numbers of heads")
    if _by_head(q.view[:-2]) != _by_head(k.view[:-2]):
        raise Mismatch("batch and heads of queries and keys are in different axes")
    # The factors belong to the scale, and the sources are the unscaled values.
    return Scores(
        replace(q, factor=1.0),
        replace(k, factor=1.0),
        heads,
        q.factor * k.factor,
        _score_view(q),
        ops=(*q.ops, *k.ops, op),
        layer=q.layer,
    )


def _square(tokens: Axis) -> tuple[Axis, Axis]:
    """Axes of queries and keys of a sequence."""
    extent = views.merged(tokens)[0].extent
    return (Atom("query", extent),), (Atom("key", extent),)


def _context(
    c: Builder, _call: relax.Call, op: str, weights: Probabilities, given: Value
) -> Hidden:
    scores, v = weights.scores, given.hidden(c)
    if len(weights.view) != len(v.view) or not views.is_tokens(v.view[-2]):
        raise Mismatch(f"probabilities multiply {views.describe(v.view)}, which is not the values")
    v = _beside(c, v, scores.q.view[:-2])
    shared, sharing = heads_of(c, v, v.view[:-2], v.view[-1], "values")
    if shared * sharing != scores.heads:
        raise Mismatch("values and scores have different numbers of heads")
    expected = _score_view(scores.q)
    same = [views.merged(axis) for axis in weights.view] == [views.merged(a) for a in expected]
    if not same or _by_head(v.view[:-2]) != _by_head(scores.q.view[:-2]):
        raise Mismatch(
            f"probabilities are laid out as {views.describe(weights.view)}, not as "
            f"{views.describe(expected)}"
        )
    q, k, values = scores.q.emit(c), scores.k.emit(c), v.emit(c)
    by_head = q.channels // scores.heads
    if {k.channels, values.channels} != {shared * by_head} or q.var.ty.ndim != 3:
        raise Mismatch(
            f"{q.name} has {q.channels} channels, {k.name} {k.channels} and {values.name} "
            f"{values.channels}, for {scores.heads} heads of queries and {shared} of values; heads "
            "of one width are supported, and keys and values with equally many"
        )
    term = scores.term
    mask, bias = c.attention_mask(term.mask), term.seen_bias
    # c tanh(s / c) does not depend on the sign of c.
    cap = abs(scores.cap or 0.0)
    factor = 1.0 if scores.cap is None else scores.cap
    scale = _usual_scale(scores.scale * factor, by_head)
    vectors = [by_distance(item, scale) for item in (scores.key_positions, scores.query_positions)]
    if cap and any(item is not None for item in vectors):
        raise Mismatch("products with vectors by distance are added to capped scores (softcap)")
    name, ops = _common_layer(q.name, k.name, values.name), (*weights.ops, *v.ops, op)
    window = {"before": term.before, "after": term.after}
    attributes = {"num_heads": scores.heads, "scale": scale, "cap": cap, **window}
    operands = (q, k, values, mask, bias, *vectors)
    emitted = Emitted.call(c, "attention", name, q.channels, ops, *operands, **attributes)
    c.num_layers += 1
    windowed = min(term.before, term.after) < UNBOUNDED
    c.by_distance |= windowed or any(item is not None for item in (bias, *vectors))
    # Heads as queries have them, channels of a head as values: those of queries may be turned.
    return Hidden(emitted, (*scores.q.view[:-1], v.view[-1]), layer=emitted.name)


def _usual_scale(scale: float, width: int) -> float:
    """Return 1/sqrt(width) for a scale that is the same but for rounding.

    Exporters scale queries and keys by a square root each, in float32: the same model would get
    other integers by another exporter.
    """
    usual = float(np.float32(width**-0.5))
    return usual if abs(scale - usual) <= 1e-6 * usual else scale


def _common_layer(*names: str) -> str:
    """Longest common module path of several names."""
    parts = [name.partition("[")[0].split(".") for name in names]
    common = []
    for items in zip(*parts, strict=False):
        if len(set(items)) > 1:
            break
        common.append(items[0])
    if len(common) == min(map(len, parts)):
        common.append("attention")  # all three come from one layer
    return ".".join(common) or "attention"


# -- scores ---------------------------------------------------------------------------------


def _apply(c: Builder, scores: Scores, value: Given, how: str, op: str) -> Scores:
    """Add a term to the scores, or select them by a condition."""
    atoms = (*(() if c.rows else (c.batch,)), *views.flatten(scores.view))
    layout = ScoreLayout(
        views.shape_of(scores.view),
        tuple(atom.extent for atom in atoms),
        tuple(atom.kind for atom in atoms),
    )
    if c.revisit is not None and c.revisit.tables_only:
        term = ScoreTerm(c.revisit.mask)
    else:  # all layers share a mask, which is decided once
        fixed = bool(c.images)
        term = c.once(
            (value, layout, how), lambda: as_score_term(value, c.probes, layout, how, fixed)
        )
    return scores.after(op, term=scores.term.joined(term))


def _chosen(apply: Callable[..., Value], *, yes: bool) -> Rule:
    """Return the rule of a choice that keeps one side, in whose place the other is put."""

    def rule(c: Builder, _call: relax.Call, op: str, condition: Value, *sides: Value) -> Value:
        kept, other = sides if yes else sides[::-1]
        return apply(c, op, condition, kept, other, yes)

    return rule


def _select(
    c: Builder, op: str, condition: Given, scores: Scores, other: Value, holds: bool
) -> Value:
    """Keep scores where a condition holds, or where it does not."""
    low = other.number()
    if low is None or low > -1e3:
        raise Mismatch(f"masked scores become {low}, which is not low enough to weigh nothing")
    return _apply(c, scores, condition, KEPT if holds else MASKED, op)


def _fill(
    c: Builder, op: str, condition: FromInputs, kept: Tokens, other: Value, holds: bool
) -> Value:
    if not holds and c.absent_id is not None and condition.number() == 0.0:
        return kept  # it holds where a token has the id that none has
    return filled_by_choice(c, condition, kept, other, op, inverted=not holds)


def _empty_rows(
    _c: Builder, op: str, test: KeptTest, kept: Probabilities, other: Value, holds: bool
) -> Value:
    """Torch's attention gives 0 to rows without keys, which is the canonical meaning anyway."""
    empty = ~KEPT_ROWS.any(axis=1)
    replaced = np.broadcast_to((test.samples != 0) != holds, KEPT_ROWS.shape)
    same = np.array_equal(replaced[:, 0], empty)
    if kept.scores is not test.scores or other.number() != 0.0 or not same:
        raise Mismatch(
            "probabilities are replaced elsewhere than in rows without keys, or not by 0"
        )
    return replace(kept, ops=(*kept.ops, *test.ops, op))


_where = by_kind(
    ((KeptTest, FromInputs, Probabilities), _chosen(_empty_rows, yes=False)),
    ((KeptTest, Probabilities, FromInputs), _chosen(_empty_rows, yes=True)),
    (
        (KeptTest, Value, Value),
        "a condition on masked scores selects something other than probabilities",
    ),
    ((Given, Scores, FromInputs), _chosen(_select, yes=True)),
    ((Given, FromInputs, Scores), _chosen(_select, yes=False)),
    ((FromInputs, Tokens, Tokens), _chosen(_fill, yes=False)),
    ((FromInputs, Tokens, Value), _chosen(_fill, yes=True)),
    ((FromInputs, Value, Tokens), _chosen(_fill, yes=False)),
    ((Given, Value, Value), "only attention scores and tokens are selected by a condition"),
    otherwise="its condition depends on hidden tensors",
)


_NOT_COMPARED = "hidden tensors are compared, and only scores with minus infinity may be"


def _equal(_c: Builder, _call: relax.Call, op: str, scores: Scores, other: Value) -> Value:
    if other.number() != -np.inf:
        raise Mismatch(_NOT_COMPARED)
    return KeptTest(scores, ~KEPT_ROWS, ops=(op,), layer=scores.layer)


def _is_nan(_c: Builder, _call: relax.Call, op: str, value: Probabilities) -> Value:
    # A softmax gives no numbers where all scores are minus infinity.
    samples = np.broadcast_to(~KEPT_ROWS.any(axis=1, keepdims=True), KEPT_ROWS.shape)
    return KeptTest(value.scores, samples, ops=(op,), layer=value.layer)


# Steps from "is this score masked?" to "has this row any key?".


def _not_kept(_c: Builder, _call: relax.Call, op: str, test: KeptTest) -> Value:
    return test.after(op, samples=~(test.samples != 0))


def _any_kept(_c: Builder, call: relax.Call, op: str, test: KeptTest) -> Value:
    if optional_axes(call.attrs.axis) not in ([-1], [len(test.scores.view) - 1]):
        raise Mismatch("a test of masked scores is reduced over something other than the keys")
    reduce = np.max if op == "relax.max" else np.min
    return test.after(op, samples=reduce(test.samples, axis=-1, keepdims=True))


def _largest(c: Builder, call: relax.Call, op: str, value: ToPool) -> Value:
    axes, keep = optional_axes(call.attrs.axis), bool(call.attrs.keepdims)
    return largest(c, value, axes, op, keep=keep)


def _full_like(_c: Builder, call: relax.Call, _op: str, _like: Value, value: Value) -> Value:
    number = value.number()
    if number is None:
        raise Mismatch("a tensor is filled with something other than a number")
    return FromInputs.of(np.broadcast_to(np.float32(number), static_shape(call)))


def _softmax(_c: Builder, call: relax.Call, op: str, scores: Scores | QueryScores) -> Value:
    axis = int(call.attrs.axis)
    if [atom.kind for atom in scores.view[axis]] != ["key"]:
        raise Mismatch(
            f"the softmax is over axis {axis} of {views.describe(scores.view)}, not over the keys"
        )
    return scores.normalised(op)


def scores_plus(c: Builder, op: str, scores: Scores, other: Given) -> Scores:
    """Interpret what is added to scores."""
    return _apply(c, scores, other, ADDED, op)


def scores_minus(c: Builder, op: str, scores: Scores, other: Given) -> Scores:
    """Interpret what is subtracted from scores."""
    return _apply(c, scores, other, SUBTRACTED, op)


_matmul = by_kind(
    ((Probabilities, Value), _context),
    ((QueryScores, Value), pooled_by_query),
    ((Value, Weight), _by_weight),
    ((Weight, Value), query_scores),
    ((Value, Value), _scores),
    otherwise="it is no product of two tensors",
)
_NO_TEST = "it is applied to something other than a test of masked scores"

ATTENTION_RULES: dict[str, Rule] = {
    "relax.equal": by_kind(((Scores, Value), _equal), otherwise=_NOT_COMPARED, commutes=True),
    "relax.full_like": _full_like,
    "relax.isnan": by_kind(
        ((Probabilities,), _is_nan),
        otherwise="hidden tensors are tested, and only attention probabilities may be",
    ),
    "relax.logical_not": by_kind(((KeptTest,), _not_kept), otherwise=_NO_TEST),
    "relax.matmul": _matmul,
    "relax.max": by_kind(
        ((ToPool,), _largest), ((Tokens,), UNMASKED), ((KeptTest,), _any_kept), otherwise=_NO_TEST
    ),
    "relax.min": by_kind(((KeptTest,), _any_kept), otherwise=_NO_TEST),
    "relax.nn.softmax": by_kind(
        (((Scores, QueryScores),), _softmax),
        otherwise="a softmax is taken of something other than attention scores",
    ),
    "relax.where": _where,
}
"""Rules by operator."""
