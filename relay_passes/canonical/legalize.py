"""Float meaning of the canonical operators, as stock Relax operators and TE.

With these a canonical module compiles with `relax.transform.LegalizeOps` and TVM's default
pipeline on any target, symbolic shapes included. Written for clarity: the fast path for the host
CPU is `ibert_tvm.relay_passes.canonical.float_executable`.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax, te, tirx

from . import ops  # noqa: F401 (registers the operators)


def position_ids_te(
    ids: te.Tensor, kind: str, offset: int, padding_index: int, dtype: str = "int64"
) -> te.Tensor:
    """Positions of `ids` [B, S] as a TE tensor; see `build.position_ids` for the attributes."""
    batch, length = ids.shape
    if kind == "absolute":
        return te.compute(
            (batch, length), lambda _b, s: (s + offset).astype(dtype), name="position_ids"
        )
    # S is at most a few hundred, so a triangular sum costs nothing beside one linear layer and
    # needs no scan primitive.
    other = te.reduce_axis((0, length), name="t")
    count = te.compute(
        (batch, length),
        lambda b, s: te.sum(
            tirx.Select(
                tirx.all(other <= s, ids[b, other] != padding_index),
                tirx.const(1, dtype),
                tirx.const(0, dtype),
            ),
            axis=other,
        ),
        name="count",
    )
    return te.compute(
        (batch, length),
        lambda b, s: (
            tirx.Select(ids[b, s] != padding_index, count[b, s], tirx.const(0, dtype))
            + tirx.const(padding_index, dtype)
        ),
        name="position_ids",
    )


def attention_te(
    q: te.Tensor, k: te.Tensor, v: te.Tensor, mask: te.Tensor | None, num_heads: int, scale: float
) -> te.Tensor:
    """Masked multi-head attention of q, k, v [B, S, H*D] as a TE tensor [B, S, H*D]."""
    batch, length, channels = q.shape
    if mask is None:
        mask = ones_te(batch, length)
    width = int(channels) // num_heads
    square = (batch, num_heads, length, length)
    inner = te.reduce_axis((0, width), name="d")
    score = te.compute(
        square,
        lambda b, h, i, j: te.sum(
            q[b, i, h * width + inner] * k[b, j, h * width + inner], axis=inner
        ),
        name="score",
    )
    scaled = te.compute(
        square,
        lambda b, h, i, j: tirx.Select(
            mask[b, j] != 0,
            score[b, h, i, j] * tirx.const(scale, "float32"),
            tirx.min_value("float32"),
        ),
        name="masked",
    )
    key = te.reduce_axis((0, length), name="j")
    highest = te.compute(
        square[:3], lambda b, h, i: te.max(scaled[b, h, i, key], axis=key), name="highest"
    )
    # The mask decides again here: in a row without keys every score equals the maximum, and
    # exp(0) = 1 would give padding a weight.
    power = te.compute(
        square,
        lambda b, h, i, j: tirx.Select(
            mask[b, j] != 0,
            te.exp(scaled[b, h, i, j] - highest[b, h, i]),
            tirx.const(0.0, "float32"),
        ),
        name="power",
    )
    key_sum = te.reduce_axis((0, length), name="j")
    total = te.compute(
        square[:3], lambda b, h, i: te.sum(power[b, h, i, key_sum], axis=key_sum), name="total"
    )
    key_value = te.reduce_axis((0, length), name="j")
    context = te.compute(
        (batch, length, channels),
        lambda b, i, c: te.sum(
            power[b, c // width, i, key_value] * v[b, key_value, c], axis=key_value
        ),
        name="context",
    )
    # A row with a key has total >= 1 (the maximum contributes exp(0)), so the clamp only turns
    # 0/0 of a row without keys into 0.
    return te.compute(
        (batch, length, channels),
        lambda b, i, c: (
            context[b, i, c] / tirx.max(total[b, c // width, i], tirx.const(1e-30, "float32"))
        ),
        name="attention",
    )


def ones_te(batch: object, length: object) -> te.Tensor:
    """Mask [batch, length] that keeps every token."""
    return te.compute((batch, length), lambda *_: tirx.const(1, "int64"), name="ones")


def patches_te(pixels: te.Tensor, patch_height: int, patch_width: int) -> te.Tensor:
    """Patches of images [B, channels, H, W] as a TE tensor; see `build.patches`."""
    batch, channels, height, width = pixels.shape
    across = int(width) // patch_width
    area = patch_height * patch_width
    return te.compute(
        (batch, int(height) // patch_height * across, int(channels) * area),
        lambda b, p, c: pixels[
            b,
            c // area,
            p // across * patch_height + c % area // patch_width,
            p % across * patch_width + c % patch_width,
        ],
        name="patches",
    )


def prepend_tokens_te(x: te.Tensor, tokens: te.Tensor) -> te.Tensor:
    """Rows of `tokens` [N, C] before the tokens of x [B, S, C], as a TE tensor."""
    count = int(tokens.shape[0])
    return te.compute(
        (x.shape[0], x.shape[1] + count, x.shape[2]),
        lambda b, s, c: tirx.if_then_else(
            s < count, tokens[tirx.min(s, count - 1), c], x[b, tirx.max(s - count, 0), c]
        ),
        name="prepend_tokens",
    )


def mean_pool_te(x: te.Tensor, mask: te.Tensor | None = None) -> te.Tensor:
    """Masked mean over tokens of x [B, S, C] as a TE tensor [B, C]; 0 for a row without tokens."""
    batch, length, channels = x.shape
    if mask is None:
        mask = ones_te(batch, length)
    token = te.reduce_axis((0, length), name="s")
    total = te.compute(
        (batch, channels),
        lambda b, c: te.sum(
            tirx.Select(mask[b, token] != 0, x[b, token, c], tirx.const(0.0, "float32")),
            axis=token,
        ),
        name="total",
    )
    other = te.reduce_axis((0, length), name="s")
    count = te.compute(
        (batch,),
        lambda b: te.sum(
            tirx.Select(
                mask[b, other] != 0, tirx.const(1.0, "float32"), tirx.const(0.0, "float32")
            ),
            axis=other,
        ),
        name="count",
    )
    return te.compute(
        (batch, channels),
        lambda b, c: total[b, c] / tirx.max(count[b], tirx.const(1.0, "float32")),
        name="mean_pool",
    )


def select_token_te(x: te.Tensor, index: int) -> te.Tensor:
    """Token `index` of x [B, S, C] as a TE tensor [B, C]."""
    return te.compute((x.shape[0], x.shape[2]), lambda b, c: x[b, index, c], name="select_token")


def _embedding(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    table, ids = call.args
    return builder.call_te(
        lambda t, i: te.compute(
            (i.shape[0], i.shape[1], t.shape[1]), lambda b, s, c: t[i[b, s], c], name="embedding"
        ),
        table,
        ids,
        primfunc_name_hint="canonical_embedding",
    )


def _position_ids(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return builder.call_te(
        position_ids_te,
        call.args[0],
        str(call.attrs["kind"]),
        int(call.attrs["offset"]),
        int(call.attrs["padding_index"]),
        primfunc_name_hint="canonical_position_ids",
    )


def _linear(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    x, weight, bias = call.args
    transposed = builder.emit(relax.op.permute_dims(weight))
    return relax.op.add(builder.emit(relax.op.matmul(x, transposed)), bias)


def _patches(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return builder.call_te(
        patches_te,
        call.args[0],
        int(call.attrs["patch_height"]),
        int(call.attrs["patch_width"]),
        primfunc_name_hint="canonical_patches",
    )


def _prepend_tokens(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return builder.call_te(
        prepend_tokens_te, *call.args, primfunc_name_hint="canonical_prepend_tokens"
    )


def _attention(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    masked = len(call.args) > 3
    return builder.call_te(
        attention_te,
        *call.args,
        *(() if masked else (None,)),
        int(call.attrs["num_heads"]),
        float(call.attrs["scale"]),
        primfunc_name_hint="canonical_attention",
    )


def _layer_norm(_builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return relax.op.nn.layer_norm(*call.args, axes=-1, epsilon=float(call.attrs["epsilon"]))


def _gelu(_builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    if str(call.attrs["form"]) == "erf":
        return relax.op.nn.gelu(call.args[0])
    return relax.op.nn.gelu_tanh(call.args[0])


def _mean_pool(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return builder.call_te(mean_pool_te, *call.args, primfunc_name_hint="canonical_mean_pool")


def _select_token(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return builder.call_te(
        select_token_te,
        call.args[0],
        int(call.attrs["index"]),
        primfunc_name_hint="canonical_select_token",
    )


_LEGALIZE: dict[str, Callable[[relax.BlockBuilder, relax.Call], relax.Expr]] = {
    "canonical.embedding": _embedding,
    "canonical.position_ids": _position_ids,
    "canonical.patches": _patches,
    "canonical.prepend_tokens": _prepend_tokens,
    "canonical.add_positions": lambda _builder, call: relax.op.add(*call.args),
    "canonical.linear": _linear,
    "canonical.attention": _attention,
    "canonical.layer_norm": _layer_norm,
    "canonical.gelu": _gelu,
    "canonical.relu": lambda _builder, call: relax.op.nn.relu(call.args[0]),
    "canonical.tanh": lambda _builder, call: relax.op.tanh(call.args[0]),
    "canonical.add": lambda _builder, call: relax.op.add(*call.args),
    "canonical.mean_pool": _mean_pool,
    "canonical.select_token": _select_token,
}


def _register() -> None:
    for name, function in _LEGALIZE.items():
        tvm.ir.register_op_attr(name, "FLegalize", function)


_register()
