"""Row operations as single kernels, with inputs and what the specification says of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from tvm import relax

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.spec.clipped import ClippedPolynomial, clipped_scale
from ibert_tvm.relay_passes.spec.exponential import PolynomialExponential
from ibert_tvm.relay_passes.spec.gelu import GELU, PaperGelu
from ibert_tvm.relay_passes.spec.layer_norm import LayerNormConstants
from ibert_tvm.relay_passes.spec.logarithm import Logarithm
from ibert_tvm.relay_passes.spec.logistic import SIGMOID, SILU
from ibert_tvm.relay_passes.spec.released import ReleasedLayerNorm, exact_factors
from ibert_tvm.relay_passes.spec.rotation import FRACTION_BITS, rotation_table
from ibert_tvm.relay_passes.spec.short_layer_norm import INPUT_LIMIT, ShortLayerNorm
from ibert_tvm.relay_passes.spec.short_requantise import short_factors
from ibert_tvm.relay_passes.spec.short_softmax import ShortExponential
from ibert_tvm.targets import TargetDescription
from tests.arm.row_program import INT8, STREAM, Body, RowKernel, RowProgram

_UNSIGNED = (0, 255)
_WIDE = (-(2**20), 2**20)


class Make(Protocol):
    """Makes a kernel of some rows and channels."""

    def __call__(
        self, target: TargetDescription, rows: int, channels: int, seed: int = 0
    ) -> RowKernel:
        """Emit it for a target."""


KERNELS: dict[str, Make] = {}


def row_kernel(kind: str, name: str = "") -> Callable[[Body], Make]:
    """Decorate the body of a program: it becomes a builder of kernels, one of `KERNELS`.

    Parameters
    ----------
    kind
        Of its first operator.
    name
        Its own, if it is not that of the function.
    """

    def decorate(body: Body) -> Make:
        label = name or body.__name__

        def make(target: TargetDescription, rows: int, channels: int, seed: int = 0) -> RowKernel:
            program = RowProgram(label, kind, rows, channels, seed)
            return program.finish(target, body, rows * channels)

        KERNELS[label] = make
        return make

    return decorate


@row_kernel("gelu")
def gelu(p: RowProgram) -> Sequence[relax.Var]:
    """GELU of 15 bits, requantised to 8: between the two linear layers of an encoder's block."""
    scale = clipped_scale(GELU.limit, 9.0)
    constants = ClippedPolynomial.from_scale(scale, GELU)
    g = p.emit(integer.gelu(p.rows_of("x"), constants, name="gelu"))
    return [p.narrowed("out", g, np.array([scale / 0.03]), 2**14, _UNSIGNED, "uint8", 6)]


@row_kernel("gelu")
def gelu_paper(p: RowProgram) -> Sequence[relax.Var]:
    """The published GELU of accumulators, with constants per channel, requantised to 8 bits."""
    x = p.rows_of("x", (-(2**19), 2**19), "int32")
    k = PaperGelu.from_scales(p.random.uniform(1e-5, 1e-4, p.channels))
    arrays = [p.parameter(name, getattr(k, name)) for name in ("q_b", "q_c", "q_1", "erf_shift")]
    g = p.emit(integer.gelu_paper(x, *arrays, name="gelu"))
    return [p.narrowed_wide(g, np.round(k.scales / 0.05 * 2.0**50), 50)]


@row_kernel("silu")
def gate(p: RowProgram) -> Sequence[relax.Var]:
    """SiLU of 15 bits times another value, requantised to 8 bits by channel."""
    function = SILU.of_multiple(1.702)
    x = p.rows_of("x")
    y = p.input("y", p.entries(STREAM, p.shape, "int16")[:, ::-1], STREAM)
    constants = ClippedPolynomial.from_scale(clipped_scale(function.limit, 9.0), function)
    z = p.emit(integer.multiply(p.emit(integer.silu(x, constants, name="silu")), y, name="product"))
    return [p.narrowed("out", z, p.random.uniform(2**-23, 2**-18, p.channels), 2**28)]


@row_kernel("sigmoid")
def sigmoid(p: RowProgram) -> Sequence[relax.Var]:
    """The logistic function of 15 bits, requantised to 8."""
    constants = ClippedPolynomial.from_scale(clipped_scale(SIGMOID.limit, 9.0), SIGMOID)
    g = p.emit(integer.sigmoid(p.rows_of("x"), constants, name="sigmoid"))
    return [p.narrowed("out", g, np.array([2.0**-7]), 2**15, _UNSIGNED, "uint8")]


@row_kernel("rotate")
def rotate(p: RowProgram) -> Sequence[relax.Var]:
    """Rotary position embeddings of 8 bits; all channels of two heads where those are even."""
    heads = 2 if p.channels % 4 == 0 else 1
    return rotated(p, heads, p.channels // heads // 2 * 2)


@row_kernel("rotate")
def rotate_packed(p: RowProgram) -> Sequence[relax.Var]:
    """A part of the channels of 16 bits, of tokens that come without padding."""
    return rotated(p, 1, max(p.channels // 3 // 2, 1) * 2, packed=True)


def rotated(p: RowProgram, heads: int, turned: int, packed: bool = False) -> Sequence[relax.Var]:
    """Rotate so many channels of each head."""
    x = p.rows_of("x", (-(2**14), 2**14)) if packed else p.rows_of("x", INT8, "int8")
    tokens = None
    if packed:  # in another order, as no packing has it: places must be looked up
        tokens = p.input("tokens", np.arange(p.rows, dtype="int32")[None, ::-1])
    angles = np.arange(p.rows + 3)[:, None] * 0.9 ** np.arange(turned // 2)
    table = rotation_table(np.concatenate([np.cos(angles), np.sin(angles)], axis=1))
    factors = short_factors(p.random.uniform(0.7, 0.9, p.channels) / 128, 2**15 - 1, -127, 127)
    call = integer.rotate(
        x,
        p.parameter("table", table.entries),
        p.parameter("multiplier", factors.multipliers[: p.channels if packed else 1]),
        tokens=tokens,
        name="rotate",
        num_heads=heads,
        raised=0 if packed else FRACTION_BITS,
        shift=factors.shift,
        low=-127,
        high=127,
        dtype="int8",
    )
    return [p.emit(call)]


_NORM = {"name": "norm", "shift": 14, "low": STREAM[0], "high": STREAM[1], "dtype": "int16"}


def _gain(p: RowProgram) -> relax.Var:
    return p.constants("gain", (-(2**14), 2**14))


def _offset(p: RowProgram) -> relax.Var:
    return p.constants("offset", (-(2**24), 2**24))


def _rows_with_one_of(p: RowProgram, value: int) -> relax.Var:
    """A stream of 15 bits, of which one row has no deviation, or is zero."""
    data = p.entries(STREAM, p.shape, "int16")
    data[0, p.rows // 2] = value
    return p.input("x", data, STREAM)


def _normalised(p: RowProgram) -> relax.Var:
    """LayerNorm of 15 bits."""
    constants = ShortLayerNorm.from_scale(1e-3, 1e-12, p.channels)
    x = _rows_with_one_of(p, 1)
    return p.emit(integer.layer_norm_short(x, _gain(p), _offset(p), constants, **_NORM))


def _narrowed(p: RowProgram, y: relax.Var) -> list[relax.Var]:
    """The stream in 15 bits, and requantised to 8 what a matrix reads."""
    factors = p.random.uniform(0.004, 0.008, p.channels)
    return [y, p.narrowed("out", y, factors, INPUT_LIMIT)]


def _by_row(p: RowProgram, x: relax.Var) -> list[relax.Var]:
    magnitude = p.emit(integer.row_magnitude(x, name="magnitude"))
    bounds = {"low": -127, "high": 127, "dtype": "int8"}
    return [magnitude, p.emit(integer.quantise_rows(x, magnitude, name="out", **bounds))]


@row_kernel("layer_norm_short")
def layer_norm(p: RowProgram) -> Sequence[relax.Var]:
    """LayerNorm of 15 bits: the stream in 15 bits, and requantised to 8 what a matrix reads."""
    return _narrowed(p, _normalised(p))


@row_kernel("layer_norm")
def layer_norm_wide(p: RowProgram) -> Sequence[relax.Var]:
    """LayerNorm of 21 bits, as the preset `paper` has it, to 8 bits."""
    x = p.rows_of("x", _WIDE, "int32")
    constants = LayerNormConstants(2**20 - 1, 5, 40, 16)
    y = p.emit(integer.layer_norm(x, _gain(p), _offset(p), constants, **_NORM))
    return [p.narrowed_wide(y, p.random.integers(2**22, 2**23, p.channels), 30)]


@row_kernel("layer_norm_short")
def norm_by_row(p: RowProgram) -> Sequence[relax.Var]:
    """LayerNorm of 15 bits: the stream in 15 bits, and in 8 by row what a matrix reads."""
    y = _normalised(p)
    factors = p.random.uniform(0.5, 0.9, p.channels)
    divided = p.narrowed("divided", y, factors, INPUT_LIMIT, STREAM, "int16")
    return [y, *_by_row(p, divided)]


@row_kernel("row_magnitude")
def quantise_rows(p: RowProgram) -> Sequence[relax.Var]:
    """The largest magnitude of each row, and its entries in 8 bits by it."""
    bounds = (-(2**15), 2**15 - 1)
    data = p.entries(bounds, p.shape, "int16")
    data[0, p.rows // 2] = 0
    data[0, 0] = np.arange(p.channels) % 3 - 1
    return _by_row(p, p.input("x", data, bounds))


@row_kernel("rms_norm_short")
def rms_norm(p: RowProgram) -> Sequence[relax.Var]:
    """RMSNorm of 15 bits: the stream in 15 bits, and requantised to 8 what a matrix reads."""
    x = _rows_with_one_of(p, 0)
    constants = ShortLayerNorm.from_scale(1e-3, 1e-12, p.channels)
    return _narrowed(p, p.emit(integer.rms_norm_short(x, _gain(p), constants, **_NORM)))


@row_kernel("rms_norm")
def rms_norm_wide(p: RowProgram) -> Sequence[relax.Var]:
    """RMSNorm of 21 bits, as the preset `paper` has it, to 8 bits."""
    x = p.rows_of("x", _WIDE, "int32")
    constants = LayerNormConstants(2**20 - 1, 5, 40, 16)
    y = p.emit(integer.rms_norm(x, _gain(p), constants, **_NORM))
    return [p.narrowed_wide(y, p.random.integers(2**22, 2**23, p.channels), 30)]


@row_kernel("released_layer_norm")
def released_norm(p: RowProgram) -> Sequence[relax.Var]:
    """LayerNorm of the preset `released`, requantised as that preset does, half to even."""
    x = p.rows_of("x", _WIDE, "int32")
    offset = p.constants("offset", (-(2**30), 2**30), "int64")
    y = p.emit(integer.released_layer_norm(x, offset, ReleasedLayerNorm(5), name="norm"))
    reals = p.random.uniform(0.5, 1.0, p.channels) * 2.0**-25
    factors = exact_factors(reals * p.random.choice([-1, 1], p.channels), 2**54)
    call = integer.requantise_even(
        y,
        p.parameter("multiplier", factors.multipliers),
        p.parameter("shift", factors.shifts),
        name="out",
        split=factors.split,
        low=-127,
        high=127,
        dtype="int8",
    )
    return [p.emit(call)]


@row_kernel("add")
def residual_add(p: RowProgram) -> Sequence[relax.Var]:
    """The sum of two streams of 15 bits; one of them at another scale."""
    a, b = p.rows_of("a"), p.rows_of("b")
    term = p.narrowed("term", a, np.array([0.7]), INPUT_LIMIT, STREAM, "int16")
    return [p.emit(integer.add_short(term, b, name="sum", low=STREAM[0], high=STREAM[1]))]


@row_kernel("requantise")
def requantise(p: RowProgram) -> Sequence[relax.Var]:
    """Accumulators to 8 bits, with a multiplier per channel."""
    x = p.rows_of("x", (-(2**22), 2**22), "int32")
    return [p.narrowed("out", x, p.random.uniform(1e-4, 1e-3, p.channels), 2**22)]


@row_kernel("embedding")
def embedding(p: RowProgram) -> Sequence[relax.Var]:
    """Rows of a table of 8 bits, requantised row by row to 15 bits."""
    vocabulary = 50
    ids = p.input("ids", p.entries((0, vocabulary - 1), (1, p.rows), "int32"))
    table = p.parameter("table", p.entries(INT8, (vocabulary, p.channels), "int8"))
    factors = p.constants("factors", (2**8, 2**11), count=vocabulary)
    wide = p.emit(integer.embedding(ids, table, factors, name="embedding", shift=6))
    return [p.narrowed("out", wide, np.array([0.9]), 2**13, STREAM, "int16")]


@row_kernel("mean_pool")
def mean_pool(p: RowProgram) -> Sequence[relax.Var]:
    """The mean over the tokens that are not masked."""
    x, mask = p.rows_of("x"), p.mask(padded_first=False)
    return [p.emit(integer.mean_pool(x, mask, name="mean", fraction_bits=4))]


def _pool(p: RowProgram, kind: str) -> Sequence[relax.Var]:
    """Another pooling of the tokens that are not masked; the row begins with padding too."""
    fraction = {"fraction_bits": 4} if "mean" in kind else {}
    x, mask = p.rows_of("x"), p.mask()
    return [p.emit(getattr(integer, kind)(x, mask, name="pool", **fraction))]


for _kind in ("max_pool", "last_token", "weighted_mean_pool", "sqrt_mean_pool"):
    row_kernel(_kind, _kind)(functools.partial(_pool, kind=_kind))


def _attention_pool(p: RowProgram, paper: bool) -> Sequence[relax.Var]:
    """What a learned query sees of the tokens that are not masked, by two heads if they divide."""
    heads = 1 + (p.channels % 2 == 0)
    scores = p.input("scores", p.entries(STREAM, (1, p.rows, heads), "int16"), STREAM)
    v, mask = p.rows_of("v", INT8, "int8"), p.mask()
    short = short_factors(p.random.uniform(0.005, 0.011, p.channels), 2**14, *INT8)
    multiplier, shift = short.multipliers, short.shift
    exponential: Any = ShortExponential.from_scale(2e-4)
    if paper:
        exponential = PolynomialExponential.from_scale(2e-4)
        multiplier, shift = p.entries((2**13, 2**14), (p.channels,), "int32"), 20
    call = integer.attention_pool(
        scores,
        v,
        p.parameter("multiplier", multiplier),
        mask,
        name="pool",
        exponential=exponential,
        shift=shift,
        low=INT8[0],
        high=INT8[1],
    )
    return [p.emit(call)]


for _kind, _paper in (("attention_pool", False), ("attention_pool_paper", True)):
    row_kernel("attention_pool", _kind)(functools.partial(_attention_pool, paper=_paper))


@row_kernel("concatenate")
def concatenate(p: RowProgram) -> Sequence[relax.Var]:
    """The channels of two values of different types, one after the other."""
    a = p.rows_of("a")
    b = p.input("b", p.entries(INT8, (1, p.rows, p.channels // 2), "int8"), INT8)
    return [p.emit(integer.concatenate(a, b, name="joined"))]


@row_kernel("log1p_relu")
def log1p_relu(p: RowProgram) -> Sequence[relax.Var]:
    """The logarithm of one plus what is positive."""
    constants = Logarithm.from_scale(1e-3, INPUT_LIMIT)
    return [p.emit(integer.log1p_relu(p.rows_of("x"), constants, name="log"))]


@row_kernel("position_ids")
def position_ids(p: RowProgram) -> Sequence[relax.Var]:
    """Positions that count the tokens that are not padding; channels are not used."""
    ids = p.input("ids", p.entries((1, 4), (1, p.rows), "int32"))
    return [p.emit(integer.position_ids(ids, name="p", kind="roberta", padding_index=1))]
