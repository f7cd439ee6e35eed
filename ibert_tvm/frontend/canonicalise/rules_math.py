"""Rules of operators that compute: linear layers, attention, normalisation, activations, sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import relax

from ibert_tvm.frontend.canonicalise import functions, views
from ibert_tvm.frontend.canonicalise.engine import Canonicaliser, Rule, layer_of
from ibert_tvm.frontend.canonicalise.inputs import (
    as_key_mask,
    as_token_count,
    as_token_mask,
    scalar,
)
from ibert_tvm.frontend.canonicalise.operands import optional_axes, static_shape
from ibert_tvm.frontend.canonicalise.values import (
    KEPT_ROWS,
    ConstantRow,
    Embedded,
    FromInputs,
    Hidden,
    KeptTest,
    Linear,
    MaskedHidden,
    Mismatch,
    Pointwise,
    Probabilities,
    Scores,
    Value,
    Weight,
)
from ibert_tvm.frontend.canonicalise.views import Atom, Axis, View
from ibert_tvm.frontend.report import Folding
from relay_passes.canonical import build

__all__ = ["MATH_RULES"]


# -- matrix products ------------------------------------------------------------------------


def _matmul(c: Canonicaliser, call: relax.Call, operands: list[Any]) -> Value:
    left, right = operands
    op = str(call.op.name)
    if isinstance(left, Probabilities):
        return _context(c, left, c.hidden(right), op)
    if isinstance(right, Weight):
        return _linear(c, c.hidden(left), right, op)
    if isinstance(left, Weight):
        raise Mismatch("a weight multiplies a hidden tensor from the left")
    return _scores(c, c.hidden(left), c.hidden(right), op)


def _linear(c: Canonicaliser, x: Hidden, weight: Weight, op: str) -> Hidden:
    # Importers broadcast a matrix over the batch; such axes have stride 0.
    while weight.array.ndim > 2 and weight.array.strides[0] == 0:
        weight = replace(weight, array=weight.array[0])
    if weight.array.ndim != 2:
        raise Mismatch(f"the weight {weight.name} has {weight.array.ndim} dimensions, not 2")
    c.require_all_channels(x)
    operand = c.emit(x)
    if operand.channels != weight.array.shape[0]:
        raise Mismatch(
            f"the weight {weight.name} has {weight.array.shape[0]} rows for "
            f"{operand.channels} channels"
        )
    outputs = weight.array.shape[1]
    name = layer_of(weight.name)
    transposed = Weight(weight.name, weight.array.T, layer=weight.layer)
    source = Linear(name, outputs, (*x.ops, op), operand, transposed, None)
    return Hidden(
        source, (*x.view[:-1], views.channel_axis(outputs)), missing=x.missing, layer=name
    )


def _heads(hidden: Hidden, batch: Sequence[Axis], channels: Axis, what: str) -> int:
    """Return the number of heads if `batch` and `channels` enumerate batch, head, channel."""
    outer = views.flatten(batch)
    if not outer or outer[0].kind != "batch" or any(a.kind != "channel" for a in outer[1:]):
        raise Mismatch(
            f"{what} are laid out as {views.describe(hidden.view)}, not batch, heads, "
            "sequence and channels of one head"
        )
    if views.merged((*outer[1:], *channels)) != views.channel_axis(hidden.source.channels):
        raise Mismatch(f"the heads of {what} are not contiguous channels of {hidden.source.name}")
    return int(np.prod([atom.extent for atom in outer[1:]], dtype=np.int64))


def _attention_axes(batch: Sequence[Axis]) -> tuple[Axis, ...]:
    """Rename channel atoms to heads, now that their stride no longer matters."""
    return tuple(
        tuple(Atom("head", a.extent) if a.kind == "channel" else a for a in axis) for axis in batch
    )


def _scores(c: Canonicaliser, q: Hidden, k: Hidden, op: str) -> Scores:
    if len(q.view) != len(k.view) or len(q.view) < 3:
        raise Mismatch("two hidden tensors are multiplied, and not as batches of matrices")
    if q.view[-2] != (c.seq_len,) or k.view[-1] != (c.seq_len,):
        raise Mismatch(
            f"two hidden tensors are multiplied as {views.describe(q.view)} and "
            f"{views.describe(k.view)}, which is not queries by keys of one sequence"
        )
    heads = _heads(q, q.view[:-2], q.view[-1], "queries")
    if _heads(k, k.view[:-2], k.view[-2], "keys") != heads:
        raise Mismatch("queries and keys have different numbers of heads")
    outer = _attention_axes(q.view[:-2])
    if outer != _attention_axes(k.view[:-2]):
        raise Mismatch("batch and heads of queries and keys are in different axes")
    view: View = (*outer, (Atom("query", c.seq_len.extent),), (Atom("key", c.seq_len.extent),))
    # The factors belong to the scale, and the sources are the unscaled values.
    return Scores(
        replace(q, factor=1.0),
        replace(k, factor=1.0),
        heads,
        q.factor * k.factor,
        None,
        view,
        ops=(*q.ops, *k.ops, op),
        layer=q.layer,
    )


def _context(c: Canonicaliser, weights: Probabilities, v: Hidden, op: str) -> Hidden:
    scores = weights.scores
    if len(weights.view) != len(v.view) or v.view[-2] != (c.seq_len,):
        raise Mismatch(f"probabilities multiply {views.describe(v.view)}, which is not the values")
    if _heads(v, v.view[:-2], v.view[-1], "values") != scores.heads:
        raise Mismatch("values and scores have different numbers of heads")
    outer = _attention_axes(v.view[:-2])
    expected = (*outer, (Atom("query", c.seq_len.extent),), (Atom("key", c.seq_len.extent),))
    if weights.view != expected:
        raise Mismatch(
            f"probabilities are laid out as {views.describe(weights.view)}, not as "
            f"{views.describe(expected)}"
        )
    q, k, values = c.emit(scores.q), c.emit(scores.k), c.emit(v)
    if q.channels != values.channels or q.var.ty.ndim != 3:
        raise Mismatch(
            f"{q.name} has {q.channels} channels and {values.name} {values.channels}; "
            "queries, keys and values of one width are supported"
        )
    mask = c.attention_mask(scores.mask)
    name = c.unique(_common_layer(q.name, k.name, values.name))
    call = build.attention(
        q.var, k.var, values.var, mask, name=name, num_heads=scores.heads, scale=scores.scale
    )
    emitted = c.record(call, name, values.channels, (*weights.ops, *v.ops, op))
    c.num_layers += 1
    # The queries take the place that the keys' sequence had.
    return Hidden(emitted, v.view, layer=name)


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


def _mask_scores(
    c: Canonicaliser, scores: Scores, mask: FromInputs, *, boolean: bool, op: str
) -> Scores:
    atoms = views.flatten(scores.view)
    kinds = [atom.kind for atom in atoms]
    name = as_key_mask(
        mask,
        c.probes,
        shape=views.shape_of(scores.view),
        atoms=tuple(atom.extent for atom in atoms),
        axes=(kinds.index("batch"), kinds.index("key")),
        boolean=boolean,
    )
    if name is not None and scores.mask not in (None, name):
        raise Mismatch(f"two inputs mask the keys: {scores.mask} and {name}")
    return replace(scores, mask=name or scores.mask, ops=(*scores.ops, op))


def _where(c: Canonicaliser, call: relax.Call, operands: list[Any]) -> Value:
    condition, yes, no = operands
    op = str(call.op.name)
    if isinstance(condition, KeptTest):
        return _empty_rows(condition, yes, no, op)
    if not isinstance(condition, FromInputs):
        raise Mismatch("its condition depends on hidden tensors")
    if isinstance(yes, Scores) and isinstance(no, FromInputs):
        kept, other = yes, no
        mask = condition
    elif isinstance(no, Scores) and isinstance(yes, FromInputs):
        kept, other = no, yes
        mask = replace(condition, samples=lambda: [~(a != 0) for a in condition.samples()])
    else:
        raise Mismatch("only attention scores are selected by a condition")
    low = scalar(other)
    if low is None or low > -1e3:
        raise Mismatch(f"masked scores become {low}, which is not low enough to weigh nothing")
    return _mask_scores(c, kept, replace(mask, constant=None), boolean=True, op=op)


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


def _equal(_c: Canonicaliser, call: relax.Call, operands: list[Any]) -> Value:
    for one, other in (operands, operands[::-1]):
        if isinstance(one, Scores) and isinstance(other, FromInputs):
            if scalar(other) != -np.inf:
                break
            return KeptTest(one, ~KEPT_ROWS, ops=(str(call.op.name),), layer=one.layer)
    raise Mismatch("hidden tensors are compared, and only scores with minus infinity may be")


def _kept_step(_c: Canonicaliser, call: relax.Call, operands: list[Any]) -> Value:
    """Steps from "is this score masked?" to "has this row any key?"."""
    value = operands[0]
    op = str(call.op.name)
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


def _full_like(_c: Canonicaliser, call: relax.Call, operands: list[Any]) -> Value:
    number = scalar(operands[1]) if isinstance(operands[1], FromInputs) else None
    if number is None:
        raise Mismatch("a tensor is filled with something other than a number")
    array = np.broadcast_to(np.float32(number), static_shape(call))
    return FromInputs(lambda: [array], tuple(array.shape), array)


def _softmax(_c: Canonicaliser, call: relax.Call, operands: list[Any]) -> Value:
    scores = operands[0]
    if not isinstance(scores, Scores):
        raise Mismatch("a softmax is taken of something other than attention scores")
    axis = int(call.attrs.axis)
    if [atom.kind for atom in scores.view[axis]] != ["key"]:
        raise Mismatch(
            f"the softmax is over axis {axis} of {views.describe(scores.view)}, not over the keys"
        )
    return Probabilities(
        scores, scores.view, ops=(*scores.ops, str(call.op.name)), layer=scores.layer
    )


# -- normalisation and elementwise ----------------------------------------------------------


def _vector(c: Canonicaliser, value: Any, channels: int, name: str) -> Weight:
    """Return `value` as a weight [channels]; a constant of the graph gets the name `name`."""
    if isinstance(value, FromInputs) and value.constant is not None:
        value = Weight(name, np.asarray(value.constant, np.float32))
        c.report.foldings.append(Folding(name, "a constant of the graph became a parameter"))
    if not isinstance(value, Weight):
        raise Mismatch("a weight is needed here")
    array = value.array
    if array.size == 1:
        array = np.broadcast_to(array.reshape(1), (channels,))
    if array.size != channels or (array.ndim > 1 and array.shape[-1] != channels):
        raise Mismatch(
            f"{value.name} of shape {array.shape} is not one number per channel ({channels})"
        )
    return Weight(value.name, array.reshape(channels), layer=value.layer)


def _layer_norm(c: Canonicaliser, call: relax.Call, operands: list[Any]) -> Value:
    x = c.hidden(operands[0])
    axes = optional_axes(call.attrs.axes) or [-1]
    if [axis % len(x.view) for axis in axes] != [len(x.view) - 1]:
        raise Mismatch(f"it normalises over the axes {axes}, not over the last one")
    c.require_all_channels(x)
    operand = c.emit(x)
    gamma = _vector(c, operands[1], operand.channels, f"{operand.name}.layer_norm.weight")
    beta = _vector(c, operands[2], operand.channels, f"{operand.name}.layer_norm.bias")
    name = c.unique(layer_of(gamma.name))
    call_out = build.layer_norm(
        operand.var,
        c.weight(gamma.name, gamma.array),
        c.weight(beta.name, beta.array),
        name=name,
        epsilon=float(call.attrs.epsilon),
    )
    ops = (*x.ops, str(call.op.name))
    return c.show(c.record(call_out, name, operand.channels, ops), x)


def _lift(value: Hidden | Pointwise) -> Pointwise:
    """Return a hidden tensor as the identity function of itself."""
    if isinstance(value, Pointwise):
        return value
    return Pointwise(
        replace(value, factor=1.0, ops=()),
        functions.GRID * value.factor,
        "x" if value.factor == 1.0 else f"{value.factor:g} x",
        ops=value.ops,
        layer=value.layer,
    )


def _unary(_c: Canonicaliser, call: relax.Call, operands: list[Any]) -> Value:
    if not isinstance(operands[0], (Hidden, Pointwise)):
        raise Mismatch("it is applied to something other than a hidden tensor")
    x = _lift(operands[0])
    op = str(call.op.name)
    with np.errstate(all="ignore"):
        samples = functions.UNARY[op](x.samples)
    return replace(x, samples=samples, text=f"{op[6:]}({x.text})", parts=(), ops=(*x.ops, op))


def _same_tensor(a: Pointwise, b: Pointwise) -> bool:
    return a.base.source is b.base.source and a.base.view == b.base.view


def _binary(c: Canonicaliser, call: relax.Call, operands: list[Any]) -> Value:
    op = str(call.op.name)
    left, right = operands[0], operands[1]
    for one, other in ((left, right), (right, left)):
        if isinstance(one, Scores) and isinstance(other, FromInputs):
            return _scores_binary(c, op, one, other, swapped=one is right)
        if isinstance(one, (MaskedHidden, Probabilities)):
            return _pool_step(c, op, left, right)
    hidden = [item for item in (left, right) if isinstance(item, (Hidden, Pointwise))]
    if not hidden:
        raise Mismatch("none of its operands is a hidden tensor")
    if len(hidden) == 2:
        return _hidden_pair(c, op, left, right)
    other = right if hidden[0] is left else left
    number = scalar(other) if isinstance(other, FromInputs) else None
    if number is not None:
        return _with_number(op, _lift(hidden[0]), number, first=hidden[0] is left)
    if op == "relax.add" and isinstance(other, (Weight, FromInputs)):
        return _bias(c, c.hidden(hidden[0]), other, op)
    if op == "relax.multiply" and isinstance(other, FromInputs):
        x = c.hidden(hidden[0])
        if x.view[:2] != ((c.batch,), (c.seq_len,)) or x.factor != 1.0:
            raise Mismatch("a hidden tensor is multiplied by a tensor made from the inputs")
        mask = as_token_mask(other, c.probes, views.shape_of(x.view))
        return MaskedHidden(x, mask, False, x.view, ops=(*x.ops, op), layer=x.layer)
    raise Mismatch(f"a hidden tensor and {type(other).__name__.lower()} are its operands")


def _with_number(op: str, x: Pointwise, number: float, *, first: bool) -> Pointwise:
    compute = functions.BINARY[op]
    with np.errstate(all="ignore"):
        samples = compute(x.samples, number) if first else compute(number, x.samples)
    text = f"{x.text}, {number:g}" if first else f"{number:g}, {x.text}"
    return replace(x, samples=samples, text=f"{op[6:]}({text})", parts=(), ops=(*x.ops, op))


def _hidden_pair(
    c: Canonicaliser, op: str, left: Hidden | Pointwise, right: Hidden | Pointwise
) -> Value:
    a, b = _lift(left), _lift(right)
    if _same_tensor(a, b):
        with np.errstate(all="ignore"):
            samples = functions.BINARY[op](a.samples, b.samples)
        parts = (left, right) if op == "relax.add" else ()
        ops = (*a.ops, *b.ops, op)
        return replace(
            a, samples=samples, text=f"{op[6:]}({a.text}, {b.text})", parts=parts, ops=ops
        )
    if op != "relax.add":
        raise Mismatch("two different hidden tensors are combined, and only sums have a form")
    for one, other in ((left, right), (right, left)):
        if isinstance(one, Hidden) and isinstance(one.source, ConstantRow):
            target = c.hidden(other)
            shape = views.shape_of(target.view)
            if views.broadcast(one.view, shape, one.missing) != target.view:
                raise Mismatch("a constant row is added in another layout")
            return _bias(c, target, one.source.row, op)
    return c.add(left, right, (op,))


def _bias(c: Canonicaliser, x: Hidden, other: Weight | FromInputs, op: str) -> Hidden:
    """Add one number per channel: a bias, or a constant row of an embedding sum."""
    c.require_all_channels(x)
    source = x.source
    vector = _vector(c, other, source.channels, f"{source.name}.bias")
    ops = (*source.ops, *x.ops, op)
    if x.factor != 1.0:
        raise Mismatch("a bias is added after a scale")
    new: Linear | Embedded
    if isinstance(source, Linear):
        bias = (
            vector
            if source.bias is None
            else Weight(source.bias.name, source.bias.array + vector.array)
        )
        if source.bias is not None:
            c.report.foldings.append(Folding(source.name, f"{vector.name} added to the bias"))
        new = replace(source, bias=bias, ops=ops)
    elif isinstance(source, Embedded):
        c.report.foldings.append(Folding(source.table.name, f"{vector.name} added to every row"))
        new = replace(
            source,
            table=Weight(source.table.name, source.table.array + vector.array),
            ops=ops,
        )
    else:
        raise Mismatch(
            f"{vector.name} is added to {source.name}, and only a linear layer or an embedding "
            "can take a constant per channel"
        )
    return Hidden(new, x.view, missing=x.missing, layer=x.layer)


def _scores_binary(
    c: Canonicaliser, op: str, scores: Scores, other: FromInputs, *, swapped: bool
) -> Scores:
    number = scalar(other)
    if op in ("relax.multiply", "relax.divide") and number is not None and not swapped:
        if scores.mask is not None:
            raise Mismatch("the scores are scaled after they were masked")
        scale = scores.scale * number if op == "relax.multiply" else scores.scale / number
        return replace(scores, scale=scale, ops=(*scores.ops, op))
    if op == "relax.multiply" and number is not None:
        return _scores_binary(c, op, scores, other, swapped=False)
    if op == "relax.subtract" and not swapped:
        term = other.samples
        other = replace(other, samples=lambda: [-array for array in term()], constant=None)
    if op in ("relax.add", "relax.subtract"):
        return _mask_scores(c, scores, other, boolean=False, op=op)
    raise Mismatch("attention scores are only scaled by a number, masked, and normalised")


# -- pooling --------------------------------------------------------------------------------


def _pool_step(c: Canonicaliser, op: str, left: Any, right: Any) -> Hidden:
    if op != "relax.divide" or not isinstance(left, MaskedHidden) or not left.summed:
        raise Mismatch("attention probabilities or masked tensors are changed before their use")
    if not isinstance(right, FromInputs):
        raise Mismatch("a sum over tokens is divided by something other than their number")
    as_token_count(right, c.probes, left.mask)
    x = c.emit(left.base)
    name = c.unique(f"{x.name}.mean_pool")
    call = build.mean_pool(x.var, c.input_vars[left.mask], name=name)
    emitted = c.record(call, name, x.channels, (*left.ops, op))
    return Hidden(emitted, left.view, layer=left.layer)


def _sum(c: Canonicaliser, call: relax.Call, operands: list[Any]) -> Value:
    value = operands[0]
    if not isinstance(value, MaskedHidden) or value.summed:
        raise Mismatch("a sum is taken of something other than a masked hidden tensor")
    axes = optional_axes(call.attrs.axis)
    if axes is None or [value.view[axis] for axis in axes] != [(c.seq_len,)]:
        raise Mismatch("a hidden tensor is summed over something other than the sequence")
    axis = axes[0] % len(value.view)
    view = tuple(
        () if i == axis else item
        for i, item in enumerate(value.view)
        if i != axis or bool(call.attrs.keepdims)
    )
    return replace(value, summed=True, view=view, ops=(*value.ops, str(call.op.name)))


def _mean(_c: Canonicaliser, _call: relax.Call, _operands: list[Any]) -> Value:
    raise Mismatch(
        "a mean over all tokens counts padding too, so the result would change with the length; "
        "use a mean over the tokens that the mask marks"
    )


MATH_RULES: dict[str, Rule] = {
    **dict.fromkeys(functions.UNARY, _unary),
    **dict.fromkeys(functions.BINARY, _binary),
    "relax.equal": _equal,
    "relax.full_like": _full_like,
    "relax.logical_not": _kept_step,
    "relax.matmul": _matmul,
    "relax.max": _kept_step,
    "relax.mean": _mean,
    "relax.min": _kept_step,
    "relax.nn.layer_norm": _layer_norm,
    "relax.nn.softmax": _softmax,
    "relax.sum": _sum,
    "relax.where": _where,
}
"""Rules by operator."""
