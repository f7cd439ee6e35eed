"""A builder of small integer programs for these tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.spec.clipped import ClippedPolynomial, clipped_scale
from ibert_tvm.relay_passes.spec.exponential import BinaryExponential, PolynomialExponential
from ibert_tvm.relay_passes.spec.gelu import GELU, PaperGelu
from ibert_tvm.relay_passes.spec.layer_norm import LayerNormConstants
from ibert_tvm.relay_passes.spec.short_layer_norm import ShortLayerNorm
from ibert_tvm.relay_passes.spec.short_requantise import short_factors
from ibert_tvm.relay_passes.spec.short_softmax import ShortExponential


class Builder:
    """Collects parameters and bindings of a function ``main(input_ids, attention_mask, ...)``."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.batch, self.seq = tirx.Var("batch", "int64"), tirx.Var("seq_len", "int64")
        kind = relax.TensorType([self.batch, self.seq], "int64")
        self.ids, self.mask = relax.Var("input_ids", kind), relax.Var("attention_mask", kind)
        self.parameters: dict[str, np.ndarray] = {}
        self.variables: list[relax.Var] = []
        self.block = relax.BlockBuilder()

    def parameter(self, name: str, array: Any, dtype: str) -> relax.Var:
        self.parameters[name] = np.asarray(array, dtype)
        var = relax.Var(name, relax.TensorType(self.parameters[name].shape, dtype))
        self.variables.append(var)
        return var

    def values(self, name: str, bound: int, shape: tuple[int, ...], dtype: str) -> relax.Var:
        return self.parameter(name, self.random.integers(-bound, bound + 1, shape), dtype)

    def emit(self, call: relax.Call) -> relax.Var:
        return self.block.emit(call)

    def module(self, body: Callable[[Builder], Any]) -> tvm.IRModule:
        """Run `body` inside the function; it returns the output or a tuple of outputs."""
        with self.block.function("main", [self.ids, self.mask], attrs={"num_input": 2}):
            with self.block.dataflow():
                result = body(self)
                fields = list(result) if isinstance(result, tuple) else result
                output = self.block.emit_output(
                    relax.Tuple(fields) if isinstance(fields, list) else fields
                )
            self.block.emit_func_output(output)
        built = self.block.get()["main"]
        function = relax.Function(
            [self.ids, self.mask, *self.variables], built.body, built.ret_ty, True, built.attrs
        )
        return relax.transform.Normalize()(tvm.IRModule({"main": function}))


def _linear(b: Builder, x: relax.Var, channels: int, name: str) -> relax.Var:
    depth = int(x.ty.shape.values[-1])
    weight = b.values(f"{name}.weight", 127, (channels, depth), "int8")
    bias = b.values(f"{name}.bias", 5000, (channels,), "int32")
    return b.emit(integer.linear(x, weight, bias, name=name))


def _narrow(b: Builder, x: relax.Var, name: str, gain: float, dtype: str = "int8") -> relax.Var:
    channels = int(x.ty.shape.values[-1])
    m = b.parameter(
        f"{name}.multiplier",
        b.random.uniform(gain / 2, gain, channels) * 2**30,
        "int32",
    )
    low, high = {"int8": (-127, 127), "int32": (-32767, 32767)}[dtype]
    return b.emit(integer.requantise(x, m, name=name, shift=30, low=low, high=high, dtype=dtype))


def _narrow_short(
    b: Builder, x: relax.Var, name: str, gain: float, dtype: str = "int8", zero_point: int = 0
) -> relax.Var:
    """As `_narrow`, in 16-bit arithmetic; 15 bits of a result that is int16."""
    channels = int(x.ty.shape.values[-1])
    low, high = {"int8": (-127, 127), "uint8": (0, 255), "int16": (1 - 2**14, 2**14 - 1)}[dtype]
    magnitude = 2**15 - 1 if str(x.ty.dtype) == "int16" else 2**31 - 1
    k = short_factors(b.random.uniform(gain / 2, gain, channels), magnitude, low, high, zero_point)
    bounds = {"shift": k.shift, "low": low, "high": high, "dtype": dtype}
    return b.emit(
        integer.requantise_short(
            x,
            b.parameter(f"{name}.multiplier", k.multipliers, "int16"),
            b.parameter(f"{name}.pre_shift", k.pre_shifts, "int32"),
            name=name,
            zero_point=zero_point,
            **bounds,
        )
    )


def _norm_short(b: Builder, x: relax.Var, name: str) -> relax.Var:
    channels = int(x.ty.shape.values[-1])
    return b.emit(
        integer.layer_norm_short(
            x,
            b.values(f"{name}.gain", 2**13, (channels,), "int32"),
            b.values(f"{name}.offset", 2**24, (channels,), "int32"),
            ShortLayerNorm.from_scale(1e-3, 1e-12, channels),
            name=name,
            shift=13,
            low=-32767,
            high=32767,
            dtype="int16",
        )
    )


def _norm(b: Builder, x: relax.Var, name: str) -> relax.Var:
    channels = int(x.ty.shape.values[-1])
    return b.emit(
        integer.layer_norm(
            x,
            b.values(f"{name}.gain", 2**13, (channels,), "int32"),
            b.values(f"{name}.offset", 2**24, (channels,), "int32"),
            LayerNormConstants.from_scale(1e-3, 1e-12, channels),
            name=name,
            shift=13,
            low=-32767,
            high=32767,
            dtype="int16",
        )
    )


def _encoder(b: Builder, preset: str) -> Any:
    hidden, heads, inner = 24, 3, 40
    table = b.values("word", 127, (30, hidden), "int8")
    rows = b.parameter("word.multiplier", b.random.integers(1, 2**14, 30), "int32")
    words = b.emit(integer.embedding(b.ids, table, rows, name="words", shift=5))
    kind = "absolute" if preset == "accurate" else "roberta"
    ids = b.emit(integer.position_ids(b.ids, name="positions", kind=kind, padding_index=1))
    table = b.values("position", 127, (24, hidden), "int8")
    one = b.parameter("position.multiplier", [9000], "int32")
    places = b.emit(integer.embedding(ids, table, one, name="places", shift=5))
    total = b.emit(integer.add(words, places, name="sum"))
    x = _norm(b, total, "norm")

    accurate = preset == "accurate"
    narrow = _narrow_short if accurate else _narrow
    operand = narrow(b, x, "operand", 0.01)
    q, k, v = (
        narrow(b, _linear(b, operand, hidden, name), f"{name}.int8", 0.004) for name in "qkv"
    )
    largest, dtype, shift = (2**15 - 1, "int16", 7) if accurate else (2**14, "int32", 21)
    factors = b.random.integers(0 if accurate else -largest, largest, hidden)
    attended = b.emit(
        integer.attention(
            q,
            k,
            v,
            b.mask,
            b.parameter("attended.multiplier", factors, dtype),
            name="attended",
            num_heads=heads,
            softmax="short" if accurate else "normalised",
            exponential=ShortExponential.from_scale(2e-4)
            if accurate
            else PolynomialExponential.from_scale(2e-4),
            shift=shift,
            low=-127,
            high=127,
        )
    )
    projected = _linear(b, attended, hidden, "projected")
    if accurate:
        out = _narrow_short(b, projected, "projected.wide", 0.3, "int16")
        x = _narrow_short(b, x, "norm.short", 0.4, "int16")
        bounds = {"low": 1 - 2**14, "high": 2**14 - 1}
        x = _norm_short(b, b.emit(integer.add_short(out, x, name="residual", **bounds)), "norm2")
    else:
        out = _narrow(b, projected, "projected.wide", 0.3, "int32")
        x = _norm(b, b.emit(integer.add(out, x, name="residual")), "norm2")

    acc = _linear(b, narrow(b, x, "operand2", 0.01), inner, "inner")
    if accurate:
        wide = _narrow_short(b, acc, "inner.wide", 0.1, "int16")
        active = b.emit(
            integer.gelu(
                wide,
                ClippedPolynomial.from_scale(clipped_scale(GELU.limit, 9.0), GELU),
                name="gelu",
            )
        )
        active = _narrow_short(b, active, "active", 0.02, "uint8", 17)
    else:
        scales = b.random.uniform(3e-5, 3e-4, inner)
        k_ = PaperGelu.from_scales(scales)
        arrays = [
            b.parameter(f"gelu.{name}", getattr(k_, name), dtype)
            for name, dtype in (
                ("q_b", "int32"),
                ("q_c", "int64"),
                ("q_1", "int32"),
                ("erf_shift", "int32"),
            )
        ]
        active = b.emit(integer.gelu_paper(acc, *arrays, name="gelu"))
        m = b.parameter("active.multiplier", b.random.integers(-(2**12), -(2**11), inner), "int32")
        active = b.emit(
            integer.requantise(active, m, name="active", shift=40, low=-127, high=127, dtype="int8")
        )
    pooled = b.emit(integer.mean_pool(x, b.mask, name="mean", fraction_bits=6))
    first = b.emit(integer.select_token(x, name="first"))
    first = b.emit(integer.tanh(first, BinaryExponential.for_tanh(2e-4), name="tanh"))
    return b.emit(integer.relu(active, name="relu")), pooled, first


@pytest.fixture
def builder() -> Builder:
    """An empty program."""
    return Builder()


@pytest.fixture(scope="module", params=["accurate", "paper"])
def encoder(request: pytest.FixtureRequest) -> tuple[tvm.IRModule, dict[str, np.ndarray]]:
    """One encoder layer with every operator of the dialect: module and parameters."""
    made = Builder(seed=1)
    module = made.module(lambda b: _encoder(b, request.param))
    return module, made.parameters
