"""Builders of integer operator calls: ``relax.Call`` values, to be emitted by a BlockBuilder.

Arguments, attributes and result types are in the table of `ibert_tvm.relay_passes.integer.ops`; the
attributes are described in `relay_passes.integer.attrs`. A wrong operand is refused here, with a
LoweringError, when all operands have types (variables and emitted values have), and otherwise when
the block builder infers the type of the call.
"""

from __future__ import annotations

from tvm import relax
from tvm.ir import Op

from ..spec.exponential import BinaryExponential, Exponential
from ..spec.gelu import AccurateGelu
from ..spec.layer_norm import LayerNormConstants
from ..spec.released import ReleasedLayerNorm
from ..spec.short_layer_norm import ShortLayerNorm
from ..spec.short_softmax import ShortExponential
from . import attrs as _attrs
from . import ops as _ops


def _call(attrs: _attrs.OpAttrs, *arguments: relax.Expr) -> relax.Call:
    call = relax.Call(Op.get(attrs.OP), list(arguments), attrs.to_attrs())
    if all(isinstance(argument.ty, relax.TensorType) for argument in arguments):
        # An exception that crosses TVM's C++ comes back as a RuntimeError: check on this side.
        _ops.infer_type(call)
    return call


def position_ids(
    input_ids: relax.Expr,
    *,
    name: str,
    kind: str = "absolute",
    offset: int = 0,
    padding_index: int = 0,
) -> relax.Call:
    """Positions of the tokens, int32 [batch, seq]; see `PositionIdsAttrs`."""
    return _call(_attrs.PositionIdsAttrs(name, kind, offset, padding_index), input_ids)


def embedding(
    ids: relax.Expr, table: relax.Expr, multiplier: relax.Expr, *, name: str, shift: int
) -> relax.Call:
    """Rows of an int8 table, requantised by their own multiplier to int32 [batch, seq, C]."""
    return _call(_attrs.EmbeddingAttrs(name, shift), ids, table, multiplier)


def linear(x: relax.Expr, weight: relax.Expr, bias: relax.Expr, *, name: str) -> relax.Call:
    """``x weight^T + bias``: int8 or uint8 x int8 to int32."""
    return _call(_attrs.LinearAttrs(name), x, weight, bias)


def requantise(
    x: relax.Expr,
    multiplier: relax.Expr,
    *,
    name: str,
    shift: int,
    low: int,
    high: int,
    dtype: str,
    zero_point: int = 0,
) -> relax.Call:
    """``clamp(round_half_up(x m / 2^shift) + zero_point, low, high)`` as `dtype`."""
    return _call(_attrs.RequantiseAttrs(name, shift, low, high, dtype, zero_point), x, multiplier)


def requantise_short(
    x: relax.Expr,
    multiplier: relax.Expr,
    pre_shift: relax.Expr,
    *,
    name: str,
    shift: int,
    low: int,
    high: int,
    dtype: str,
    zero_point: int = 0,
) -> relax.Call:
    """Requantise in 16-bit arithmetic; see `ibert_tvm.relay_passes.spec.short_requantise`."""
    attrs = _attrs.RequantiseShortAttrs(name, shift, low, high, dtype, zero_point)
    return _call(attrs, x, multiplier, pre_shift)


def requantise_even(
    x: relax.Expr,
    multiplier: relax.Expr,
    shift: relax.Expr,
    *,
    name: str,
    split: int,
    low: int,
    high: int,
    dtype: str,
    zero_point: int = 0,
) -> relax.Call:
    """``clamp(round_half_even(x m / 2^e) + zero_point, low, high)`` as `dtype`, e per channel."""
    attrs = _attrs.RequantiseEvenAttrs(name, split, low, high, dtype, zero_point)
    return _call(attrs, x, multiplier, shift)


def gelu(x: relax.Expr, constants: AccurateGelu, *, name: str) -> relax.Call:
    """Accurate i-GELU of a value at one scale; the result has the same scale, int16."""
    return _call(_attrs.GeluAttrs(name, constants), x)


def gelu_paper(
    x: relax.Expr,
    q_b: relax.Expr,
    q_c: relax.Expr,
    q_1: relax.Expr,
    erf_shift: relax.Expr,
    *,
    name: str,
) -> relax.Call:
    """Build the published i-GELU; the operands are the arrays of `PaperGelu`; int64."""
    return _call(_attrs.GeluAttrs(name, None), x, q_b, q_c, q_1, erf_shift)


def relu(x: relax.Expr, *, name: str) -> relax.Call:
    """``max(x, 0)``, same type."""
    return _call(_attrs.ReluAttrs(name), x)


def tanh(
    x: relax.Expr, exponential: BinaryExponential, *, name: str, fraction_bits: int = 15
) -> relax.Call:
    """i-tanh, int32 at scale 2^-fraction_bits."""
    return _call(_attrs.TanhAttrs(name, exponential, fraction_bits), x)


def add(a: relax.Expr, b: relax.Expr, *, name: str) -> relax.Call:
    """Build ``a + b`` as int32; both operands already have the result's scale."""
    return _call(_attrs.AddAttrs(name), a, b)


def add_short(a: relax.Expr, b: relax.Expr, *, name: str, low: int, high: int) -> relax.Call:
    """``clamp(a + b, low, high)`` as int16; both operands already have the result's scale."""
    return _call(_attrs.AddShortAttrs(name, low, high), a, b)


def layer_norm_short(
    x: relax.Expr,
    gain: relax.Expr,
    offset: relax.Expr,
    constants: ShortLayerNorm,
    *,
    name: str,
    shift: int,
    low: int,
    high: int,
    dtype: str,
) -> relax.Call:
    """i-layer-norm of a 15-bit input over the last axis, without 64-bit products per entry."""
    attrs = _attrs.ShortLayerNormAttrs(name, constants, shift, low, high, dtype)
    return _call(attrs, x, gain, offset)


def layer_norm(
    x: relax.Expr,
    gain: relax.Expr,
    offset: relax.Expr,
    constants: LayerNormConstants,
    *,
    name: str,
    shift: int,
    low: int,
    high: int,
    dtype: str,
) -> relax.Call:
    """i-layer-norm over the last axis: ``clamp((n gain + offset + half) >> shift, low, high)``."""
    attrs = _attrs.LayerNormAttrs(name, constants, shift, low, high, dtype)
    return _call(attrs, x, gain, offset)


def released_layer_norm(
    x: relax.Expr, offset: relax.Expr, constants: ReleasedLayerNorm, *, name: str
) -> relax.Call:
    """Released i-layer-norm over the last axis, int64, at a scale per channel."""
    return _call(_attrs.ReleasedLayerNormAttrs(name, constants), x, offset)


def attention(
    q: relax.Expr,
    k: relax.Expr,
    v: relax.Expr,
    mask: relax.Expr | None,
    multiplier: relax.Expr,
    *,
    name: str,
    num_heads: int,
    softmax: str,
    exponential: Exponential | ShortExponential,
    shift: int,
    low: int,
    high: int,
    dtype: str = "int8",
    zero_point: int = 0,
    starts: relax.Expr | None = None,
) -> relax.Call:
    """Integer attention of all heads, masked or not, requantised; see `AttentionAttrs`.

    All values per token are packed if `starts` are given; the mask must be, then.
    """
    attrs = _attrs.AttentionAttrs(
        name, num_heads, softmax, exponential, shift, low, high, dtype, zero_point
    )
    first, last = [] if mask is None else [mask], [] if starts is None else [starts]
    return _call(attrs, q, k, v, *first, multiplier, *last)


def mean_pool(
    x: relax.Expr,
    mask: relax.Expr | None = None,
    slots: relax.Expr | None = None,
    *,
    name: str,
    fraction_bits: int = 0,
) -> relax.Call:
    """Mean over the unmasked positions, int32 [batch, C] with extra fraction bits.

    x is packed if `slots` are given; the mask must be, then.
    """
    optional = [operand for operand in (mask, slots) if operand is not None]
    return _call(_attrs.MeanPoolAttrs(name, fraction_bits), x, *optional)


def patches(
    pixel_values: relax.Expr, *, name: str, patch_height: int, patch_width: int
) -> relax.Call:
    """Cut 8-bit images [batch, channels, H, W] into patches [batch, patches, channels * h * w]."""
    return _call(_attrs.PatchesAttrs(name, patch_height, patch_width), pixel_values)


def prepend_tokens(x: relax.Expr, tokens: relax.Expr, *, name: str) -> relax.Call:
    """Put the rows `tokens` before every sequence; both at one scale, int32."""
    return _call(_attrs.PrependTokensAttrs(name), x, tokens)


def add_positions(x: relax.Expr, table: relax.Expr, *, name: str) -> relax.Call:
    """Add row s of `table` to token s of every sequence; both at one scale, int32."""
    return _call(_attrs.AddPositionsAttrs(name), x, table)


def select_token(
    x: relax.Expr, slots: relax.Expr | None = None, *, name: str, index: int = 0
) -> relax.Call:
    """Take the token at one position, [batch, C], same dtype; x is packed if `slots` are given."""
    attrs = _attrs.SelectTokenAttrs(name, index)
    return _call(attrs, x, *([] if slots is None else [slots]))


def mask_tokens(
    x: relax.Expr, mask: relax.Expr, slots: relax.Expr | None = None, *, name: str
) -> relax.Call:
    """Set the values of padding to 0, [batch, seq, C]; x is packed if `slots` are given."""
    attrs = _attrs.MaskTokensAttrs(name)
    return _call(attrs, x, mask, *([] if slots is None else [slots]))


def token_slots(mask: relax.Expr, *, name: str, selected: tuple[int, ...] = ()) -> relax.Call:
    """Find the row of each token in packed values, -1 for dropped ones; see `TokenSlotsAttrs`."""
    return _call(_attrs.TokenSlotsAttrs(name, ",".join(map(str, selected))), mask)


def slot_tokens(slots: relax.Expr, *, name: str) -> relax.Call:
    """Find the token in each row of packed values; 0 in rows without one."""
    return _call(_attrs.SlotTokensAttrs(name), slots)


def slot_starts(slots: relax.Expr, *, name: str) -> relax.Call:
    """Find the first row of each sequence in packed values; the last entry counts all rows."""
    return _call(_attrs.SlotStartsAttrs(name), slots)


def pack_tokens(x: relax.Expr, tokens: relax.Expr, *, name: str) -> relax.Call:
    """Move ids, positions or a mask, [batch, seq], to the rows of packed values."""
    return _call(_attrs.PackTokensAttrs(name), x, tokens)


def split_channels(x: relax.Expr, *, name: str, index: int, parts: int) -> relax.Call:
    """Run number `index` of `parts` equal runs of channels, same dtype."""
    return _call(_attrs.SplitChannelsAttrs(name, index, parts), x)
