"""Emission of the operators that pack the tokens of a padded batch, and of masked outputs."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx
from tvm.script import from_source

from ..integer.attrs import MaskTokensAttrs, PackTokensAttrs, TokenSlotsAttrs
from ..spec.values import Ranged
from .context import KernelContext
from .stage import Stage, define

# Running counts: what one iteration writes depends on the one before, so these are loops as they
# are, in one block that nothing schedules. They go over one number per token.
_SLOTS = """
@T.prim_func(s_tir=True)
def main(mask: T.Buffer(({batch}, {seq_len}), "{dtype}"),
         slots: T.Buffer(({batch}, {seq_len}), "int32")):
    T.func_attr({{"tirx.noalias": True}})
    with T.sblock("root"):
        with T.sblock("slots"):
            T.reads(mask[0:{batch}, 0:{seq_len}])
            T.writes(slots[0:{batch}, 0:{seq_len}])
            count = T.sblock_alloc_buffer((1,), "int32")
            count[0] = 0
            for b in range({batch}):
                for s in range({seq_len}):
                    if mask[b, s] != 0{selected}:
                        slots[b, s] = count[0]
                        count[0] = count[0] + 1
                    else:
                        slots[b, s] = -1
"""

_TOKENS = """
@T.prim_func(s_tir=True)
def main(slots: T.Buffer(({batch}, {seq_len}), "int32"),
         tokens: T.Buffer(({batch}, {seq_len}), "int32")):
    T.func_attr({{"tirx.noalias": True}})
    with T.sblock("root"):
        with T.sblock("tokens"):
            T.reads(slots[0:{batch}, 0:{seq_len}])
            T.writes(tokens[0:{batch}, 0:{seq_len}])
            for b in range({batch}):
                for s in range({seq_len}):
                    tokens[b, s] = 0
            for b in range({batch}):
                for s in range({seq_len}):
                    row = slots[b, s]
                    if row >= 0:
                        tokens[row // {seq_len}, row % {seq_len}] = b * {seq_len} + s
"""

_STARTS = """
@T.prim_func(s_tir=True)
def main(slots: T.Buffer(({batch}, {seq_len}), "int32"),
         starts: T.Buffer(({batch} + 1,), "int32")):
    T.func_attr({{"tirx.noalias": True}})
    with T.sblock("root"):
        with T.sblock("starts"):
            T.reads(slots[0:{batch}, 0:{seq_len}])
            T.writes(starts[0:{batch} + 1])
            count = T.sblock_alloc_buffer((1,), "int32")
            count[0] = 0
            for b in range({batch}):
                starts[b] = count[0]
                for s in range({seq_len}):
                    count[0] = count[0] + T.Select(slots[b, s] >= 0, 1, 0)
            starts[{batch}] = count[0]
"""


def emit_token_slots(attrs: TokenSlotsAttrs, batch: int, seq_len: int, dtype: str) -> tirx.PrimFunc:
    """`integer.token_slots`: count the tokens that are kept."""
    selected = "".join(f" or s == {position}" for position in attrs.positions)
    return from_source(_SLOTS.format(batch=batch, seq_len=seq_len, dtype=dtype, selected=selected))


def emit_slot_tokens(_attrs: Any, batch: int, seq_len: int, _dtype: str) -> tirx.PrimFunc:
    """`integer.slot_tokens`: the inverse of the slots."""
    return from_source(_TOKENS.format(batch=batch, seq_len=seq_len))


def emit_slot_starts(_attrs: Any, batch: int, seq_len: int, _dtype: str) -> tirx.PrimFunc:
    """`integer.slot_starts`: the first row of each sequence, and the number of rows in use."""
    return from_source(_STARTS.format(batch=batch, seq_len=seq_len))


def row_of_token(slots: tuple[Stage, ...], seq_len: int, batch: Any, token: Any) -> tirx.Expr:
    """Row that holds a token: its own, or in a packed value (with slots) that of its slot.

    For a token that was not kept this is row 0: the reader must not use what it finds there.
    """
    if not slots:
        return batch * seq_len + token
    return tirx.max(slots[0].tensor(batch, token), tirx.const(0, "int32"))


def emit_pack_tokens(
    context: KernelContext, attrs: PackTokensAttrs, x: Stage, tokens: Stage
) -> Stage:
    """`integer.pack_tokens`: ids, positions or the mask, [batch, seq_len]."""
    seq_len = context.seq_len

    def entry(batch: tirx.Var, token: tirx.Var) -> Ranged:
        source = tokens.tensor(batch, token)
        return x[source // seq_len, source % seq_len]

    return define("packed", x.shape, entry, str(x.tensor.dtype))


def emit_mask_tokens(
    context: KernelContext, attrs: MaskTokensAttrs, x: Stage, mask: Stage, *slots: Stage
) -> Stage:
    """`integer.mask_tokens`: tokens in place, 0 where the mask is; with slots, x is packed."""
    seq_len, dtype = context.seq_len, str(x.tensor.dtype)

    def entry(row: tirx.Var, channel: tirx.Var) -> Ranged:
        batch, token = row // seq_len, row % seq_len
        found = x.tensor(row_of_token(slots, seq_len, batch, token), channel)
        kept = tirx.Select(mask.tensor(batch, token) != 0, found, tirx.const(0, dtype))
        return x.value(min(x.low, 0), max(x.high, 0), kept)

    return define("masked", x.shape, entry, dtype)


def row_count_argument(context: KernelContext) -> te.Tensor:
    """Parameter that tells a kernel on packed tokens how many rows hold one: `slot_starts`."""
    return te.placeholder((context.batch + 1,), "int32", name="starts")
