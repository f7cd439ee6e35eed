"""Builders of canonical calls: plain functions that return a `relax.Call`.

A frontend or a test emits what these return with a `relax.BlockBuilder`. Shapes: B batch, S
sequence length, C channels; float32 unless stated.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from . import ops  # noqa: F401 (registers the operators)


def _call(op: str, args: list[relax.Expr], **attrs: Any) -> relax.Call:
    return relax.Call(tvm.ir.Op.get(op), args, tvm.ir.make_node("ir.DictAttrs", **attrs))


def embedding(table: relax.Expr, ids: relax.Expr, *, name: str) -> relax.Call:
    """Rows of `table` [V, C] at `ids` [B, S] int64: [B, S, C]."""
    return _call("canonical.embedding", [table, ids], name=name)


def position_ids(
    input_ids: relax.Expr,
    *,
    name: str,
    kind: str = "absolute",
    offset: int = 0,
    padding_index: int = 0,
) -> relax.Call:
    """Positions [B, S] int64 of `input_ids` [B, S].

    Parameters
    ----------
    input_ids : relax.Expr
        Token ids [B, S] int64.
    name : str
        Canonical name of the value.
    kind : {"absolute", "roberta"}
        ``absolute``: offset, offset + 1, ... in every row. ``roberta``:
        cumsum(id != padding_index) * (id != padding_index) + padding_index.
    offset : int
        First position, kind ``absolute`` only.
    padding_index : int
        Id of the padding token, kind ``roberta`` only.

    Returns
    -------
    relax.Call
        The call.
    """
    return _call(
        "canonical.position_ids",
        [input_ids],
        name=name,
        kind=kind,
        offset=int(offset),
        padding_index=int(padding_index),
    )


def patches(
    pixel_values: relax.Expr, *, name: str, patch_height: int, patch_width: int
) -> relax.Call:
    """Cut images [B, channels, H, W] into patches: [B, patches, channels * height * width].

    Patches come row by row; within one, channels are outermost and columns innermost, which is the
    order of a convolution's weights. Rows and columns that fill no whole patch are left out.
    """
    return _call(
        "canonical.patches",
        [pixel_values],
        name=name,
        patch_height=int(patch_height),
        patch_width=int(patch_width),
    )


def prepend_tokens(x: relax.Expr, tokens: relax.Expr, *, name: str) -> relax.Call:
    """Put the rows `tokens` [N, C] before every sequence of x [B, S, C]: [B, N + S, C]."""
    return _call("canonical.prepend_tokens", [x, tokens], name=name)


def add_positions(x: relax.Expr, table: relax.Expr, *, name: str) -> relax.Call:
    """Add row s of `table` [S, C] to token s of x [B, S, C], whose length is static."""
    return _call("canonical.add_positions", [x, table], name=name)


def linear(x: relax.Expr, weight: relax.Expr, bias: relax.Expr, *, name: str) -> relax.Call:
    """``x W^T + b`` for x [..., K], `weight` [N, K], `bias` [N]: [..., N]."""
    return _call("canonical.linear", [x, weight, bias], name=name)


def attention(
    q: relax.Expr,
    k: relax.Expr,
    v: relax.Expr,
    attention_mask: relax.Expr | None = None,
    *,
    name: str,
    num_heads: int,
    scale: float,
) -> relax.Call:
    """Multi-head attention of q, k, v [B, S, H*D] under a padding mask [B, S] int64: [B, S, H*D].

    Keys whose mask is 0 weigh exactly 0; a row without any key gives 0. Without a mask every token
    is a key of its sequence.
    """
    return _call(
        "canonical.attention",
        [q, k, v, *([] if attention_mask is None else [attention_mask])],
        name=name,
        num_heads=int(num_heads),
        scale=float(scale),
    )


def layer_norm(
    x: relax.Expr, gamma: relax.Expr, beta: relax.Expr, *, name: str, epsilon: float
) -> relax.Call:
    """Layer normalisation of x [..., C] over its last axis with `gamma`, `beta` [C]."""
    return _call("canonical.layer_norm", [x, gamma, beta], name=name, epsilon=float(epsilon))


def gelu(x: relax.Expr, *, name: str, form: str = "erf") -> relax.Call:
    """GELU, elementwise; `form` is ``erf`` (exact) or ``tanh`` (the approximation)."""
    return _call("canonical.gelu", [x], name=name, form=form)


def relu(x: relax.Expr, *, name: str) -> relax.Call:
    """``max(x, 0)``, elementwise."""
    return _call("canonical.relu", [x], name=name)


def tanh(x: relax.Expr, *, name: str) -> relax.Call:
    """Hyperbolic tangent, elementwise."""
    return _call("canonical.tanh", [x], name=name)


def add(a: relax.Expr, b: relax.Expr, *, name: str) -> relax.Call:
    """Sum of two values of one shape."""
    return _call("canonical.add", [a, b], name=name)


def mean_pool(x: relax.Expr, attention_mask: relax.Expr | None = None, *, name: str) -> relax.Call:
    """Mean of x [B, S, C] over the tokens whose mask is not 0: [B, C]; 0 for an empty row.

    Without a mask it is the mean over all tokens.
    """
    mask = [] if attention_mask is None else [attention_mask]
    return _call("canonical.mean_pool", [x, *mask], name=name)


def select_token(x: relax.Expr, *, name: str, index: int = 0) -> relax.Call:
    """Token `index` of x [B, S, C]: [B, C]."""
    return _call("canonical.select_token", [x], name=name, index=int(index))
