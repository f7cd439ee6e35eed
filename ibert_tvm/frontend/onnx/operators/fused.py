"""Translations of fused operators: ONNX's Attention and those of ONNX Runtime (com.microsoft).

Each is written as the plain operators that it was fused from, so that the canonicaliser sees one
form of attention, LayerNorm and GELU whoever wrote the file.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
from tvm import relax
from tvm.relax import op

from ..translator import ORT, Node, Translator, operator, unary
from ..values import Known, Operand, Traced, Untranslatable, constant
from .layout import look_up, reshape, split, transpose, transpose_last
from .matrix import epsilon_of, gemm, layer_norm, rms_norm
from .rotary import turned

# -- normalisation --------------------------------------------------------------------------


@operator("SkipLayerNormalization", domain=ORT)
def _skip_layer_normalization(t: Translator, node: Node) -> list[Traced | None]:
    total = _skip_sum(t, node, node.operand(4))
    gamma = node.tensors(3)[2]
    result = layer_norm(t, node, total, gamma, node.operand(3), epsilon=epsilon_of(node, 1e-12))
    return [result, None, None, total]


def _skip_sum(t: Translator, node: Node, bias: Operand | None) -> Traced:
    """The sum of the first two operands, and of the bias that was merged into the norm."""
    terms = [node.traced(0), node.traced(1)]
    if bias is not None:
        # The bias of the linear layer of which one term is the product.
        names = list(node.proto.input)
        makers = [t.naming.producer(name) for name in names[:2]]
        products = [maker is not None and "MatMul" in maker.op_type for maker in makers]
        place = 1 if products == [False, True] else 0
        term = terms[place]
        terms[place] = t.emit(op.add(term.var, t.expr(node, bias, "bias")), term, bias)
    return t.emit(op.add(terms[0].var, terms[1].var), *terms)


@operator("EmbedLayerNormalization", domain=ORT)
def _embed_layer_normalization(t: Translator, node: Node) -> list[Traced | None]:
    ids, segments = node.traced(0), node.operand(1)
    tables = [node.operand(index) for index in (2, 3, 4)]
    gamma, beta, mask = node.operand(5), node.operand(6), node.operand(7)
    words, positions, types = (x if isinstance(x, Known) else None for x in tables)
    if words is None or positions is None or gamma is None:
        raise Untranslatable("its tables are not weights")
    places = node.operand(8) or Known(np.arange(ids.shape[1]).reshape(1, -1))
    total = look_up(t, node, words, ids)
    if segments is not None and types is not None:
        kind = look_up(t, node, types, segments)
        total = t.emit(op.add(total.var, kind.var), total, kind)
    position = look_up(t, node, positions, places)
    total = t.emit(op.add(total.var, position.var), total, position)
    result = layer_norm(t, node, total, gamma, beta, epsilon=epsilon_of(node, 1e-12))
    count = None
    if isinstance(mask, Traced):
        count = t.emit(op.sum(mask.var, axis=[1]), mask)
        t.masks[count.var.name] = mask
    return [result, count, total]


@unary("RMSNormalization", "SimplifiedLayerNormalization")
@unary("SimplifiedLayerNormalization", domain=ORT)
def _rms_normalization(t: Translator, node: Node, x: Traced) -> Traced:
    axis = int(node.attributes.get("axis", -1))
    if axis % len(x.shape) != len(x.shape) - 1:
        raise Untranslatable(f"it normalises over the axes from {axis} on, not over the last one")
    return rms_norm(t, node, x, node.operand(1), epsilon=epsilon_of(node, 1e-5))


@operator("SkipSimplifiedLayerNormalization", domain=ORT)
def _skip_rms_normalization(t: Translator, node: Node) -> list[Traced | None]:
    total = _skip_sum(t, node, node.operand(3))
    result = rms_norm(t, node, total, node.operand(2), epsilon=epsilon_of(node, 1e-12))
    return [result, None, None, total]


# -- matrix products ------------------------------------------------------------------------


@operator("FusedMatMul", "TransposeMatMul", domain=ORT)
def _fused_matmul(t: Translator, node: Node) -> Traced:
    if node.attributes.get("transBatchA", 0) or node.attributes.get("transBatchB", 0):
        raise Untranslatable("it transposes batch axes")
    sides = list(node.tensors(2))
    for index, name in enumerate(("transA", "transB")):
        if node.attributes.get(name, 0):
            sides[index] = transpose_last(t, sides[index])
    parts = [t.expr(node, side) for side in sides]
    result = t.emit(op.matmul(*parts), *sides)
    alpha = float(node.attributes.get("alpha", 1.0))
    if alpha != 1.0:
        result = t.emit(op.multiply(result.var, relax.const(alpha, result.dtype)), result)
    return result


@operator("FusedGemm", domain=ORT)
def _fused_gemm(t: Translator, node: Node) -> Traced:
    result = gemm(t, node)
    name = bytes(node.attributes.get("activation", b"")).decode()
    make = {"": None, "Relu": op.nn.relu, "Sigmoid": op.sigmoid, "Tanh": op.tanh}
    if name not in make:
        raise Untranslatable(f"its activation {name} is none of {', '.join(sorted(make)[1:])}")
    function = make[name]
    return result if function is None else t.emit(function(result.var), result)


# -- attention ------------------------------------------------------------------------------


@operator("Attention")
def _attention(t: Translator, node: Node) -> Traced:
    q, k, v = (node.traced(index) for index in range(3))
    attributes = node.attributes
    if any(node.operand(index) is not None for index in range(4, len(node.operands))):
        raise Untranslatable("it reads keys and values of earlier calls")
    flat = len(q.shape) == 3
    if flat:
        counts = [int(attributes.get(name, 0)) for name in ("q_num_heads", "kv_num_heads")]
        if min(counts) < 1:
            raise Untranslatable(f"it has {counts[0]} heads of queries and {counts[1]} of keys")
        q = _heads(t, q, counts[0])
        k, v = (_heads(t, x, counts[1]) for x in (k, v))
    mask = node.operand(3)
    allowed = mask is not None and mask.dtype == "bool"
    keep, added = (mask, None) if allowed else (None, mask)
    window = [int(attributes.get(f"{side}_window_size", -1)) for side in ("left", "right")]
    before, after = (None if size < 0 else size for size in window)
    if attributes.get("is_causal", 0):
        after = 0
    result = _attend(t, node, (q, k, v), keep=keep, added=added, window=(before, after))
    return _joined(t, result) if flat else result


def _heads(t: Translator, x: Traced, count: int) -> Traced:
    """[batch, tokens, channels] to [batch, heads, tokens, channels of a head]."""
    batch, length, channels = x.shape
    if channels % count:
        raise Untranslatable(f"{channels} channels do not divide by {count} heads")
    return transpose(t, reshape(t, x, [batch, length, count, channels // count]), [0, 2, 1, 3])


def _joined(t: Translator, x: Traced) -> Traced:
    batch, heads, length, width = x.shape
    return reshape(t, transpose(t, x, [0, 2, 1, 3]), [batch, length, heads * width])


def _attend(
    t: Translator,
    node: Node,
    qkv: tuple[Traced, Traced, Traced],
    *,
    keep: Operand | None,
    added: Operand | None,
    window: tuple[int | None, int | None] = (None, None),
) -> Traced:
    """Emit softmax(scale q kᵀ + mask) v on [batch, heads, tokens, channels].

    Keys and values may have fewer heads, which neighbouring heads of queries share. A window says
    how far in front of its query, and behind it, a key may be. Scores are capped before the mask.
    """
    q = qkv[0]
    k, v = (_repeated(t, x, q.shape[1]) for x in qkv[1:])
    scale = float(node.attributes.get("scale", 0.0)) or 1.0 / sqrt(q.shape[-1])
    keys = transpose_last(t, k)
    scores = t.emit(op.matmul(q.var, t.expr(node, keys)), q, k)
    scores = t.emit(op.multiply(scores.var, relax.const(scale, scores.dtype)), scores)
    cap = float(node.attributes.get("softcap", 0.0))
    if cap:
        number = relax.const(cap, scores.dtype)
        scores = t.emit(op.tanh(t.emit(op.divide(scores.var, number), scores).var), scores)
        scores = t.emit(op.multiply(scores.var, number), scores)
    keep = _within(t, node, keep, window, q.shape[2])
    if keep is not None:
        condition = t.expr(node, keep, weight=False)
        low = relax.const(-np.inf, scores.dtype)
        scores = t.emit(op.where(condition, scores.var, low), scores, keep)
    if added is not None:
        scores = t.emit(op.add(scores.var, t.expr(node, added, weight=False)), scores, added)
    weights = t.emit(op.nn.softmax(scores.var, -1), scores)
    return t.emit(op.matmul(weights.var, v.var), weights, v)


def _within(
    t: Translator,
    node: Node,
    keep: Operand | None,
    window: tuple[int | None, int | None],
    length: int,
) -> Operand | None:
    """What is kept of scores within a window."""
    before, after = window
    if before is None and after is None:
        return keep
    distance = np.arange(length)[None, :] - np.arange(length)[:, None]
    near = np.ones((1, 1, length, length), np.bool_)
    if before is not None:
        near &= distance >= -before
    if after is not None:
        near &= distance <= after
    if keep is None:
        return Known(near)
    both = op.logical_and(t.expr(node, keep, weight=False), constant(near))
    return t.emit(both, keep)


def _repeated(t: Translator, x: Traced, heads: int) -> Traced:
    """Each head as often as makes so many of them."""
    batch, count, length, width = x.shape
    if heads == count:
        return x
    if heads % count:
        raise Untranslatable(f"it has {heads} heads of queries and {count} of keys")
    beside = t.emit(op.expand_dims(x.var, [2]), x)
    shape = (batch, count, heads // count, length, width)
    return reshape(t, t.emit(op.broadcast_to(beside.var, shape), x), [batch, heads, length, width])


@operator("Attention", domain=ORT)
def _ort_attention(t: Translator, node: Node) -> Traced:
    x, weight = node.traced(0), node.tensors(2)[1]
    heads = int(node.attributes["num_heads"])
    _refuse_state(node, past=(4,))
    if node.attributes.get("do_rotary", 0):
        raise Untranslatable("it rotates queries and keys by angles of its own (do_rotary)")
    product = t.emit(op.matmul(x.var, t.expr(node, weight)), x, weight)
    bias = node.operand(2)
    if bias is not None:
        product = t.emit(op.add(product.var, t.expr(node, bias, "bias")), product, bias)
    sizes = [int(item) for item in node.attributes.get("qkv_hidden_sizes", ())]
    sizes = sizes or [product.shape[-1] // 3] * 3
    q, k, v = (_heads(t, part, heads) for part in split(t, product, sizes, 2))
    keep, window = _kept_keys(t, node, 3, x.shape), _before_and_after(node)
    result = _attend(t, node, (q, k, v), keep=keep, added=node.operand(5), window=window)
    return _joined(t, result)


@operator("MultiHeadAttention", domain=ORT)
def _multi_head_attention(t: Translator, node: Node) -> Traced:
    heads = int(node.attributes["num_heads"])
    _refuse_state(node, past=(6, 7))
    q = node.traced(0)
    if len(q.shape) == 5:  # [batch, tokens, heads, 3, channels of a head]
        batch, length, count, three, width = q.shape
        parts = split(t, q, [1] * three, 3)
        q, k, v = (
            transpose(t, reshape(t, part, [batch, length, count, width]), [0, 2, 1, 3])
            for part in parts
        )
        if node.operand(3) is not None:
            raise Untranslatable("it adds a bias to packed queries, keys and values")
    else:
        batch, length, _ = q.shape
        parts = [q, node.traced(1), node.traced(2)]
        if any(len(part.shape) != 3 for part in parts):
            raise Untranslatable("its keys are packed with its values, or split in heads already")
        bias = node.operand(3)
        if isinstance(bias, Known):
            cuts = np.cumsum([part.shape[-1] for part in parts])[:-1]
            pieces = [Known(piece, bias.name) for piece in np.split(bias.array, cuts)]
            parts = [
                t.emit(op.add(part.var, t.expr(node, piece, "bias")), part, piece)
                for part, piece in zip(parts, pieces, strict=True)
            ]
        q, k, v = (_heads(t, part, heads) for part in parts)
    keep, window = _kept_keys(t, node, 4, (batch, length)), _before_and_after(node)
    result = _attend(t, node, (q, k, v), keep=keep, added=node.operand(5), window=window)
    return _joined(t, result)


@operator("GroupQueryAttention", domain=ORT)
def _group_query_attention(t: Translator, node: Node) -> list[Traced | None]:
    _refuse_state(node, past=(3, 4))
    if node.attributes.get("smooth_softmax", 0) or node.operand(11) is not None:
        raise Untranslatable("its softmax has one term more than there are keys")
    heads, shared = (int(node.attributes[name]) for name in ("num_heads", "kv_num_heads"))
    q = node.traced(0)
    if node.operand(1) is None:
        width = q.shape[-1] // (heads + 2 * shared)
        q, k, v = split(t, q, [heads * width, shared * width, shared * width], 2)
    else:
        k, v = node.traced(1), node.traced(2)
    batch, length, _ = q.shape
    if node.attributes.get("do_rotary", 0):
        # The first call of a text: its tokens are counted from 0.
        places = node.operand(9) or Known(np.arange(length)[None])
        tables = node.operand(7), node.operand(8)
        interleaved = bool(node.attributes.get("rotary_interleaved", 0))
        width = q.shape[-1] // heads
        q, k = (
            turned(t, node, x, places, tables, width=width, interleaved=interleaved) for x in (q, k)
        )
    mask = _mask_of_last(t, node, 5, (batch, length))
    mask = reshape(t, mask, [batch, 1, 1, length])
    kept = t.emit(op.greater(mask.var, relax.const(0, mask.dtype)), mask)
    # Every query sees itself and what lies in front of it, so many keys at most.
    size = int(node.attributes.get("local_window_size", -1))
    window = (size - 1 if size > 0 else None, 0)
    parts = (_heads(t, q, heads), _heads(t, k, shared), _heads(t, v, shared))
    attended = _attend(t, node, parts, keep=kept, added=node.operand(10), window=window)
    return [_joined(t, attended), None, None]


def _mask_of_last(t: Translator, node: Node, index: int, shape: tuple[int, int]) -> Traced:
    """Return the mask whose ones were counted, where an operand is one less for each row."""
    name, less = node.proto.input[index], 0
    maker = t.naming.producer(name)
    while maker is not None and maker.op_type in ("Cast", "Sub"):
        if maker.op_type == "Sub":
            number = t.value(maker.input[1])
            less += int(number.array) if isinstance(number, Known) and number.array.size == 1 else 2
        name = maker.input[0]
        maker = t.naming.producer(name)
    mask = _counted_mask(t, name, shape) if less == 1 else None
    if mask is None:
        raise Untranslatable("the lengths of its sequences are not counted from the padding mask")
    _note_mask(t, node)
    return mask


def _refuse_state(node: Node, *, past: tuple[int, ...]) -> None:
    if any(node.operand(index) is not None for index in past):
        raise Untranslatable("it reads keys and values of earlier calls")


def _before_and_after(node: Node) -> tuple[int | None, int | None]:
    """Window of ONNX Runtime's attention for encoders and decoders."""
    return None, 0 if node.attributes.get("unidirectional", 0) else None


def _kept_keys(t: Translator, node: Node, index: int, tokens: tuple[int, ...]) -> Operand | None:
    """Return which scores are kept, from one of the forms of mask that ONNX Runtime takes."""
    mask = node.operand(index)
    if mask is None:
        return None
    if isinstance(mask, Known):
        raise Untranslatable("its mask is a constant")
    batch, length = tokens[0], tokens[1]
    if mask.shape == (batch,):
        mask = _mask_of_counts(t, node, index, mask, (batch, length))
    if mask.shape == (batch, length):
        mask = reshape(t, mask, [batch, 1, 1, length])
    elif len(mask.shape) == 3:
        mask = t.emit(op.expand_dims(mask.var, [1]), mask)
    elif len(mask.shape) != 4:
        raise Untranslatable(f"a mask of shape {mask.shape} is of no known form")
    return t.emit(op.greater(mask.var, relax.const(0, mask.dtype)), mask)


def _mask_of_counts(
    t: Translator, node: Node, index: int, counts: Traced, shape: tuple[int, int]
) -> Traced:
    """Return the mask whose ones were counted to `counts`, or one that keeps the first tokens."""
    mask = _counted_mask(t, node.proto.input[index], shape)
    if mask is not None:
        _note_mask(t, node)
        return mask
    places = constant(np.arange(shape[1], dtype=counts.dtype).reshape(1, -1))
    first = t.emit(op.expand_dims(counts.var, [1]), counts)
    return t.emit(op.astype(op.less(places, first.var), "int32"), counts)


def _counted_mask(t: Translator, name: str, shape: tuple[int, int]) -> Traced | None:
    """Return the mask that was summed to tensor `name`, if it was."""
    counts = t.value(name)
    if isinstance(counts, Traced) and counts.var.name in t.masks:
        return t.masks[counts.var.name]
    maker = t.naming.producer(name)
    if maker is None or maker.op_type != "ReduceSum":
        return None
    summed = t.value(maker.input[0])
    if isinstance(summed, Traced) and summed.tokens and summed.shape == shape:
        return summed
    return None


def _note_mask(t: Translator, node: Node) -> None:
    t.fold(
        "attention_mask",
        "the source keeps as many tokens from the front as the mask has ones; the mask itself is "
        "used, which is the same where padding is at the end",
        node,
    )
