"""Evaluate an integer module with NumPy: the reference that compiled code equals bit for bit.

Every operator calls the functions of `relay_passes.spec` on int64 arrays, for any batch and
sequence length. Matrix products of small integers go through floating-point BLAS, because NumPy
has no fast integer product. That is exact where ``K max|a| max|b|`` is below 2^24 (float32) or 2^53
(float64): every product and every partial sum, in any order and with or without fused
multiply-add, is then an integer that the type represents. Beyond that the product is int64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, overload

import numpy as np
from tvm import IRModule, relax

from ..errors import LoweringError, RangeError
from ..spec import gelu, layer_norm, pooling, short_layer_norm, short_softmax, softmax
from ..spec.fixed_point import requantise, requantise_clamped
from ..spec.released import layer_norm as released_norm
from ..spec.released import requantise_even
from ..spec.short_requantise import requantise_short, saturating_sum
from ..spec.tanh import i_tanh
from ..spec.values import not_equal
from .attrs import dtype_bounds
from .program import Step, read_program

Arrays = Mapping[str, np.ndarray]


def exact_matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """``a @ b`` of integer arrays, exactly.

    Parameters
    ----------
    a, b : numpy.ndarray
        Integers [..., M, K] and [..., K, N].

    Returns
    -------
    numpy.ndarray
        int64 [..., M, N].

    Raises
    ------
    RangeError
        If the bound ``K max|a| max|b|`` does not fit int64.
    """
    if a.size == 0 or b.size == 0:
        return a.astype(np.int64) @ b.astype(np.int64)
    bound = a.shape[-1] * _largest(a) * _largest(b)
    if bound >= 2**63:
        raise RangeError(
            "a matrix product may not fit int64",
            why=f"its elements are bounded by {bound}",
            todo="use narrower operands",
        )
    if bound >= 2**53:
        return a.astype(np.int64) @ b.astype(np.int64)
    real = np.float32 if bound < 2**24 else np.float64
    if a.ndim > 2:  # transposed stacks of matrices would not reach BLAS
        a, b = np.ascontiguousarray(a, real), np.ascontiguousarray(b, real)
    return (a.astype(real, copy=False) @ b.astype(real, copy=False)).astype(np.int64)


def _largest(a: np.ndarray) -> int:
    return max(int(a.max()), -int(a.min()))


def _wide(a: np.ndarray) -> np.ndarray:
    return a.astype(np.int64)


def _position_ids(attrs: Any, ids: np.ndarray) -> np.ndarray:
    if attrs.kind == "absolute":
        row = attrs.offset + np.arange(ids.shape[1], dtype=np.int64)
        return np.broadcast_to(row, ids.shape)
    real = (ids != attrs.padding_index).astype(np.int64)
    return np.cumsum(real, axis=1) * real + attrs.padding_index


def _embedding(attrs: Any, ids: np.ndarray, table: np.ndarray, multiplier: np.ndarray) -> Any:
    if ids.size and not (ids.min() >= 0 and ids.max() < table.shape[0]):
        raise RangeError(
            f"ids in [{ids.min()}, {ids.max()}]",
            attrs.name,
            f"the table has {table.shape[0]} rows",
            "use the tokenizer of this model, and no more tokens than it has positions",
        )
    rows = _wide(multiplier)
    factor = rows[ids][..., None] if rows.size > 1 else rows
    return requantise(_wide(table[ids]), factor, attrs.shift)


def _linear(_attrs: Any, x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    rows = exact_matmul(x.reshape(-1, x.shape[-1]), weight.T)
    return (rows + _wide(bias)).reshape(*x.shape[:-1], weight.shape[0])


def _patches(attrs: Any, pixels: np.ndarray) -> np.ndarray:
    batch, channels, height, width = pixels.shape
    down, across = height // attrs.patch_height, width // attrs.patch_width
    whole = pixels[:, :, : down * attrs.patch_height, : across * attrs.patch_width]
    cut = whole.reshape(batch, channels, down, attrs.patch_height, across, attrs.patch_width)
    return cut.transpose(0, 2, 4, 1, 3, 5).reshape(batch, down * across, -1)


def _prepend_tokens(_attrs: Any, x: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    return np.concatenate([np.broadcast_to(tokens, (x.shape[0], *tokens.shape)), x], axis=1)


def _requantise(attrs: Any, x: np.ndarray, multiplier: np.ndarray) -> Any:
    return requantise_clamped(
        _wide(x), _wide(multiplier), attrs.shift, attrs.zero_point, attrs.low, attrs.high
    )


def _requantise_even(attrs: Any, x: np.ndarray, multiplier: np.ndarray, shift: np.ndarray) -> Any:
    a = attrs
    factors = _wide(multiplier), _wide(shift)
    return requantise_even(_wide(x), *factors, a.split, a.zero_point, a.low, a.high)


def _requantise_short(
    attrs: Any, x: np.ndarray, multiplier: np.ndarray, pre_shift: np.ndarray
) -> Any:
    a = attrs
    factors = _wide(multiplier), _wide(pre_shift)
    return requantise_short(_wide(x), *factors, a.shift, a.zero_point, a.low, a.high)


def _gelu(attrs: Any, x: np.ndarray, *constants: np.ndarray) -> Any:
    if attrs.constants is not None:
        return gelu.gelu_accurate(_wide(x), attrs.constants)
    return gelu.gelu_paper(_wide(x), *(_wide(constant) for constant in constants))


def _relu(_attrs: Any, x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


def _tanh(attrs: Any, x: np.ndarray) -> Any:
    return i_tanh(_wide(x), attrs.exponential, attrs.fraction_bits)


def _add(_attrs: Any, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return _wide(a) + _wide(b)


def _add_short(attrs: Any, a: np.ndarray, b: np.ndarray) -> Any:
    return saturating_sum(_wide(a), _wide(b), attrs.low, attrs.high)


def _layer_norm_short(attrs: Any, x: np.ndarray, gain: np.ndarray, offset: np.ndarray) -> Any:
    norm, k = short_layer_norm, attrs.constants
    y = norm.bounded(_wide(x))
    d = norm.deviation(y, norm.mean_of(y.sum(axis=-1, keepdims=True), x.shape[-1]))
    total = norm.square(d).sum(axis=-1, keepdims=True)
    root = norm.root(total, norm.root_half_bits(total, k), k)
    bits = norm.root_bits(root, k)
    factors = bits, norm.reciprocal(root, bits), _wide(gain), _wide(offset)
    return norm.normalise(d, *factors, k, attrs.shift, attrs.low, attrs.high)


def _layer_norm(attrs: Any, x: np.ndarray, gain: np.ndarray, offset: np.ndarray) -> Any:
    k = attrs.constants
    y = layer_norm.bounded(_wide(x), k)
    mean = layer_norm.mean_of(y.sum(axis=-1, keepdims=True), x.shape[-1])
    d = layer_norm.deviation(y, mean)
    total = layer_norm.square(d).sum(axis=-1, keepdims=True)
    reciprocal = layer_norm.inverse_std(total, layer_norm.root_half_bits(total, k), k)
    return layer_norm.normalise(
        d, reciprocal, _wide(gain), _wide(offset), k, attrs.shift, attrs.low, attrs.high
    )


def _released_layer_norm(attrs: Any, x: np.ndarray, offset: np.ndarray) -> Any:
    k = attrs.constants
    total = _wide(x).sum(axis=-1, keepdims=True)
    d = _wide(x) - released_norm.mean_of(total, x.shape[-1])
    squares = released_norm.square(d, k).sum(axis=-1, keepdims=True)
    factor = released_norm.factor(squares, released_norm.root_half_bits(squares), k)
    return released_norm.normalise(d, factor, offset)


def _attention(
    attrs: Any,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *operands: np.ndarray,
) -> np.ndarray:
    last = list(operands)
    batch, length, channels = q.shape
    starts = np.arange(batch + 1) * length
    if len(last) == 3:
        *last, starts = last
    multiplier = last[-1]
    keep = not_equal(last[0], 0) if len(last) > 1 else np.ones((batch, length), np.bool_)
    heads = attrs.num_heads
    context = np.zeros((batch * length, channels), np.int64)

    def split(x: np.ndarray, tokens: slice) -> np.ndarray:
        rows = x.reshape(-1, heads, channels // heads)[tokens]
        return rows.transpose(1, 0, 2)

    for item in range(batch):  # one sequence at a time bounds the memory of the scores
        tokens = slice(int(starts[item]), int(starts[item + 1]))
        scores = exact_matmul(split(q, tokens), split(k, tokens).transpose(0, 2, 1))
        rows = _context(attrs, scores, split(v, tokens), keep.reshape(-1)[tokens])
        context[tokens] = rows.transpose(1, 0, 2).reshape(-1, channels)
    context = context.reshape(q.shape)
    requantised = attrs.shift, attrs.zero_point, attrs.low, attrs.high
    if attrs.softmax == "short":
        return requantise_short(context, _wide(multiplier), 0, *requantised)
    return softmax.output_of(context, _wide(multiplier), *requantised)


def _context(attrs: Any, scores: np.ndarray, v: np.ndarray, keep: np.ndarray) -> Any:
    """Context [H, s, D] with fraction bits, from scores [H, s, s], values and key mask [s]."""
    if scores.shape[-1] == 0:
        return np.zeros(v.shape, np.int64)
    if attrs.softmax == "short":
        scores = short_softmax.score_of(scores, short_softmax.key_offset(keep))
        row_max = short_softmax.row_floor(scores.max(axis=-1, keepdims=True))
        e = short_softmax.exponential_of(scores, row_max, attrs.exponential)
        total = e.sum(axis=-1, keepdims=True)
        bits = short_softmax.sum_bits(total, attrs.exponential.maximum * scores.shape[-1])
        factor = short_softmax.reciprocal(total, bits)
        return short_softmax.context_of(exact_matmul(e, v), bits, factor)
    row_max = softmax.masked_score(scores, keep).max(axis=-1, keepdims=True)
    e = softmax.exp_of(scores, row_max, keep, attrs.exponential)
    total = e.sum(axis=-1, keepdims=True)
    p = softmax.probability_of(e, softmax.factor_of_sum(total))
    return softmax.context_of_probabilities(exact_matmul(p, v))


def _mean_pool(
    attrs: Any, x: np.ndarray, mask: np.ndarray | None = None, slots: np.ndarray | None = None
) -> Any:
    x = x if slots is None else _in_place(x, slots)
    keep = np.ones(x.shape[:2], np.bool_) if mask is None else not_equal(mask, 0)
    total = np.where(keep[..., None], _wide(x), 0).sum(axis=1)
    count = keep.sum(axis=1, keepdims=True, dtype=np.int64)
    return pooling.mean_of_tokens(total, pooling.reciprocal_of_count(count), attrs.fraction_bits)


def _select_token(attrs: Any, x: np.ndarray, slots: np.ndarray | None = None) -> np.ndarray:
    return (x if slots is None else _in_place(x, slots))[:, attrs.index]


def _in_place(x: np.ndarray, slots: np.ndarray) -> np.ndarray:
    """Rows of a packed value at their tokens; any row where a token has none."""
    return x.reshape(-1, x.shape[-1])[slots]


def _mask_tokens(
    _attrs: Any, x: np.ndarray, mask: np.ndarray, slots: np.ndarray | None = None
) -> np.ndarray:
    x = x if slots is None else _in_place(x, slots)
    return np.where(not_equal(mask, 0)[..., None], x, 0)


def _token_slots(attrs: Any, mask: np.ndarray) -> np.ndarray:
    keep = not_equal(mask, 0)
    keep[:, list(attrs.positions)] = True
    return np.where(keep, np.cumsum(keep).reshape(keep.shape) - 1, -1)


def _slot_tokens(_attrs: Any, slots: np.ndarray) -> np.ndarray:
    (kept,) = np.nonzero(slots.reshape(-1) >= 0)
    tokens = np.zeros(slots.size, np.int64)
    tokens[: kept.size] = kept
    return tokens.reshape(slots.shape)


def _slot_starts(_attrs: Any, slots: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum((slots >= 0).sum(axis=1))])


def _pack_tokens(_attrs: Any, x: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    return x.reshape(-1)[tokens]


def _split_channels(attrs: Any, x: np.ndarray) -> np.ndarray:
    width = x.shape[-1] // attrs.parts
    return x[..., attrs.index * width : (attrs.index + 1) * width]


_OPERATORS: dict[str, Callable[..., Any]] = {
    "integer.position_ids": _position_ids,
    "integer.embedding": _embedding,
    "integer.linear": _linear,
    "integer.requantise": _requantise,
    "integer.requantise_even": _requantise_even,
    "integer.requantise_short": _requantise_short,
    "integer.gelu": _gelu,
    "integer.relu": _relu,
    "integer.tanh": _tanh,
    "integer.add": _add,
    "integer.add_positions": _add,
    "integer.patches": _patches,
    "integer.prepend_tokens": _prepend_tokens,
    "integer.add_short": _add_short,
    "integer.layer_norm": _layer_norm,
    "integer.layer_norm_short": _layer_norm_short,
    "integer.released_layer_norm": _released_layer_norm,
    "integer.attention": _attention,
    "integer.mean_pool": _mean_pool,
    "integer.select_token": _select_token,
    "integer.split_channels": _split_channels,
    "integer.mask_tokens": _mask_tokens,
    "integer.token_slots": _token_slots,
    "integer.slot_tokens": _slot_tokens,
    "integer.slot_starts": _slot_starts,
    "integer.pack_tokens": _pack_tokens,
}


def _store(value: np.ndarray, dtype: str, name: str) -> np.ndarray:
    """Store a result in its declared type, refusing one that does not fit."""
    low, high = dtype_bounds(dtype)
    if value.size and (value.min() < low or value.max() > high):
        raise RangeError(
            f"a value in [{value.min()}, {value.max()}] cannot be stored as {dtype}",
            name,
            f"{dtype} holds [{low}, {high}]",
            "use a coarser scale for this value",
        )
    return value.astype(dtype)


def check_array(var: relax.Var, array: np.ndarray) -> np.ndarray:
    """Check an array against the type of the parameter it is bound to, and convert it.

    Parameters
    ----------
    var : relax.Var
        A parameter of an integer function.
    array : numpy.ndarray
        Integers of any width; symbolic dimensions take any extent.

    Returns
    -------
    numpy.ndarray
        With the dtype of the parameter.

    Raises
    ------
    LoweringError
        If the rank, a static dimension or the kind of number differs.
    RangeError
        If a value does not fit the parameter's dtype.
    """
    array = np.asarray(array)
    shape = [getattr(extent, "value", None) for extent in var.ty.shape.values]
    fits = len(shape) == array.ndim and all(
        extent is None or int(extent) == actual
        for extent, actual in zip(shape, array.shape, strict=True)
    )
    if not fits or array.dtype.kind not in "iub":
        wanted = ", ".join("any" if extent is None else str(extent) for extent in shape)
        raise LoweringError(
            f"array of {array.dtype} {list(array.shape)} for parameter {var.name!r}",
            "evaluation of the integer module",
            f"the parameter is {var.ty.dtype} [{wanted}]",
            "pass the integers that were saved with this module",
        )
    return _store(array, str(var.ty.dtype), var.name)


def lookup(variables: tuple[relax.Var, ...], arrays: Arrays) -> dict[relax.Var, np.ndarray]:
    """Bind arrays to parameters by name.

    Parameters
    ----------
    variables : tuple of relax.Var
        Parameters of the function.
    arrays : mapping of str to numpy.ndarray
        May hold more than is needed.

    Returns
    -------
    dict of relax.Var to numpy.ndarray

    Raises
    ------
    LoweringError
        If an array is missing, or differs from the parameter's type.
    """
    missing = [variable.name for variable in variables if variable.name not in arrays]
    if missing:
        raise LoweringError(
            f"no array for {', '.join(missing[:8])}{', ...' if len(missing) > 8 else ''}",
            "parameters of the integer module",
            f"{len(missing)} of {len(variables)} parameters are missing",
            "pass the arrays that were saved with this module",
        )
    return {variable: check_array(variable, arrays[variable.name]) for variable in variables}


@overload
def evaluate(
    module: IRModule,
    inputs: Arrays,
    parameters: Arrays,
    function: str = ...,
    capture: Literal[False] = ...,
) -> list[np.ndarray]: ...


@overload
def evaluate(
    module: IRModule,
    inputs: Arrays,
    parameters: Arrays,
    function: str = ...,
    *,
    capture: Literal[True],
) -> tuple[list[np.ndarray], dict[str, np.ndarray]]: ...


def evaluate(
    module: IRModule,
    inputs: Arrays,
    parameters: Arrays,
    function: str = "main",
    capture: bool = False,
) -> list[np.ndarray] | tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """Run an integer function with NumPy.

    Parameters
    ----------
    module : IRModule
        A module of the integer dialect, with symbolic or static batch and sequence length.
    inputs : mapping of str to numpy.ndarray
        The leading, non-weight parameters by name (input_ids, attention_mask ...).
    parameters : mapping of str to numpy.ndarray
        The integer constants by name.
    function : str
        Name of the function.
    capture : bool
        Whether to return every intermediate value too.

    Returns
    -------
    outputs : list of numpy.ndarray
        One array per output, in the declared dtype.
    captured : dict of str to numpy.ndarray
        Only with `capture`: canonical name to value, in the declared dtype.

    Raises
    ------
    LoweringError
        If the function is not of the integer dialect, or an array is missing or of another type.
    RangeError
        If a value does not fit the dtype it is stored in.
    """
    program = read_program(module, function)
    everything = {**parameters, **inputs}
    values = lookup((*program.inputs, *program.parameters), everything)
    captured: dict[str, np.ndarray] = {}
    for step in program.steps:
        operands = [values[operand] for operand in step.operands]
        values[step.result] = _run(step, operands)
        if capture:
            captured[step.name] = values[step.result]
    outputs = [values[output] for output in program.outputs]
    return (outputs, captured) if capture else outputs


def _run(step: Step, operands: list[np.ndarray]) -> np.ndarray:
    result = _OPERATORS[step.op](step.attrs, *operands)
    return _store(np.asarray(result), str(step.result.ty.dtype), step.name)
