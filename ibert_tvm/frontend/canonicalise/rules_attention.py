"""Rules of matrix products and of what happens to attention scores: linear layers, attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import relax

from ibert_tvm.relay_passes.canonical import UNBOUNDED, build

from . import views
from .distance_vectors import head_products, vectors_by_distance
from .emitter import Emitter, layer_of
from .engine import Rule
from .heads import heads_of
from .inputs import scalar
from .learned_query import pooled_by_query, query_scores
from .operands import optional_axes, static_shape
from .rules_pooling import filled_by_choice, largest, max_axes
from .rules_tokens import joined_product
from .score_terms import (
    ADDED,
    KEPT,
    MASKED,
    SUBTRACTED,
    ScoreLayout,
)
from .values import (
    KEPT_ROWS,
    FilledHidden,
    FromInputs,
    Hidden,
    Joined,
    KeptTest,
    Linear,
    Mismatch,
    Pointwise,
    Probabilities,
    QueryScores,
    Scores,
    Value,
    Weight,
    WeightedTokens,
)
from .views import Atom, Axis, View

_TOKENS = (Hidden, Pointwise)

# -- matrix products ------------------------------------------------------------------------


def _matmul(c: Emitter, call: relax.Call, operands: list[Any]) -> Value:
    left, right = operands
    op = c.op(call)
    if isinstance(left, Probabilities):
        return _context(c, left, c.hidden(right), op)
    if isinstance(left, QueryScores):
        return pooled_by_query(c, left, c.hidden(right), op)
    if isinstance(right, Weight):
        x = c.hidden(left)
        if right.array.ndim > 2 and _is_by_head(x):
            heads = heads_of(c, x, x.view[:-2], x.view[-1], "queries or keys")
            return head_products(c, x, right, heads, op)
        return linear(c, x, right, op)
    if isinstance(left, Weight):
        return query_scores(c, left, c.hidden(right), op)
    return _scores(c, c.hidden(left), c.hidden(right), op)


def _is_by_head(x: Hidden) -> bool:
    """Whether the channels of the last axis are those of a head."""
    return any(atom.kind == "channel" for atom in views.flatten(x.view[:-1]))


def linear(c: Emitter, x: Hidden, weight: Weight, op: str) -> Hidden:
    """Return the product of a hidden tensor and a matrix of weights.

    Parameters
    ----------
    c : Emitter
        The function under construction.
    x : Hidden
        Channels last.
    weight : Weight
        [channels, outputs].
    op : str
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
    places = c.channel_places(x)
    operand = c.emit(x)
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


def _beside(c: Emitter, keys: Hidden, queries: Sequence[Axis]) -> Hidden:
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


def _scores(c: Emitter, q: Hidden, k: Hidden, op: str) -> Scores:
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


def _context(c: Emitter, weights: Probabilities, v: Hidden, op: str) -> Hidden:
    scores = weights.scores
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
    q, k, values = c.emit(scores.q), c.emit(scores.k), c.emit(v)
    by_head = q.channels // scores.heads
    if {k.channels, values.channels} != {shared * by_head} or q.var.ty.ndim != 3:
        raise Mismatch(
            f"{q.name} has {q.channels} channels, {k.name} {k.channels} and {values.name} "
            f"{values.channels}, for {scores.heads} heads of queries and {shared} of values; heads "
            "of one width are supported, and keys and values with equally many"
        )
    term = scores.term
    mask = c.attention_mask(term.mask)
    table = term.seen_bias
    bias = None if table is None else c.weight(table.name, table.array)
    name = c.unique(_common_layer(q.name, k.name, values.name))
    # c tanh(s / c) does not depend on the sign of c.
    cap = abs(scores.cap or 0.0)
    factor = 1.0 if scores.cap is None else scores.cap
    scale = _usual_scale(scores.scale * factor, by_head)
    vectors = vectors_by_distance(c, (scores.key_positions, scores.query_positions), scale)
    ops, operands = (*weights.ops, *v.ops, op), (q.var, k.var, values.var, mask, bias, *vectors)
    window = {"before": term.before, "after": term.after}
    if cap and any(item is not None for item in vectors):
        raise Mismatch("products with vectors by distance are added to capped scores (softcap)")
    attributes = {"num_heads": scores.heads, "scale": scale, "cap": cap, **window}
    emitted = c.record(build.attention, name, q.channels, ops, *operands, **attributes)
    c.num_layers += 1
    windowed = min(term.before, term.after) < UNBOUNDED
    c.by_distance |= windowed or any(item is not None for item in (bias, *vectors))
    # Heads as queries have them, channels of a head as values: those of queries may be turned.
    return Hidden(emitted, (*scores.q.view[:-1], v.view[-1]), layer=name)


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


def _apply(c: Emitter, scores: Scores, value: FromInputs | Weight, how: str, op: str) -> Scores:
    """Add a term to the scores, or select them by a condition."""
    atoms = (*(() if c.rows else (c.batch,)), *views.flatten(scores.view))
    layout = ScoreLayout(
        views.shape_of(scores.view),
        tuple(atom.extent for atom in atoms),
        tuple(atom.kind for atom in atoms),
    )
    term = c.score_terms(value, layout, how)
    return replace(scores, term=scores.term.joined(term), ops=(*scores.ops, op))


def _where(c: Emitter, call: relax.Call, operands: list[Any]) -> Value:
    condition, yes, no = operands
    op = c.op(call)
    if isinstance(condition, KeptTest):
        return _empty_rows(condition, yes, no, op)
    if not isinstance(condition, (FromInputs, Weight)):
        raise Mismatch("its condition depends on hidden tensors")
    known = c.absent_id is not None and isinstance(no, _TOKENS)
    if known and isinstance(condition, FromInputs) and scalar(condition) == 0.0:
        return no  # it holds where a token has the id that none has
    if isinstance(yes, Scores) and isinstance(no, FromInputs):
        kept, other, how = yes, no, KEPT
    elif isinstance(no, Scores) and isinstance(yes, FromInputs):
        kept, other, how = no, yes, MASKED
    elif isinstance(condition, FromInputs) and isinstance(yes, _TOKENS):
        return filled_by_choice(c, condition, yes, no, op, inverted=False)
    elif isinstance(condition, FromInputs) and isinstance(no, _TOKENS):
        return filled_by_choice(c, condition, no, yes, op, inverted=True)
    else:
        raise Mismatch("only attention scores and tokens are selected by a condition")
    low = scalar(other)
    if low is None or low > -1e3:
        raise Mismatch(f"masked scores become {low}, which is not low enough to weigh nothing")
    return _apply(c, kept, condition, how, op)


def _empty_rows(condition: KeptTest, yes: Any, no: Any, op: str) -> Value:
    """Torch's attention gives 0 to rows without keys, which is the canonical meaning anyway."""
    empty = ~KEPT_ROWS.any(axis=1)
    if isinstance(no, Probabilities) and isinstance(yes, FromInputs):
        kept, other, chosen = no, yes, condition.samples != 0
    elif isinstance(yes, Probabilities) and isinstance(no, FromInputs):
        kept, other, chosen = yes, no, condition.samples == 0
    else:
        raise Mismatch("a condition on masked scores selects something other than probabilities")
    if (
        kept.scores is not condition.scores
        or scalar(other) != 0.0
        or not np.array_equal(np.broadcast_to(chosen, KEPT_ROWS.shape)[:, 0], empty)
    ):
        raise Mismatch(
            "probabilities are replaced elsewhere than in rows without keys, or not by 0"
        )
    return replace(kept, ops=(*kept.ops, *condition.ops, op))


def _equal(c: Emitter, call: relax.Call, operands: list[Any]) -> Value:
    for one, other in (operands, operands[::-1]):
        if isinstance(one, Scores) and isinstance(other, FromInputs):
            if scalar(other) != -np.inf:
                break
            return KeptTest(one, ~KEPT_ROWS, ops=(c.op(call),), layer=one.layer)
    raise Mismatch("hidden tensors are compared, and only scores with minus infinity may be")


def _is_nan(c: Emitter, call: relax.Call, operands: list[Any]) -> Value:
    value = operands[0]
    if not isinstance(value, Probabilities):
        raise Mismatch("hidden tensors are tested, and only attention probabilities may be")
    # A softmax gives no numbers where all scores are minus infinity.
    samples = np.broadcast_to(~KEPT_ROWS.any(axis=1, keepdims=True), KEPT_ROWS.shape)
    return KeptTest(value.scores, samples, ops=(c.op(call),), layer=value.layer)


def _kept_step(c: Emitter, call: relax.Call, operands: list[Any]) -> Value:
    """Steps from "is this score masked?" to "has this row any key?"."""
    value = operands[0]
    op = c.op(call)
    if call.op.name == "relax.max" and isinstance(value, (*_TOKENS, WeightedTokens, FilledHidden)):
        axes, keep = max_axes(call)
        return largest(c, value, axes, op, keep=keep)
    if not isinstance(value, KeptTest):
        raise Mismatch("it is applied to something other than a test of masked scores")
    samples = value.samples
    if op == "relax.logical_not":
        samples = ~(samples != 0)
    else:
        if optional_axes(call.attrs.axis) not in ([-1], [len(value.scores.view) - 1]):
            raise Mismatch("a test of masked scores is reduced over something other than the keys")
        reduce = np.max if op == "relax.max" else np.min
        samples = reduce(samples, axis=-1, keepdims=True)
    return replace(value, samples=samples, ops=(*value.ops, op))


def _full_like(_c: Emitter, call: relax.Call, operands: list[Any]) -> Value:
    number = scalar(operands[1]) if isinstance(operands[1], FromInputs) else None
    if number is None:
        raise Mismatch("a tensor is filled with something other than a number")
    array = np.broadcast_to(np.float32(number), static_shape(call))
    return FromInputs(lambda: [array], tuple(array.shape), array)


def _softmax(c: Emitter, call: relax.Call, operands: list[Any]) -> Value:
    scores = operands[0]
    if not isinstance(scores, (Scores, QueryScores)):
        raise Mismatch("a softmax is taken of something other than attention scores")
    axis = int(call.attrs.axis)
    if [atom.kind for atom in scores.view[axis]] != ["key"]:
        raise Mismatch(
            f"the softmax is over axis {axis} of {views.describe(scores.view)}, not over the keys"
        )
    if isinstance(scores, QueryScores):
        return replace(scores, normalised=True, ops=(*scores.ops, c.op(call)))
    return Probabilities(scores, scores.view, ops=(*scores.ops, c.op(call)), layer=scores.layer)


def scores_times(_c: Emitter, op: str, scores: Scores, other: FromInputs) -> Scores | None:
    """Interpret scores times a number; None if it is none."""
    number = scalar(other)
    return None if number is None else scores.scaled(number, op)


def scores_over(_c: Emitter, op: str, scores: Scores, other: FromInputs) -> Scores | None:
    """Interpret scores divided by a number; None if it is none."""
    number = scalar(other)
    if number is None:
        return None
    # The quotient itself: one over the number is rounded.
    quotient = scores.scaled(1 / number, op)
    if scores.cap is not None:
        return replace(quotient, cap=scores.cap / number)
    return replace(quotient, scale=scores.scale / number)


def scores_plus(c: Emitter, op: str, scores: Scores, other: FromInputs | Weight) -> Scores:
    """Interpret what is added to scores."""
    return _apply(c, scores, other, ADDED, op)


def scores_minus(c: Emitter, op: str, scores: Scores, other: FromInputs | Weight) -> Scores:
    """Interpret what is subtracted from scores."""
    return _apply(c, scores, other, SUBTRACTED, op)


ATTENTION_RULES: dict[str, Rule] = {
    "relax.equal": _equal,
    "relax.full_like": _full_like,
    "relax.isnan": _is_nan,
    "relax.logical_not": _kept_step,
    "relax.matmul": _matmul,
    "relax.max": _kept_step,
    "relax.min": _kept_step,
    "relax.nn.softmax": _softmax,
    "relax.where": _where,
}
"""Rules by operator."""
