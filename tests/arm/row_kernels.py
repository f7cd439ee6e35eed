"""Row operations as single kernels, with inputs and what the specification says of them.

Each is emitted exactly as the compiler emits it for a model, from operators of the integer dialect.
Only the softmax is cut out of attention: scores come in, and so does what the exponentials times V
would be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, s_tir, te, tirx

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.emit import KernelLayout
from ibert_tvm.relay_passes.emit.attention import KernelHeads
from ibert_tvm.relay_passes.emit.domain import KernelDomain
from ibert_tvm.relay_passes.emit.group import GroupEmitter
from ibert_tvm.relay_passes.emit.stage import Stage
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.relay_passes.integer.operators.attention import Attention
from ibert_tvm.relay_passes.spec import short_softmax
from ibert_tvm.relay_passes.spec.clipped import ClippedPolynomial, clipped_scale
from ibert_tvm.relay_passes.spec.exponential import PolynomialExponential
from ibert_tvm.relay_passes.spec.gelu import GELU, PaperGelu
from ibert_tvm.relay_passes.spec.layer_norm import LayerNormConstants
from ibert_tvm.relay_passes.spec.logarithm import Logarithm
from ibert_tvm.relay_passes.spec.logistic import SIGMOID, SILU
from ibert_tvm.relay_passes.spec.released import (
    ReleasedExponential,
    ReleasedLayerNorm,
    exact_factors,
)
from ibert_tvm.relay_passes.spec.rotation import FRACTION_BITS, rotation_table
from ibert_tvm.relay_passes.spec.short_layer_norm import INPUT_LIMIT, ShortLayerNorm
from ibert_tvm.relay_passes.spec.short_requantise import requantise_short, short_factors
from ibert_tvm.relay_passes.spec.short_softmax import ShortExponential
from ibert_tvm.relay_passes.spec.values import Ranged
from ibert_tvm.schedules import schedule_kernel
from ibert_tvm.schedules.loops import block_names, fuse_row_passes
from ibert_tvm.targets import TargetDescription

Bounds = tuple[int, int]
_STREAM = (-INPUT_LIMIT, INPUT_LIMIT)
_INT8 = (-127, 127)


@dataclass(frozen=True, eq=False)
class RowKernel:
    """One kernel to schedule, build and run.

    Attributes
    ----------
    name
        What it computes.
    func
        Unscheduled kernel; its buffers are `inputs` and then `outputs`.
    inputs, outputs
        Arrays to call it with, and what it must answer.
    entries
        Entries of the row operation, for counts per entry.
    """

    name: str
    func: tirx.PrimFunc
    inputs: Sequence[np.ndarray]
    outputs: Sequence[np.ndarray]
    entries: int


def layout_of(target: TargetDescription) -> KernelLayout:
    """Operand layout that emission gets for a target."""
    return KernelLayout.of(target.dot, target.vector_lanes, target.functions)


class _Program:
    """The function of one fused kernel under construction, with random constants."""

    def __init__(self, name: str, kind: str, seed: int) -> None:
        self.name, self.kind = name, kind
        self.random = np.random.default_rng(seed)
        self.builder = relax.BlockBuilder()
        self.arrays: dict[str, np.ndarray] = {}
        self.bounds: dict[str, Bounds] = {}
        self.parameters: dict[str, np.ndarray] = {}
        self.vars: list[relax.Var] = []

    def entries(self, bounds: Bounds, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        """Random integers; the first are the ends of the interval, and what lies round 0."""
        low, high = bounds
        array = self.random.integers(low, high + 1, shape)
        edges = [
            value for value in (low, low + 1, -1, 0, 1, high - 1, high) if low <= value <= high
        ]
        array.reshape(-1)[: len(edges)] = edges[: array.size]
        return array.astype(dtype)

    def _variable(self, name: str, array: np.ndarray) -> relax.Var:
        var = relax.Var(name, relax.TensorType(array.shape, str(array.dtype)))
        self.vars.append(var)
        return var

    def input(self, name: str, array: np.ndarray, bounds: Bounds | None = None) -> relax.Var:
        """Add an input [batch, seq_len(, channels)], with proven bounds."""
        self.arrays[name] = array
        if bounds is not None:
            self.bounds[name] = bounds
        return self._variable(name, array)

    def parameter(self, name: str, array: np.ndarray) -> relax.Var:
        """Add an array of constants."""
        self.parameters[name] = array
        return self._variable(name, array)

    def emit(self, call: relax.Call) -> relax.Var:
        """Bind a call."""
        return self.builder.emit(call)

    def requantise_short(
        self,
        name: str,
        x: relax.Var,
        factors: np.ndarray,
        magnitude: int,
        bounds: Bounds,
        dtype: str,
        zero_point: int = 0,
    ) -> relax.Var:
        """Bind a requantisation in 16 bits."""
        low, high = bounds
        constants = short_factors(factors, magnitude, low, high, zero_point)
        return self.emit(
            integer.requantise_short(
                x,
                self.parameter(f"{name}.multiplier", constants.multipliers),
                self.parameter(f"{name}.pre_shift", constants.pre_shifts),
                name=name,
                shift=constants.shift,
                low=low,
                high=high,
                dtype=dtype,
                zero_point=zero_point,
            )
        )

    def requantise(
        self,
        name: str,
        x: relax.Var,
        multiplier: np.ndarray,
        shift: int,
        bounds: Bounds,
        dtype: str = "int8",
    ) -> relax.Var:
        """Bind a requantisation by multipliers of any width."""
        low, high = bounds
        factor = self.parameter(f"{name}.multiplier", multiplier.astype("int32"))
        return self.emit(
            integer.requantise(x, factor, name=name, shift=shift, low=low, high=high, dtype="int8")
        )

    def finish(
        self, target: TargetDescription, body: Callable[[], Sequence[relax.Var]], entries: int
    ) -> RowKernel:
        """Emit the kernel whose results `body` binds, and evaluate it by the specification."""
        leading = list(self.vars)
        attrs = {
            "num_input": len(leading),
            "ibert.kernel": self.kind,
            "ibert.layer": self.name,
        }
        with self.builder.function("main", leading, attrs=attrs):
            with self.builder.dataflow():
                outputs = [self.builder.emit_output(value) for value in body()]
            self.builder.emit_func_output(outputs if len(outputs) > 1 else outputs[0])
        built = self.builder.get()["main"]
        function = relax.Function(self.vars, built.body, built.ret_ty, built.is_pure, built.attrs)
        module = relax.transform.Normalize()(tvm.IRModule({"main": function}))
        batch = next(iter(self.arrays.values())).shape[0]
        emitter = GroupEmitter(layout_of(target), self.parameters, self.bounds, batch)
        func = emitter.emit(module["main"])
        results = evaluate(module, self.arrays, self.parameters)
        inputs = [*self.arrays.values(), *self.parameters.values()]
        return RowKernel(
            self.name,
            func,
            [_stored(array) for array in inputs],
            [_stored(r) for r in results],
            entries,
        )


def _stored(array: np.ndarray) -> np.ndarray:
    """As kernels pass values on: tokens of all sequences are one axis."""
    return np.ascontiguousarray(array.reshape(-1, array.shape[-1]) if array.ndim == 3 else array)


def gelu(target: TargetDescription, rows: int, channels: int, seed: int = 0) -> RowKernel:
    """GELU of 15 bits, requantised to 8: between the two linear layers of an encoder's block."""
    p = _Program("gelu", "gelu", seed)
    scale = clipped_scale(GELU.limit, 9.0)
    x = p.input("x", p.entries(_STREAM, (1, rows, channels), "int16"), _STREAM)

    def body() -> Sequence[relax.Var]:
        g = p.emit(integer.gelu(x, ClippedPolynomial.from_scale(scale, GELU), name="gelu"))
        factor = np.array([scale / 0.03])
        return [p.requantise_short("out", g, factor, 2**14, (0, 255), "uint8", 6)]

    return p.finish(target, body, rows * channels)


def gate(target: TargetDescription, rows: int, channels: int, seed: int = 0) -> RowKernel:
    """SiLU of 15 bits times another value, requantised to 8 bits by channel."""
    p = _Program("gate", "silu", seed)
    function, shape = SILU.of_multiple(1.702), (1, rows, channels)
    scale = clipped_scale(function.limit, 9.0)
    x = p.input("x", p.entries(_STREAM, shape, "int16"), _STREAM)
    y = p.input("y", p.entries(_STREAM, shape, "int16")[:, ::-1], _STREAM)

    def body() -> Sequence[relax.Var]:
        constants = ClippedPolynomial.from_scale(scale, function)
        g = p.emit(integer.silu(x, constants, name="silu"))
        z = p.emit(integer.multiply(g, y, name="product"))
        factors = p.random.uniform(2**-23, 2**-18, channels)
        return [p.requantise_short("out", z, factors, 2**28, _INT8, "int8")]

    return p.finish(target, body, rows * channels)


def sigmoid(target: TargetDescription, rows: int, channels: int, seed: int = 0) -> RowKernel:
    """The logistic function of 15 bits, requantised to 8."""
    p = _Program("sigmoid", "sigmoid", seed)
    scale = clipped_scale(SIGMOID.limit, 9.0)
    x = p.input("x", p.entries(_STREAM, (1, rows, channels), "int16"), _STREAM)

    def body() -> Sequence[relax.Var]:
        constants = ClippedPolynomial.from_scale(scale, SIGMOID)
        g = p.emit(integer.sigmoid(x, constants, name="sigmoid"))
        return [p.requantise_short("out", g, np.array([2.0**-7]), 2**15, (0, 255), "uint8")]

    return p.finish(target, body, rows * channels)


def rotate(target: TargetDescription, rows: int, channels: int, seed: int = 0) -> RowKernel:
    """Rotary position embeddings of 8 bits; all channels of two heads where those are even."""
    heads = 2 if channels % 4 == 0 else 1
    return _rotate(target, rows, channels, heads, channels // heads // 2 * 2, seed)


def rotate_packed(target: TargetDescription, rows: int, channels: int, seed: int = 0) -> RowKernel:
    """A part of the channels of 16 bits, of tokens that come without padding."""
    return _rotate(target, rows, channels, 1, max(channels // 3 // 2, 1) * 2, seed, packed=True)


def _rotate(
    target: TargetDescription,
    rows: int,
    channels: int,
    heads: int,
    turned: int,
    seed: int,
    packed: bool = False,
) -> RowKernel:
    p = _Program("rotate", "rotate", seed)
    bounds, dtype = ((-(2**14), 2**14), "int16") if packed else (_INT8, "int8")
    x = p.input("x", p.entries(bounds, (1, rows, channels), dtype), bounds)
    tokens = None
    if packed:  # in another order, as no packing has it: places must be looked up
        tokens = p.input("tokens", np.arange(rows, dtype="int32")[None, ::-1])
    angles = np.arange(rows + 3)[:, None] * 0.9 ** np.arange(turned // 2)
    table = rotation_table(np.concatenate([np.cos(angles), np.sin(angles)], axis=1))
    raised = 0 if packed else FRACTION_BITS
    factors = short_factors(p.random.uniform(0.7, 0.9, channels) / 128, 2**15 - 1, -127, 127)

    def body() -> Sequence[relax.Var]:
        return [
            p.emit(
                integer.rotate(
                    x,
                    p.parameter("table", table.entries),
                    p.parameter("multiplier", factors.multipliers[: channels if packed else 1]),
                    tokens=tokens,
                    name="rotate",
                    num_heads=heads,
                    raised=raised,
                    shift=factors.shift,
                    low=-127,
                    high=127,
                    dtype="int8",
                )
            )
        ]

    return p.finish(target, body, rows * channels)


def gelu_paper(target: TargetDescription, rows: int, channels: int, seed: int = 0) -> RowKernel:
    """The published GELU of accumulators, with constants per channel, requantised to 8 bits."""
    p = _Program("gelu_paper", "gelu", seed)
    bounds = (-(2**19), 2**19)
    x = p.input("x", p.entries(bounds, (1, rows, channels), "int32"), bounds)
    k = PaperGelu.from_scales(p.random.uniform(1e-5, 1e-4, channels))

    def body() -> Sequence[relax.Var]:
        arrays = [
            p.parameter(name, getattr(k, name)) for name in ("q_b", "q_c", "q_1", "erf_shift")
        ]
        g = p.emit(integer.gelu_paper(x, *arrays, name="gelu"))
        multipliers = np.round(k.scales / 0.05 * 2.0**50)
        return [p.requantise("out", g, multipliers, 50, _INT8)]

    return p.finish(target, body, rows * channels)


def _rows_to_normalise(p: _Program, rows: int, channels: int) -> relax.Var:
    """A stream of 15 bits, of which one row has no deviation."""
    data = p.entries(_STREAM, (1, rows, channels), "int16")
    data[0, rows // 2] = 1
    return p.input("x", data, _STREAM)


def _normalised(p: _Program, x: relax.Var, channels: int) -> relax.Var:
    """LayerNorm of 15 bits."""
    return p.emit(
        integer.layer_norm_short(
            x,
            p.parameter("gain", p.entries((-(2**14), 2**14), (channels,), "int32")),
            p.parameter("offset", p.entries((-(2**24), 2**24), (channels,), "int32")),
            ShortLayerNorm.from_scale(1e-3, 1e-12, channels),
            name="norm",
            shift=14,
            low=-INPUT_LIMIT,
            high=INPUT_LIMIT,
            dtype="int16",
        )
    )


def layer_norm(target: TargetDescription, rows: int, channels: int, seed: int = 0) -> RowKernel:
    """LayerNorm of 15 bits: the stream in 15 bits, and requantised to 8 what a matrix reads."""
    p = _Program("layer_norm", "layer_norm_short", seed)
    x = _rows_to_normalise(p, rows, channels)

    def body() -> Sequence[relax.Var]:
        y = _normalised(p, x, channels)
        factors = p.random.uniform(0.004, 0.008, channels)
        return [y, p.requantise_short("out", y, factors, INPUT_LIMIT, _INT8, "int8")]

    return p.finish(target, body, rows * channels)


def quantise_rows(target: TargetDescription, rows: int, channels: int, seed: int = 0) -> RowKernel:
    """The largest magnitude of each row, and its entries in 8 bits by it."""
    p = _Program("quantise_rows", "row_magnitude", seed)
    bounds = (-(2**15), 2**15 - 1)
    data = p.entries(bounds, (1, rows, channels), "int16")
    data[0, rows // 2] = 0
    data[0, 0] = np.arange(channels) % 3 - 1
    x = p.input("x", data, bounds)
    return p.finish(target, lambda: _by_row(p, x), rows * channels)


def norm_by_row(target: TargetDescription, rows: int, channels: int, seed: int = 0) -> RowKernel:
    """LayerNorm of 15 bits: the stream in 15 bits, and in 8 by row what a matrix reads."""
    p = _Program("norm_by_row", "layer_norm_short", seed)
    x = _rows_to_normalise(p, rows, channels)

    def body() -> Sequence[relax.Var]:
        y = _normalised(p, x, channels)
        factors = p.random.uniform(0.5, 0.9, channels)
        divided = p.requantise_short("divided", y, factors, INPUT_LIMIT, _STREAM, "int16")
        return [y, *_by_row(p, divided)]

    return p.finish(target, body, rows * channels)


def _by_row(p: _Program, x: relax.Var) -> list[relax.Var]:
    magnitude = p.emit(integer.row_magnitude(x, name="magnitude"))
    bounds = {"low": -127, "high": 127, "dtype": "int8"}
    return [magnitude, p.emit(integer.quantise_rows(x, magnitude, name="out", **bounds))]


def layer_norm_wide(
    target: TargetDescription, rows: int, channels: int, seed: int = 0
) -> RowKernel:
    """LayerNorm of 21 bits, as the preset `paper` has it, to 8 bits."""
    p = _Program("layer_norm_wide", "layer_norm", seed)
    bounds = (-(2**20), 2**20)
    x = p.input("x", p.entries(bounds, (1, rows, channels), "int32"), bounds)

    def body() -> Sequence[relax.Var]:
        y = p.emit(
            integer.layer_norm(
                x,
                p.parameter("gain", p.entries((-(2**14), 2**14), (channels,), "int32")),
                p.parameter("offset", p.entries((-(2**24), 2**24), (channels,), "int32")),
                LayerNormConstants(2**20 - 1, 5, 40, 16),
                name="norm",
                shift=14,
                low=-INPUT_LIMIT,
                high=INPUT_LIMIT,
                dtype="int16",
            )
        )
        factors = p.random.integers(2**22, 2**23, channels)
        return [p.requantise("out", y, factors, 30, _INT8)]

    return p.finish(target, body, rows * channels)


def rms_norm(target: TargetDescription, rows: int, channels: int, seed: int = 0) -> RowKernel:
    """RMSNorm of 15 bits: the stream in 15 bits, and requantised to 8 what a matrix reads."""
    p = _Program("rms_norm", "rms_norm_short", seed)
    data = p.entries(_STREAM, (1, rows, channels), "int16")
    data[0, rows // 2] = 0
    x = p.input("x", data, _STREAM)

    def body() -> Sequence[relax.Var]:
        y = p.emit(
            integer.rms_norm_short(
                x,
                p.parameter("gain", p.entries((-(2**14), 2**14), (channels,), "int32")),
                ShortLayerNorm.from_scale(1e-3, 1e-12, channels),
                name="norm",
                shift=14,
                low=-INPUT_LIMIT,
                high=INPUT_LIMIT,
                dtype="int16",
            )
        )
        factors = p.random.uniform(0.004, 0.008, channels)
        return [y, p.requantise_short("out", y, factors, INPUT_LIMIT, _INT8, "int8")]

    return p.finish(target, body, rows * channels)


def rms_norm_wide(target: TargetDescription, rows: int, channels: int, seed: int = 0) -> RowKernel:
    """RMSNorm of 21 bits, as the preset `paper` has it, to 8 bits."""
    p = _Program("rms_norm_wide", "rms_norm", seed)
    bounds = (-(2**20), 2**20)
    x = p.input("x", p.entries(bounds, (1, rows, channels), "int32"), bounds)

    def body() -> Sequence[relax.Var]:
        y = p.emit(
            integer.rms_norm(
                x,
                p.parameter("gain", p.entries((-(2**14), 2**14), (channels,), "int32")),
                LayerNormConstants(2**20 - 1, 5, 40, 16),
                name="norm",
                shift=14,
                low=-INPUT_LIMIT,
                high=INPUT_LIMIT,
                dtype="int16",
            )
        )
        factors = p.random.integers(2**22, 2**23, channels)
        return [p.requantise("out", y, factors, 30, _INT8)]

    return p.finish(target, body, rows * channels)


def residual_add(target: TargetDescription, rows: int, channels: int, seed: int = 0) -> RowKernel:
    """The sum of two streams of 15 bits; one of them at another scale."""
    p = _Program("residual_add", "add", seed)
    shape = (1, rows, channels)
    a = p.input("a", p.entries(_STREAM, shape, "int16"), _STREAM)
    b = p.input("b", p.entries(_STREAM, shape, "int16"), _STREAM)

    def body() -> Sequence[relax.Var]:
        term = p.requantise_short("term", a, np.array([0.7]), INPUT_LIMIT, _STREAM, "int16")
        low, high = _STREAM
        return [p.emit(integer.add_short(term, b, name="sum", low=low, high=high))]

    return p.finish(target, body, rows * channels)


def requantise(target: TargetDescription, rows: int, channels: int, seed: int = 0) -> RowKernel:
    """Accumulators to 8 bits, with a multiplier per channel."""
    p = _Program("requantise", "requantise", seed)
    bounds = (-(2**22), 2**22)
    x = p.input("x", p.entries(bounds, (1, rows, channels), "int32"), bounds)

    def body() -> Sequence[relax.Var]:
        factors = p.random.uniform(1e-4, 1e-3, channels)
        return [p.requantise_short("out", x, factors, 2**22, _INT8, "int8")]

    return p.finish(target, body, rows * channels)


def embedding(target: TargetDescription, rows: int, channels: int, seed: int = 0) -> RowKernel:
    """Rows of a table of 8 bits, requantised row by row to 15 bits."""
    p = _Program("embedding", "embedding", seed)
    vocabulary = 50
    ids = p.input("ids", p.entries((0, vocabulary - 1), (1, rows), "int32"))

    def body() -> Sequence[relax.Var]:
        table = p.parameter("table", p.entries(_INT8, (vocabulary, channels), "int8"))
        factors = p.parameter("factors", p.entries((2**8, 2**11), (vocabulary,), "int32"))
        wide = p.emit(integer.embedding(ids, table, factors, name="embedding", shift=6))
        return [p.requantise_short("out", wide, np.array([0.9]), 2**13, _STREAM, "int16")]

    return p.finish(target, body, rows * channels)


def mean_pool(target: TargetDescription, rows: int, channels: int, seed: int = 0) -> RowKernel:
    """The mean over the tokens that are not masked."""
    p = _Program("mean_pool", "mean_pool", seed)
    x = p.input("x", p.entries(_STREAM, (1, rows, channels), "int16"), _STREAM)
    mask = np.ones((1, rows), "int32")
    mask[:, rows - rows // 4 :] = 0
    masked = p.input("mask", mask)
    return p.finish(
        target,
        lambda: [p.emit(integer.mean_pool(x, masked, name="mean", fraction_bits=4))],
        rows * channels,
    )


def _pool(kind: str) -> Callable[..., RowKernel]:
    """Another pooling of the tokens that are not masked; the row begins with padding too."""

    def pool(target: TargetDescription, rows: int, channels: int, seed: int = 0) -> RowKernel:
        p = _Program(kind, kind, seed)
        x = p.input("x", p.entries(_STREAM, (1, rows, channels), "int16"), _STREAM)
        mask = np.ones((1, rows), "int32")
        mask[:, rows - rows // 4 :] = mask[:, :1] = 0
        masked = p.input("mask", mask)
        fraction = {"fraction_bits": 4} if "mean" in kind else {}
        make = getattr(integer, kind)
        return p.finish(
            target, lambda: [p.emit(make(x, masked, name="pool", **fraction))], rows * channels
        )

    return pool


def _attention_pool(released: bool) -> Callable[..., RowKernel]:
    """What a learned query sees of the tokens that are not masked, by two heads if they divide."""

    def pool(target: TargetDescription, rows: int, channels: int, seed: int = 0) -> RowKernel:
        p = _Program("attention_pool", "attention_pool", seed)
        heads = 1 + (channels % 2 == 0)
        scores = p.input("scores", p.entries(_STREAM, (1, rows, heads), "int16"), _STREAM)
        v = p.input("v", p.entries(_INT8, (1, rows, channels), "int8"), _INT8)
        mask = np.ones((1, rows), "int32")
        mask[:, rows - rows // 4 :] = mask[:, :1] = 0
        masked = p.input("mask", mask)

        def body() -> Sequence[relax.Var]:
            short = short_factors(p.random.uniform(0.005, 0.011, channels), 2**14, *_INT8)
            multiplier, shift = short.multipliers, short.shift
            exponential: Any = ShortExponential.from_scale(2e-4)
            if released:
                exponential = PolynomialExponential.from_scale(2e-4)
                multiplier, shift = p.entries((2**13, 2**14), (channels,), "int32"), 20
            return [
                p.emit(
                    integer.attention_pool(
                        scores,
                        v,
                        p.parameter("multiplier", multiplier),
                        masked,
                        name="pool",
                        exponential=exponential,
                        shift=shift,
                        low=_INT8[0],
                        high=_INT8[1],
                    )
                )
            ]

        return p.finish(target, body, rows * channels)

    return pool


def concatenate(target: TargetDescription, rows: int, channels: int, seed: int = 0) -> RowKernel:
    """The channels of two values of different types, one after the other."""
    p = _Program("concatenate", "concatenate", seed)
    a = p.input("a", p.entries(_STREAM, (1, rows, channels), "int16"), _STREAM)
    b = p.input("b", p.entries((-127, 127), (1, rows, channels // 2), "int8"), (-127, 127))
    return p.finish(
        target, lambda: [p.emit(integer.concatenate(a, b, name="joined"))], rows * channels
    )


def log1p_relu(target: TargetDescription, rows: int, channels: int, seed: int = 0) -> RowKernel:
    """The logarithm of one plus what is positive."""
    p = _Program("log1p_relu", "log1p_relu", seed)
    x = p.input("x", p.entries(_STREAM, (1, rows, channels), "int16"), _STREAM)
    constants = Logarithm.from_scale(1e-3, INPUT_LIMIT)
    return p.finish(
        target, lambda: [p.emit(integer.log1p_relu(x, constants, name="log"))], rows * channels
    )


def position_ids(target: TargetDescription, rows: int, channels: int, seed: int = 0) -> RowKernel:
    """Positions that count the tokens that are not padding; `channels` is not used."""
    p = _Program("position_ids", "position_ids", seed)
    ids = p.input("ids", p.entries((1, 4), (1, rows), "int32"))
    return p.finish(
        target,
        lambda: [p.emit(integer.position_ids(ids, name="p", kind="roberta", padding_index=1))],
        rows,
    )


def softmax(
    target: TargetDescription,
    rows: int,
    keys: int,
    head_dim: int = 32,
    seed: int = 0,
    masked: int = 0,
    scale: float = 1e-3,
) -> RowKernel:
    """The softmax of attention without its matrix products.

    Scores (int32 accumulators) and the key mask come in. Exponentials of 8 bits go out, and the
    context: exponentials times V, which comes in as well, divided by the sum of each row and
    requantised to 8 bits.

    Parameters
    ----------
    target
        The target.
    rows, keys, head_dim
        Scores are [rows, keys], the context is [rows, head_dim]. Rows are whole row tiles.
    seed
        Of the numbers.
    masked
        How many of the keys are padding.
    scale
        Real size of a unit of the scores.
    """
    random = np.random.default_rng(seed)
    largest = int(30 / scale)
    scores = random.integers(-largest // 8, largest // 8 + 1, (rows, keys)).astype("int32")
    scores[0, :2] = -largest, largest
    mask = np.ones((1, keys), "int32")
    mask[:, keys - masked :] = 0
    constants = ShortExponential.from_scale(scale)
    out = short_factors(np.array([0.011]), 2**14, *_INT8)
    multiplier, requantised = out.multipliers, (out.shift, 0, *_INT8)

    exponentials, bits, factor = _softmax_reference(scores, mask[0] != 0, constants)
    values = random.integers(-127, 128, (keys, head_dim))
    context = exponentials @ values
    attended = requantise_short(
        short_softmax.context_of(context, bits, factor), int(multiplier[0]), 0, *requantised
    )
    record = Attention(
        "softmax", 1, "short", constants, out.shift, low=_INT8[0], high=_INT8[1], dtype="int8"
    )
    func, dtype = _softmax_kernel(target, rows, keys, head_dim, largest, record)
    offset = -128 if dtype == "int8" else 0  # bytes 0..255 in a signed type
    return RowKernel(
        "softmax",
        func,
        [scores[None, None], mask, context.astype("int32")[None, None], multiplier],
        [(exponentials + offset).astype(dtype)[None, None], attended.astype("int8")[None, None]],
        rows * keys,
    )


def _softmax_reference(
    scores: np.ndarray, keep: np.ndarray, constants: ShortExponential
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    wide = short_softmax.score_of(scores.astype(np.int64), short_softmax.key_offset(keep))
    top = short_softmax.row_floor(wide.max(axis=1, keepdims=True))
    e = short_softmax.exponential_of(wide, top, constants)
    total = e.sum(axis=1, keepdims=True)
    bits = short_softmax.sum_bits(total, constants.maximum * scores.shape[1])
    return e, bits, short_softmax.reciprocal(total, bits)


class _GivenProducts(KernelHeads):
    """Attention of one head whose matrix products come in: `scores`, and V times exponentials."""

    def __init__(
        self, domain: _SoftmaxDomain, attention: Attention, operands: dict[str, Stage]
    ) -> None:
        super().__init__(domain, attention, operands)
        self.scores, self.weighed = domain.scores, domain.weighed
        self.rows = self.shape.rows = self.scores.shape[2]

    def products(self) -> Stage:
        """As they came in."""
        return self.scores

    def context(self, weights: Stage, largest: int) -> Callable[..., Ranged]:
        """As it came in; the exponentials are a result of the kernel."""
        self.exponentials = weights
        return lambda b, h, i, d: self.weighed[b, h, i, d]

    def output(self, entry: Callable[..., Ranged], multiplier: Stage, dtype: str) -> Stage:
        """Rows as they are computed, with one multiplier for all channels."""
        return self.domain.define(
            "attended_rows",
            self.weighed.shape,
            lambda *index: entry(*index, multiplier[0]),
            dtype,
        )


class _SoftmaxDomain(KernelDomain):
    """Kernels of which the matrix products of attention come in."""

    scores: Stage
    weighed: Stage

    def heads(self, attention: Attention, operands: dict[str, Stage]) -> KernelHeads:
        """See `_GivenProducts`."""
        self.given = _GivenProducts(self, attention, operands)
        return self.given


def _softmax_kernel(
    target: TargetDescription, rows: int, keys: int, head_dim: int, largest: int, record: Attention
) -> tuple[tirx.PrimFunc, str]:
    """Emit the kernel; return it, and the type of the exponentials that it stores."""
    domain = _SoftmaxDomain(layout_of(target), 1, "softmax")

    def stage(name: str, shape: tuple[int, ...], dtype: str, low: int, high: int) -> Stage:
        return domain.stage(te.placeholder(shape, dtype, name=name), low, high)

    bound = record.exponential.maximum * keys * 127
    scores = stage("products", (1, 1, rows, keys), "int32", -largest, largest)
    weighed = stage("context", (1, 1, rows, head_dim), "int32", -bound, bound)
    mask = stage("mask", (1, keys), "int32", 0, 1)
    multiplier = stage("multiplier", (1,), "int16", 0, 2**15 - 1)
    heads = {name: stage(name, (keys, head_dim), "int8", *_INT8) for name in "qkv"}
    domain.scores, domain.weighed = scores, weighed
    attended = record.body(domain, **heads, mask=mask, multiplier=multiplier)
    shape = domain.given.shape
    assert (shape.keys, rows % shape.tile) == (keys, 0), "only whole tiles"
    weights = domain.given.exponentials
    buffers = [stage.tensor for stage in (scores, mask, weighed, multiplier, weights, attended)]
    func = te.create_prim_func(buffers)
    func = func.with_attr("ibert.kernel", "softmax").with_attr("ibert.layer", "softmax")
    return func.with_attr("ibert.row_tile", shape.tile), weights.dtype


def released_norm(target: TargetDescription, rows: int, channels: int, seed: int = 0) -> RowKernel:
    """LayerNorm of the preset `released`, requantised as that preset does, half to even."""
    p = _Program("released_norm", "released_layer_norm", seed)
    bounds = (-(2**20), 2**20)
    x = p.input("x", p.entries(bounds, (1, rows, channels), "int32"), bounds)

    def body() -> Sequence[relax.Var]:
        offset = p.parameter("offset", p.entries((-(2**30), 2**30), (channels,), "int64"))
        y = p.emit(integer.released_layer_norm(x, offset, ReleasedLayerNorm(5), name="norm"))
        reals = p.random.uniform(0.5, 1.0, channels) * 2.0**-25
        signs = p.random.choice([-1, 1], channels)
        factors = exact_factors(reals * signs, 2**54)
        return [
            p.emit(
                integer.requantise_even(
                    y,
                    p.parameter("multiplier", factors.multipliers),
                    p.parameter("shift", factors.shifts),
                    name="out",
                    split=factors.split,
                    low=-127,
                    high=127,
                    dtype="int8",
                )
            )
        ]

    return p.finish(target, body, rows * channels)


def wide_attention(
    target: TargetDescription,
    batch: int,
    seq_len: int,
    heads: int,
    head_dim: int,
    *,
    released: bool = False,
    masked: int = 0,
    seed: int = 0,
) -> RowKernel:
    """Attention of the presets `paper` and `released`; `masked` tokens are padding."""
    p = _Program("attention", "attention", seed)
    shape = (batch, seq_len, heads * head_dim)
    q, k, v = (p.input(name, p.entries(_INT8, shape, "int8"), _INT8) for name in "qkv")
    mask = np.ones((batch, seq_len), "int32")
    mask[:, seq_len - masked :] = 0
    keep = p.input("mask", mask, (0, 1))
    scale = 1e-4 / head_dim**0.5
    top = np.floor(1.0 / 0.35815147 / scale**2) * 2.0**30
    exponential = (
        ReleasedExponential.from_scales(scale, top / 32767)
        if released
        else PolynomialExponential.from_scale(scale)
    )

    def body() -> Sequence[relax.Var]:
        multiplier = p.entries((2**13, 2**14), (shape[2],), "int32")
        return [
            p.emit(
                integer.attention(
                    q,
                    k,
                    v,
                    keep,
                    p.parameter("multiplier", multiplier),
                    name="attention",
                    num_heads=heads,
                    softmax="normalised",
                    exponential=exponential,
                    shift=20,
                    low=_INT8[0],
                    high=_INT8[1],
                )
            )
        ]

    return p.finish(target, body, batch * heads * seq_len * seq_len)


KERNELS: dict[str, Callable[..., RowKernel]] = {
    "gelu": gelu,
    "gelu_paper": gelu_paper,
    "gate": gate,
    "rotate": rotate,
    "rotate_packed": rotate_packed,
    "sigmoid": sigmoid,
    "layer_norm": layer_norm,
    "layer_norm_wide": layer_norm_wide,
    "norm_by_row": norm_by_row,
    "quantise_rows": quantise_rows,
    "rms_norm": rms_norm,
    "rms_norm_wide": rms_norm_wide,
    "released_norm": released_norm,
    "residual_add": residual_add,
    "requantise": requantise,
    "embedding": embedding,
    "mean_pool": mean_pool,
    "max_pool": _pool("max_pool"),
    "last_token": _pool("last_token"),
    "weighted_mean_pool": _pool("weighted_mean_pool"),
    "sqrt_mean_pool": _pool("sqrt_mean_pool"),
    "attention_pool": _attention_pool(released=False),
    "attention_pool_paper": _attention_pool(released=True),
    "concatenate": concatenate,
    "log1p_relu": log1p_relu,
    "position_ids": position_ids,
}
"""Builders that take (target, rows, channels)."""


def scheduled(kernel: RowKernel, target: TargetDescription) -> tirx.PrimFunc:
    """Schedule a kernel by its rule; the softmax as the rule for attention does it."""
    if kernel.name != "softmax":
        return schedule_kernel(kernel.name, kernel.func, target)
    sch = s_tir.Schedule(kernel.func)
    for name in ("valid", "scores"):
        if name in block_names(sch):
            sch.compute_inline(sch.get_sblock(name))
    rows = sch.get_loops(sch.get_sblock("exponential"))[2]
    tiles, _row = sch.split(rows, [None, int(kernel.func.attrs["ibert.row_tile"])])
    sch.compute_at(sch.get_sblock("row_max"), tiles, preserve_unit_loops=True)
    for name in ("row_sum", "row_bits", "row_factor", "attended_rows"):
        sch.reverse_compute_at(sch.get_sblock(name), tiles, preserve_unit_loops=True)
    fuse_row_passes(sch, {"row_max": None, "row_sum": "exponential"})
    return sch.mod["main"].with_attr("tirx.is_scheduled", True)
