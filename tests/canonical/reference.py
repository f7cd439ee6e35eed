"""NumPy meaning of the canonical operators in float64, written from the records' docstrings."""

from __future__ import annotations

from math import erf
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax, tirx

from ibert_tvm.relay_passes.canonical import (
    build,
    canonical_calls,
    main_function,
    num_inputs,
    value_name,
)

Array = NDArray[Any]
_ERF = np.vectorize(erf, otypes=[np.float64])


def attention(q: Array, k: Array, v: Array, *mask: Array, heads: int, scale: float) -> Array:
    batch, length, channels = q.shape
    keep = mask[0][:, None, None, :] != 0 if mask else np.ones((batch, 1, 1, length), bool)
    q, k, v = (x.reshape(batch, length, heads, -1).transpose(0, 2, 1, 3) for x in (q, k, v))
    scores = scale * q @ k.transpose(0, 1, 3, 2)
    power = np.where(keep, np.exp(scores - scores.max(-1, keepdims=True)), 0.0)
    total = power.sum(-1, keepdims=True)
    weights = np.divide(power, total, out=np.zeros_like(power), where=total > 0)
    return (weights @ v).transpose(0, 2, 1, 3).reshape(batch, length, channels)


def rotate(x: Array, table: Array, *, heads: int) -> Array:
    """Pairs of channels as complex numbers, turned by another one for each place."""
    angles, length = table.shape[1] // 2, x.shape[1]
    turn = (table[:, :angles] + 1j * table[:, angles:])[:length, None]
    split = x.reshape(*x.shape[:2], heads, -1)
    pairs = turn * (split[..., :angles] + 1j * split[..., angles : 2 * angles])
    parts = [pairs.real, pairs.imag, split[..., 2 * angles :]]
    return np.concatenate(parts, axis=-1).reshape(x.shape)


def evaluate(call: relax.Call, x: list[Array]) -> Array:
    attrs = call.attrs
    kind = call.op.name.removeprefix("canonical.")
    if kind == "embedding":
        return x[0][x[1]]
    if kind == "position_ids":
        if str(attrs["kind"]) == "absolute":
            row = int(attrs["offset"]) + np.arange(x[0].shape[1])
            return np.broadcast_to(row, x[0].shape)
        pad = int(attrs["padding_index"])
        token = x[0] != pad
        return np.cumsum(token, axis=1) * token + pad
    if kind == "patches":
        sizes = int(attrs["patch_height"]), int(attrs["patch_width"])
        rows, columns = (n // size for n, size in zip(x[0].shape[2:], sizes, strict=True))
        cut = x[0][:, :, : rows * sizes[0], : columns * sizes[1]]
        cut = cut.reshape(*cut.shape[:2], rows, sizes[0], columns, sizes[1])
        return cut.transpose(0, 2, 4, 1, 3, 5).reshape(cut.shape[0], rows * columns, -1)
    if kind == "prepend_tokens":
        tokens = np.broadcast_to(x[1], (x[0].shape[0], *x[1].shape))
        return np.concatenate([tokens, x[0]], axis=1)
    if kind == "linear":
        return x[0] @ x[1].T + x[2]
    if kind == "attention":
        return attention(*x, heads=int(attrs["num_heads"]), scale=float(attrs["scale"]))
    if kind == "rotate":
        return rotate(*x, heads=int(attrs["num_heads"]))
    if kind == "layer_norm":
        centred = x[0] - x[0].mean(-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + float(attrs["epsilon"]))
        return centred / deviation * x[1] + x[2]
    if kind == "gelu":
        if str(attrs["form"]) == "erf":
            return 0.5 * x[0] * (1 + _ERF(x[0] / np.sqrt(2)))
        return 0.5 * x[0] * (1 + np.tanh(np.sqrt(2 / np.pi) * (x[0] + 0.044715 * x[0] ** 3)))
    if kind == "relu":
        return np.maximum(x[0], 0)
    if kind == "tanh":
        return np.tanh(x[0])
    if kind in ("add", "add_positions"):
        return x[0] + x[1]
    if kind == "mean_pool":
        keep = (x[1] != 0)[:, :, None] if len(x) > 1 else np.ones((*x[0].shape[:2], 1), bool)
        return (x[0] * keep).sum(1) / np.maximum(keep.sum(1), 1)
    assert kind == "select_token"
    return x[0][:, int(attrs["index"])]


def run(module: tvm.IRModule, arrays: dict[str, Array]) -> dict[str, Array]:
    """Every value of a canonical module by name, float64."""
    function = main_function(module)
    values: dict[relax.Var, Array] = {}
    for index, variable in enumerate(function.params):
        is_tokens = index < num_inputs(function) and variable.ty.ndim == 2
        kind = np.int64 if is_tokens else np.float64
        values[variable] = np.asarray(arrays[variable.name], kind)
    named = {}
    for variable, call in canonical_calls(module):
        values[variable] = evaluate(call, [values[a] for a in call.args])
        named[value_name(call)] = values[variable]
    return named


class Tiny:
    """A canonical module that uses every operator once or more; sizes are awkward on purpose."""

    def __init__(self, width: int = 6, heads: int = 3, feed: int = 20, vocabulary: int = 11):
        self.vocabulary = vocabulary
        channels = width * heads
        symbols = [tirx.Var("batch", "int64"), tirx.Var("seq_len", "int64")]
        ids, mask = (
            relax.Var(n, relax.TensorType(symbols, "int64"))
            for n in ("input_ids", "attention_mask")
        )
        random = np.random.default_rng(3)
        self.parameters: dict[str, NDArray[np.float32]] = {}
        weights: dict[str, relax.Var] = {}

        def weight(name: str, *shape: int) -> None:
            array = random.normal(size=shape) / np.sqrt(shape[-1]) * 2
            self.parameters[name] = array.astype(np.float32)
            weights[name] = relax.Var(name, relax.TensorType(list(shape), "float32"))

        weight("words.weight", vocabulary, channels)
        weight("places.weight", 70, channels)
        weight("shifts.weight", 70, channels)
        for name in ("q", "k", "v"):
            weight(f"{name}.weight", channels, channels)
            weight(f"{name}.bias", channels)
        weight("up.weight", feed, channels)
        weight("up.bias", feed)
        weight("down.weight", channels, feed)
        weight("down.bias", channels)
        weight("norm.weight", channels)
        weight("norm.bias", channels)
        weight("out.weight", 2, channels)
        weight("out.bias", 2)
        b = relax.BlockBuilder()
        w = weights
        with b.function("main", [ids, mask, *weights.values()]):
            with b.dataflow():
                place = b.emit(build.position_ids(ids, name="places.ids", offset=2))
                shift = b.emit(
                    build.position_ids(ids, name="shifts.ids", kind="roberta", padding_index=1)
                )
                x = b.emit(build.embedding(w["words.weight"], ids, name="words"))
                y = b.emit(build.embedding(w["places.weight"], place, name="places"))
                z = b.emit(build.embedding(w["shifts.weight"], shift, name="shifts"))
                x = b.emit(build.add(x, y, name="words.add"))
                x = b.emit(build.add(x, z, name="shifts.add"))
                q, k, v = (
                    b.emit(build.linear(x, w[f"{n}.weight"], w[f"{n}.bias"], name=n)) for n in "qkv"
                )
                x = b.emit(
                    build.attention(q, k, v, mask, name="attention", num_heads=heads, scale=0.3)
                )
                x = b.emit(
                    build.layer_norm(x, w["norm.weight"], w["norm.bias"], name="norm", epsilon=1e-5)
                )
                y = b.emit(build.linear(x, w["up.weight"], w["up.bias"], name="up"))
                y = b.emit(build.gelu(y, name="up.gelu", form="erf"))
                y = b.emit(build.linear(y, w["down.weight"], w["down.bias"], name="down"))
                y = b.emit(build.gelu(y, name="down.gelu", form="tanh"))
                x = b.emit(build.add(x, y, name="down.add"))
                first = b.emit(build.select_token(x, name="first", index=0))
                first = b.emit(build.tanh(first, name="first.tanh"))
                mean = b.emit(build.mean_pool(x, mask, name="mean"))
                mean = b.emit(build.relu(mean, name="mean.relu"))
                logits = b.emit(build.linear(first, w["out.weight"], w["out.bias"], name="out"))
                outputs = [b.emit_output(item) for item in (x, mean, logits)]
            b.emit_func_output(relax.Tuple(outputs))
        self.module = b.get()
        self.module["main"] = self.module["main"].with_attr("num_input", 2)
        self.outputs = ("down.add", "mean.relu", "out")

    def inputs(self, batch: int, length: int, seed: int = 0) -> dict[str, NDArray[np.int64]]:
        """Random ids with padding; with more than one row the last one has no token at all."""
        random = np.random.default_rng(seed)
        ids = random.integers(2, self.vocabulary, (batch, length))
        mask = np.ones((batch, length), np.int64)
        for row in range(1, batch):
            mask[row, random.integers(1, length + 1) :] = 0
        if batch > 1:
            mask[-1] = 0
        return {"input_ids": np.where(mask != 0, ids, 1), "attention_mask": mask}
