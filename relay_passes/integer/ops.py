"""Registration of the `integer.*` Relax operators: their arguments, attributes and types.

Every value is a plain integer tensor; batch and sequence length may be symbolic, channels are
static. "C" is the last axis. Arrays of constants are arguments (function parameters), scalars are
attributes (`ibert_tvm.relay_passes.integer.attrs`). ``name`` is an attribute of every operator.

| operator | arguments | further attributes | result |
| --- | --- | --- | --- |
| position_ids | input_ids[b,s] i32/i64 | kind, offset, padding_index | i32 [b,s] |
| embedding | ids[b,s] i32/i64, table[V,C] s8, multiplier[1 or V] s32 | shift | i32 [b,s,C]:
  ``requantise(table[id], multiplier[id], shift)`` |
| linear | x[...,K] s8 or u8, weight[N,K] s8, bias[N] s32 | | i32 [...,N]: ``x weight^T + bias``;
  x has value semantics (no hidden offset; its zero point is folded in the bias) |
| requantise | x s8/u8/s16/s32/s64, multiplier[1 or C] s32 | shift, zero_point, low, high, dtype |
  dtype, same shape: ``clamp(((x m + half) >> shift) + zero_point, low, high)`` |
| requantise_even | x s8/u8/s16/s32/s64, multiplier[1 or C] s32, shift[1 or C] s32 | split,
  zero_point, low, high, dtype | dtype, same shape: ``clamp(round_even(x m / 2^e) + zero_point)`` |
| requantise_short | x s8/u8/s16/s32, multiplier[1 or C] s16, pre_shift[1 or C] s32 | shift,
  zero_point, low, high, dtype | dtype, same shape:
  ``clamp(sat16(q15(sat16(x >> p), m) + z 2^shift + half) >> shift, low, high)`` |
| gelu | x s8/s16 | form="accurate", gelu_* of `AccurateGelu` | i16, same shape and scale |
| gelu | x s8/s16/s32, q_b[1 or C] s32, q_c[1 or C] s64, q_1[1 or C] s32, erf_shift[1 or C] s32
  (the arrays of `PaperGelu`) | form="paper" | i64, same shape, at the scales of `PaperGelu` |
| relu | x | | same type |
| tanh | x s8/s16/s32 | fraction_bits, exp_* of `BinaryExponential` | i32, scale 2^-fraction_bits |
| add | a, b s8/s16/s32, same shape | | i32: ``a + b``, both at the result's scale |
| add_short | a, b s8/s16/s32, same shape | low, high | i16: ``clamp(a + b, low, high)`` |
| layer_norm_short | x s8/s16/s32 [...,C], gain[C] s32, offset[C] s32 | shift, low, high, dtype,
  norm_* of `ShortLayerNorm` | dtype, same shape |
| layer_norm | x s8/s16/s32 [...,C], gain[C] s32, offset[C] s32 | shift, low, high, dtype, norm_* of
  `LayerNormConstants` | dtype, same shape |
| patches | pixel_values[b,c,H,W] s8/u8 | patch_height, patch_width | same type, [b,p,c*h*w] |
| prepend_tokens | x s8/s16/s32 [b,s,C], tokens[n,C] s32 | | i32 [b,n+s,C] |
| add_positions | x s8/s16/s32 [b,s,C], table[s,C] s32 | | i32 [b,s,C]: ``x + table``, s static |
| released_layer_norm | x s8/s16/s32 [...,C], offset[C] s64 | norm_* of `ReleasedLayerNorm` | i64,
  same shape, at the scale gamma sqrt(C) / 2^30 per channel |
| attention | q, k, v s8 [b,s,H*D], mask[b,s] i8/i32/i64 (0 = padding; may be left out: no token is
  padding), multiplier[1 or H*D] s32, s16 where softmax is "short" |
  num_heads, softmax, exponential, exp_* of it, shift, zero_point, low, high, dtype |
  dtype [b,s,H*D] |
| mean_pool | x s8/s16/s32 [b,s,C], mask[b,s] (may be left out) | fraction_bits |
  i32 [b,C], scale / 2^fraction_bits |
| select_token | x[b,s,C] | index | same dtype, [b,C] |
| split_channels | x[...,C] | index, parts | same dtype, [...,C/parts]: a run of channels |
| mask_tokens | x[b,s,C], mask[b,s] | | same type: 0 where the mask is 0 |

Operators of packed programs (`relay_passes.passes.pack_tokens`). There, a value [b,s,C] holds the
tokens that are kept in its first rows, counted over batch and sequence, and anything behind them.

| operator | arguments | further attributes | result |
| --- | --- | --- | --- |
| token_slots | mask[b,s] | selected | i32 [b,s]: the row of each token in packed values; -1 for one
  that is not kept, being masked and at no selected position |
| slot_tokens | slots[b,s] i32 | | i32 [b,s]: the token (counted over batch and sequence) in each
  row, 0 behind the last |
| slot_starts | slots[b,s] i32 | | i32 [b+1]: the first row of each sequence, and the number of rows
  in use |
| pack_tokens | x[b,s], tokens[b,s] i32 | | same type: the number of row r is that of token
  ``tokens[r]`` |

mean_pool, select_token and mask_tokens take a packed x if slots[b,s] i32 are their last operand;
attention takes packed q, k, v and mask, and packs its result, if starts[b+1] i32 are its last.

The meaning of each operator is a function of `relay_passes.spec`, used by NumPy evaluation
(`relay_passes.integer.evaluate`), by interval analysis (`relay_passes.integer.ranges`) and by the
emission of TIR.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm.ir
from tvm import relax
from tvm.ir import Op
from tvm.ir import op as _tvm_op
from tvm.sym import Analyzer

from ..errors import LoweringError
from . import attrs as _attrs

NARROW = ("int8", "int16", "int32")
MASK = ("int8", "int32", "int64")
INDEX = ("int32", "int64")


@dataclass(frozen=True)
class OpSpec:
    """One operator of the dialect.

    Parameters
    ----------
    attrs : type
        The dataclass of its attributes.
    arguments : tuple of str
        Names of the operands, in order (for a form with more operands see `infer`).
    infer : callable
        ``infer(call) -> relax.TensorType``.
    optional : tuple of str
        Operands that a call may leave out: the last of them alone, or all.
    """

    attrs: type[_attrs.OpAttrs]
    arguments: tuple[str, ...]
    infer: Callable[[relax.Call], relax.TensorType]
    optional: tuple[str, ...] = ()


def operator_name(expr: Any) -> str:
    """Return "integer.linear" and so on, or "" when `expr` is not a call of this dialect."""
    if isinstance(expr, relax.Call) and isinstance(expr.op, Op) and expr.op.name in SPECS:
        return str(expr.op.name)
    return ""


def is_integer_op(expr: Any) -> bool:
    """Tell whether `expr` is a call of an integer operator."""
    return operator_name(expr) != ""


def attributes(call: relax.Call) -> Any:
    """Return the attributes of an integer operator's call as its dataclass."""
    return SPECS[call.op.name].attrs.from_call(call)


def _refuse(call: relax.Call, what: str, why: str, todo: str) -> LoweringError:
    name = str(call.attrs["name"]) if call.attrs is not None else "<unnamed>"
    return LoweringError(what, f"{call.op.name} {name!r}", why, todo)


def _operand(
    call: relax.Call, index: int, label: str, dtypes: Sequence[str], rank: int | None = None
) -> tuple[list[Any], str]:
    """Dimensions and dtype of one operand, checked."""
    kind = call.args[index].ty
    if not isinstance(kind, relax.TensorType) or kind.shape is None:
        raise _refuse(
            call,
            f"operand {label} has no known shape ({kind})",
            "widths and kernels depend on shapes",
            "give the variable a TensorType with dimensions (symbolic ones serve)",
        )
    shape = list(kind.shape.values)
    dtype = str(kind.dtype)
    if dtype not in dtypes:
        raise _refuse(
            call,
            f"operand {label} is {dtype}",
            f"allowed: {', '.join(dtypes)}",
            "requantise or convert it first",
        )
    if rank is not None and len(shape) != rank:
        raise _refuse(
            call,
            f"operand {label} has {len(shape)} dimensions",
            f"{call.op.name} needs {rank}",
            "check which tensor was passed",
        )
    return shape, dtype


def _dim(extent: Any) -> str:
    """Show a dimension: its number, or the name of the symbolic variable."""
    return str(getattr(extent, "value", extent))


def _same(call: relax.Call, left: Any, right: Any, what: str) -> None:
    if not Analyzer().can_prove_equal(left, right):
        raise _refuse(
            call,
            f"{what} differ: {_dim(left)} and {_dim(right)}",
            "the operator combines values along them",
            "check which tensor was passed",
        )


def _channelwise(call: relax.Call, index: int, label: str, dtype: str, channels: Any) -> None:
    """Check an array of constants that has one entry, or one per channel."""
    shape, _ = _operand(call, index, label, (dtype,), 1)
    if int(shape[0]) != 1:
        _same(call, shape[0], channels, f"entries of {label} and channels")


def _count(call: relax.Call, expected: Sequence[str]) -> None:
    if len(call.args) != len(expected):
        raise _refuse(
            call,
            f"{call.op.name} got {len(call.args)} operands",
            f"it takes {len(expected)}: {', '.join(expected)}",
            "build the call with ibert_tvm.relay_passes.integer.build",
        )


def _infer_position_ids(call: relax.Call) -> relax.TensorType:
    shape, _ = _operand(call, 0, "input_ids", INDEX, 2)
    return relax.TensorType(shape, "int32")


def _infer_embedding(call: relax.Call) -> relax.TensorType:
    ids, _ = _operand(call, 0, "ids", INDEX, 2)
    table, _ = _operand(call, 1, "table", ("int8",), 2)
    _channelwise(call, 2, "multiplier", "int32", table[0])
    return relax.TensorType([*ids, table[1]], "int32")


def _infer_linear(call: relax.Call) -> relax.TensorType:
    x, _ = _operand(call, 0, "x", ("int8", "uint8"))
    weight, _ = _operand(call, 1, "weight", ("int8",), 2)
    bias, _ = _operand(call, 2, "bias", ("int32",), 1)
    _same(call, x[-1], weight[1], "contracted dimensions of x and weight")
    _same(call, weight[0], bias[0], "rows of weight and entries of bias")
    return relax.TensorType([*x[:-1], weight[0]], "int32")


def _infer_patches(call: relax.Call) -> relax.TensorType:
    (batch, channels, *image), dtype = _operand(call, 0, "pixel_values", ("int8", "uint8"), 4)
    patch = [int(call.attrs[f"patch_{side}"]) for side in ("height", "width")]
    counts = [
        int(extent) // size if size > 0 else 0 for extent, size in zip(image, patch, strict=True)
    ]
    if min(counts) < 1:
        raise _refuse(
            call,
            f"patches of {patch[0]} x {patch[1]} of images of {_dim(image[0])} x {_dim(image[1])}",
            "an image holds at least one whole patch",
            "set the patch size as the source model does",
        )
    width = int(channels) * patch[0] * patch[1]
    return relax.TensorType([batch, counts[0] * counts[1], width], dtype)


def _infer_prepend_tokens(call: relax.Call) -> relax.TensorType:
    x, _ = _operand(call, 0, "x", NARROW, 3)
    tokens, _ = _operand(call, 1, "tokens", ("int32",), 2)
    _same(call, x[-1], tokens[1], "channels of x and tokens")
    return relax.TensorType([x[0], x[1] + tokens[0], x[2]], "int32")


def _infer_add_positions(call: relax.Call) -> relax.TensorType:
    x, _ = _operand(call, 0, "x", NARROW, 3)
    table, _ = _operand(call, 1, "table", ("int32",), 2)
    for left, right in zip(x[1:], table, strict=True):
        _same(call, left, right, "tokens and channels of x and table")
    return relax.TensorType(x, "int32")


def _infer_requantise(call: relax.Call) -> relax.TensorType:
    x, _ = _operand(call, 0, "x", ("uint8", *NARROW, "int64"))
    _channelwise(call, 1, "multiplier", "int32", x[-1])
    return relax.TensorType(x, str(call.attrs["dtype"]))


def _infer_requantise_short(call: relax.Call) -> relax.TensorType:
    x, _ = _operand(call, 0, "x", ("uint8", *NARROW))
    _channelwise(call, 1, "multiplier", "int16", x[-1])
    _channelwise(call, 2, "pre_shift", "int32", x[-1])
    return relax.TensorType(x, str(call.attrs["dtype"]))


def _infer_requantise_even(call: relax.Call) -> relax.TensorType:
    x, _ = _operand(call, 0, "x", ("uint8", *NARROW, "int64"))
    for index, label in ((1, "multiplier"), (2, "shift")):
        _channelwise(call, index, label, "int32", x[-1])
    return relax.TensorType(x, str(call.attrs["dtype"]))


def _infer_gelu(call: relax.Call) -> relax.TensorType:
    if str(call.attrs["form"]) == "accurate":
        _count(call, ("x",))
        x, _ = _operand(call, 0, "x", ("int8", "int16"))
        return relax.TensorType(x, "int16")
    _count(call, ("x", "q_b", "q_c", "q_1", "erf_shift"))
    x, _ = _operand(call, 0, "x", NARROW)
    _channelwise(call, 1, "q_b", "int32", x[-1])
    _channelwise(call, 2, "q_c", "int64", x[-1])
    _channelwise(call, 3, "q_1", "int32", x[-1])
    _channelwise(call, 4, "erf_shift", "int32", x[-1])
    return relax.TensorType(x, "int64")


def _infer_relu(call: relax.Call) -> relax.TensorType:
    x, dtype = _operand(call, 0, "x", ("uint8", *NARROW))
    return relax.TensorType(x, dtype)


def _infer_tanh(call: relax.Call) -> relax.TensorType:
    x, _ = _operand(call, 0, "x", NARROW)
    return relax.TensorType(x, "int32")


def _infer_add(call: relax.Call) -> relax.TensorType:
    a, _ = _operand(call, 0, "a", NARROW)
    b, _ = _operand(call, 1, "b", NARROW, len(a))
    for left, right in zip(a, b, strict=True):
        _same(call, left, right, "shapes of a and b")
    return relax.TensorType(a, "int32")


def _infer_add_short(call: relax.Call) -> relax.TensorType:
    return relax.TensorType(list(_infer_add(call).shape.values), "int16")


def _infer_layer_norm(call: relax.Call) -> relax.TensorType:
    x, _ = _operand(call, 0, "x", NARROW)
    for index, label in ((1, "gain"), (2, "offset")):
        shape, _ = _operand(call, index, label, ("int32",), 1)
        _same(call, shape[0], x[-1], f"entries of {label} and channels")
    return relax.TensorType(x, str(call.attrs["dtype"]))


def _infer_released_layer_norm(call: relax.Call) -> relax.TensorType:
    x, _ = _operand(call, 0, "x", NARROW)
    offset, _ = _operand(call, 1, "offset", ("int64",), 1)
    _same(call, offset[0], x[-1], "entries of offset and channels")
    return relax.TensorType(x, "int64")


def _infer_attention(call: relax.Call) -> relax.TensorType:
    q, _ = _operand(call, 0, "q", ("int8",), 3)
    for index, label in ((1, "k"), (2, "v")):
        other, _ = _operand(call, index, label, ("int8",), 3)
        for left, right in zip(q, other, strict=True):
            _same(call, left, right, f"shapes of q and {label}")
    if len(call.args) > 4:
        mask, _ = _operand(call, 3, "mask", MASK, 2)
        for left, right in zip(q, mask, strict=False):
            _same(call, left, right, "batch and sequence of q and mask")
    multiplier = "int16" if str(call.attrs["softmax"]) == "short" else "int32"
    packed = len(call.args) > 5
    _channelwise(call, 4 if packed else len(call.args) - 1, "multiplier", multiplier, q[-1])
    if packed:
        _operand(call, 5, "starts", ("int32",), 1)
    heads = int(call.attrs["num_heads"])
    if heads < 1 or int(q[-1]) % heads:
        raise _refuse(
            call,
            f"{heads} heads do not divide {_dim(q[-1])} channels",
            "every head has the same number of channels",
            "set num_heads as the source model does",
        )
    return relax.TensorType(q, str(call.attrs["dtype"]))


def _infer_split_channels(call: relax.Call) -> relax.TensorType:
    x, dtype = _operand(call, 0, "x", ("uint8", *NARROW))
    parts = int(call.attrs["parts"])
    if int(x[-1]) % parts:
        raise _refuse(
            call,
            f"{parts} parts do not divide {_dim(x[-1])} channels",
            "every part has the same number of channels",
            "merge layers of equal width only",
        )
    return relax.TensorType([*x[:-1], int(x[-1]) // parts], dtype)


def _infer_mean_pool(call: relax.Call) -> relax.TensorType:
    x, _ = _operand(call, 0, "x", NARROW, 3)
    if len(call.args) > 1:
        mask, _ = _operand(call, 1, "mask", MASK, 2)
        for left, right in zip(x, mask, strict=False):
            _same(call, left, right, "batch and sequence of x and mask")
    if len(call.args) > 2:
        _per_token(call, 2, "slots", ("int32",), x)
    return relax.TensorType([x[0], x[2]], "int32")


def _infer_select_token(call: relax.Call) -> relax.TensorType:
    x, dtype = _operand(call, 0, "x", ("uint8", *NARROW), 3)
    if len(call.args) > 1:
        _per_token(call, 1, "slots", ("int32",), x)
    return relax.TensorType([x[0], x[2]], dtype)


def _per_token(
    call: relax.Call, index: int, label: str, dtypes: Sequence[str], tokens: Sequence[Any]
) -> None:
    """Check an operand with one entry per token, [batch, sequence]."""
    shape, _ = _operand(call, index, label, dtypes, 2)
    for left, right in zip(tokens, shape, strict=False):
        _same(call, left, right, f"batch and sequence of the values and {label}")


def _infer_mask_tokens(call: relax.Call) -> relax.TensorType:
    x, dtype = _operand(call, 0, "x", ("uint8", *NARROW), 3)
    _per_token(call, 1, "mask", MASK, x)
    if len(call.args) > 2:
        _per_token(call, 2, "slots", ("int32",), x)
    return relax.TensorType(x, dtype)


def _infer_token_slots(call: relax.Call) -> relax.TensorType:
    mask, _ = _operand(call, 0, "mask", MASK, 2)
    return relax.TensorType(mask, "int32")


def _infer_slot_tokens(call: relax.Call) -> relax.TensorType:
    slots, dtype = _operand(call, 0, "slots", ("int32",), 2)
    return relax.TensorType(slots, dtype)


def _infer_slot_starts(call: relax.Call) -> relax.TensorType:
    slots, dtype = _operand(call, 0, "slots", ("int32",), 2)
    return relax.TensorType([slots[0] + 1], dtype)


def _infer_pack_tokens(call: relax.Call) -> relax.TensorType:
    x, dtype = _operand(call, 0, "x", (*NARROW, "int64"), 2)
    _per_token(call, 1, "tokens", ("int32",), x)
    return relax.TensorType(x, dtype)


SPECS: dict[str, OpSpec] = {
    spec.attrs.OP: spec
    for spec in (
        OpSpec(_attrs.PositionIdsAttrs, ("input_ids",), _infer_position_ids),
        OpSpec(_attrs.EmbeddingAttrs, ("ids", "table", "multiplier"), _infer_embedding),
        OpSpec(_attrs.LinearAttrs, ("x", "weight", "bias"), _infer_linear),
        OpSpec(_attrs.RequantiseAttrs, ("x", "multiplier"), _infer_requantise),
        OpSpec(
            _attrs.RequantiseShortAttrs, ("x", "multiplier", "pre_shift"), _infer_requantise_short
        ),
        OpSpec(_attrs.RequantiseEvenAttrs, ("x", "multiplier", "shift"), _infer_requantise_even),
        OpSpec(_attrs.GeluAttrs, ("x",), _infer_gelu),
        OpSpec(_attrs.ReluAttrs, ("x",), _infer_relu),
        OpSpec(_attrs.TanhAttrs, ("x",), _infer_tanh),
        OpSpec(_attrs.AddAttrs, ("a", "b"), _infer_add),
        OpSpec(_attrs.AddShortAttrs, ("a", "b"), _infer_add_short),
        OpSpec(_attrs.ShortLayerNormAttrs, ("x", "gain", "offset"), _infer_layer_norm),
        OpSpec(_attrs.LayerNormAttrs, ("x", "gain", "offset"), _infer_layer_norm),
        OpSpec(_attrs.ReleasedLayerNormAttrs, ("x", "offset"), _infer_released_layer_norm),
        OpSpec(
            _attrs.AttentionAttrs,
            ("q", "k", "v", "mask", "multiplier", "starts"),
            _infer_attention,
            ("mask", "starts"),
        ),
        OpSpec(_attrs.MeanPoolAttrs, ("x", "mask", "slots"), _infer_mean_pool, ("mask", "slots")),
        OpSpec(_attrs.PatchesAttrs, ("pixel_values",), _infer_patches),
        OpSpec(_attrs.PrependTokensAttrs, ("x", "tokens"), _infer_prepend_tokens),
        OpSpec(_attrs.AddPositionsAttrs, ("x", "table"), _infer_add_positions),
        OpSpec(_attrs.SplitChannelsAttrs, ("x",), _infer_split_channels),
        OpSpec(_attrs.SelectTokenAttrs, ("x", "slots"), _infer_select_token, ("slots",)),
        OpSpec(_attrs.MaskTokensAttrs, ("x", "mask", "slots"), _infer_mask_tokens, ("slots",)),
        OpSpec(_attrs.TokenSlotsAttrs, ("mask",), _infer_token_slots),
        OpSpec(_attrs.SlotTokensAttrs, ("slots",), _infer_slot_tokens),
        OpSpec(_attrs.SlotStartsAttrs, ("slots",), _infer_slot_starts),
        OpSpec(_attrs.PackTokensAttrs, ("x", "tokens"), _infer_pack_tokens),
    )
}


def infer_type(call: relax.Call) -> relax.TensorType:
    """Type of an integer operator's call.

    Parameters
    ----------
    call : relax.Call
        A call whose operands have types.

    Returns
    -------
    relax.TensorType

    Raises
    ------
    LoweringError
        If an operand's shape or dtype is not what the operator takes.
    """
    spec = SPECS[call.op.name]
    left_out = 0 < len(spec.arguments) - len(call.args) <= len(spec.optional)
    # The operands of a GELU depend on its form.
    if spec.attrs is not _attrs.GeluAttrs and not left_out:
        _count(call, spec.arguments)
    return spec.infer(call)


def _register(name: str, spec: OpSpec) -> None:
    def infer(call: relax.Call, _builder: relax.BlockBuilder) -> relax.TensorType:
        return infer_type(call)

    _tvm_op._ffi_api.RegisterOp(name, spec.attrs.__doc__ or name)
    tvm.ir.register_op_attr(name, "FInferType", infer)
    tvm.ir.register_op_attr(name, "FPurity", True)


for _name, _spec in SPECS.items():
    _register(_name, _spec)
