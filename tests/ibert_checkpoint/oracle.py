"""An int64 oracle of the released I-BERT arithmetic, with every scale handed on.

Written from the paper and from the formulas of the released code (`quant_modules` and
`modeling_ibert` of transformers), independently of `relay_passes`: NumPy int64, and Python's
unbounded integers where a product leaves 64 bits. Two things differ from the released program, none
from its formulas: a layer gets the scale of its own input instead of the embeddings', and no
integer is kept in a float.

Scales of weights and activations, and biases, are float32 numbers, as they are there; products of
scales and constants of polynomials are float64.
"""

from __future__ import annotations

import decimal
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

F32 = np.float32


def act_scale(low: float, high: float, bits: int) -> float:
    """`symmetric_linear_quantization_params` of an activation."""
    largest = max(abs(F32(low)), abs(F32(high)), F32(1e-8))
    return float(F32(largest) / F32(2 ** (bits - 1) - 1))


def quantise(x: np.ndarray, scale: np.ndarray, bits: int) -> np.ndarray:
    """`SymmetricQuantFunction`: clamped to -n .. n - 1."""
    n = 2 ** (bits - 1) - 1
    return np.clip(np.round(F32(1.0) / scale * x), -n, n - 1).astype(np.int64)


def frexp31(real: float) -> tuple[int, int]:
    """`batch_frexp`: mantissa of 31 bits, rounded half away from zero, and exponent."""
    mantissa, exponent = np.frexp(real)
    scaled = decimal.Decimal(float(mantissa * 2**31))
    return int(scaled.quantize(decimal.Decimal(1), rounding=decimal.ROUND_HALF_UP)), 31 - int(
        exponent
    )


def round_shift(value: int, e: int) -> int:
    """``round(value / 2^e)``, halves to even, on unbounded integers."""
    if e <= 0:
        return value << -e
    whole, rest = value >> e, value & ((1 << e) - 1)
    half = 1 << (e - 1)
    return whole + (1 if rest > half or (rest == half and whole & 1) else 0)


def rescale(q: np.ndarray, scale: Any, target: float) -> np.ndarray:
    """`FixedPointMul` before its clamp: one factor, or one per channel of the last axis."""
    scales = np.broadcast_to(np.asarray(scale, np.float64), q.shape[-1:])
    out = np.empty(q.shape, np.int64)
    for channel, s in enumerate(scales.tolist()):
        m, e = frexp31(s / target)
        column = q[..., channel]
        rounded = [round_shift(int(value) * m, e) for value in column.ravel()]
        out[..., channel] = np.array(rounded, np.int64).reshape(column.shape)
    return out


def fixed_point(q: np.ndarray, scale: Any, target: float, bits: int) -> np.ndarray:
    """`FixedPointMul` without an identity."""
    n = 2 ** (bits - 1) - 1
    return np.clip(rescale(q, scale, target), -n - 1, n)


@dataclass
class Oracle:
    """The encoder of one checkpoint.

    Parameters
    ----------
    state : dict of str to numpy.ndarray
        Float weights and buffers by name, without the prefix of models with a head.
    layers, heads, padding : int
        Of the configuration.
    """

    state: dict[str, np.ndarray]
    layers: int
    heads: int
    padding: int
    values: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.state = {name.removeprefix("ibert."): a for name, a in self.state.items()}

    def scale(self, act: str, bits: int) -> float:
        return act_scale(self.state[f"{act}.x_min"][0], self.state[f"{act}.x_max"][0], bits)

    def see(self, name: str, value: np.ndarray) -> np.ndarray:
        self.values[name] = value
        return value

    # -- modules ------------------------------------------------------------------------------

    def embedding(self, name: str, ids: np.ndarray) -> tuple[np.ndarray, float]:
        """`QuantEmbedding`."""
        weight = self.state[f"embeddings.{name}.weight"]
        scale = F32(max(abs(weight.min()), abs(weight.max()), F32(1e-8))) / F32(127)
        return quantise(weight, scale, 8)[ids], float(scale)

    def linear(self, name: str, x: np.ndarray, x_scale: float) -> tuple[np.ndarray, np.ndarray]:
        """`QuantLinear` per channel."""
        weight, bias = self.state[f"{name}.weight"], self.state[f"{name}.bias"]
        largest = np.maximum(np.abs(weight.min(1)), np.abs(weight.max(1)))
        scale = np.maximum(largest, F32(1e-8)) / F32(127)
        integers = quantise(weight, scale[:, None], 8)
        bias_int = quantise(bias, scale * F32(x_scale), 32)
        return x @ integers.T + bias_int, scale.astype(np.float64) * x_scale

    def layer_norm(self, name: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`IntLayerNorm`."""
        gamma = self.state[f"{name}.weight"].astype(np.float64)
        beta = self.state[f"{name}.bias"].astype(np.float64)
        shift, channels = int(self.state[f"{name}.shift"][0]), x.shape[-1]
        total = x.sum(-1, keepdims=True)
        doubled = 2 * total + channels  # round(total / channels), halves to even
        mean = doubled // (2 * channels)
        mean -= (doubled % (2 * channels) == 0) & (mean & 1)
        y = x - mean
        variance = ((y >> shift) ** 2).sum(-1, keepdims=True)
        roots = [math.isqrt(int(v)) << shift for v in variance.ravel()]
        std = np.array(roots, np.int64).reshape(variance.shape)
        factor = 2**31 // std
        unit = math.sqrt(channels) / 2**30
        bias = np.floor(beta / gamma / unit).astype(np.int64)
        return ((y * factor) >> 1) + bias, unit * gamma

    def gelu(self, q: np.ndarray, scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`IntGELU`."""
        inner = scale / 1.4142
        b = np.floor(-1.769 / inner).astype(np.int64)
        c = np.floor((1 / -0.2888) / inner**2).astype(np.int64)
        y = np.sign(q) * ((np.minimum(np.abs(q), -b) + b) ** 2 + c)
        y = y >> 14
        sigmoid = inner**2 * -0.2888 * 2**14
        one = np.floor(1.0 / sigmoid).astype(np.int64)
        return q * (y + one), scale * sigmoid / 2

    def softmax(self, name: str, scores: np.ndarray, scale: float, keep: np.ndarray) -> np.ndarray:
        """`IntSoftmax`; scores [batch, head, query, key], the mask as -infinity."""
        x0 = math.floor(-0.6931 / scale)
        b = math.floor(0.96963238 / 0.35815147 / scale)
        c = math.floor(1.0 / 0.35815147 / scale**2)
        infinity = 2**50
        x = np.where(keep[:, None, None, :], scores, -infinity)
        x = x - x.max(-1, keepdims=True)
        x = np.maximum(x, 30 * x0)
        q = x // x0  # both at most 0: the floor of a quotient that is not negative
        r = x - x0 * q
        polynomial = (r + b) * r + c
        low, high = (float(self.state[f"{name}.act.{end}"][0]) for end in ("x_min", "x_max"))
        if high < 1.1e-5:  # softmax ran in float during training: the largest possible value
            high = float(c * 2**30)
        m, e = frexp31(1.0 / act_scale(low, high, 16))
        exponential = [
            round_shift(max(int(p) << (30 - int(z)), 0) * m, e)
            for p, z in zip(polynomial.ravel(), q.ravel(), strict=True)
        ]
        exp = np.clip(np.array(exponential, np.int64), -32768, 32767).reshape(x.shape)
        factor = 2**32 // exp.sum(-1, keepdims=True)
        return (exp * factor) >> 24

    # -- the encoder --------------------------------------------------------------------------

    def run(
        self, ids: np.ndarray, mask: np.ndarray, types: np.ndarray | None = None
    ) -> tuple[np.ndarray, float]:
        """Run the encoder; the last hidden state as s8 and its scale."""
        real = (ids != self.padding).astype(np.int64)
        positions = np.cumsum(real, axis=1) * real + self.padding
        types = np.zeros_like(ids) if types is None else types
        word, word_scale = self.embedding("word_embeddings", ids)
        kind, kind_scale = self.embedding("token_type_embeddings", types)
        place, place_scale = self.embedding("position_embeddings", positions)
        s16 = self.scale("embeddings.embeddings_act1", 16)
        x = np.clip(rescale(word, word_scale, s16) + rescale(kind, kind_scale, s16), -32768, 32767)
        self.see("embeddings.add_token_type", x)
        x = np.clip(x + rescale(place, place_scale, s16), -32768, 32767)
        self.see("embeddings.add_position", x)
        n, n_scale = self.layer_norm("embeddings.LayerNorm", x)
        self.see("embeddings.LayerNorm.normalised", n)
        scale = self.scale("embeddings.output_activation", 8)
        x = self.see("embeddings.LayerNorm.grid", fixed_point(n, n_scale, scale, 8))
        for index in range(self.layers):
            x, scale = self.layer(f"encoder.layer.{index}", x, scale, mask != 0)
        return x, scale

    def layer(
        self, path: str, x: np.ndarray, scale: float, keep: np.ndarray
    ) -> tuple[np.ndarray, float]:
        inner = f"{path}.attention.self"
        parts, scales = {}, {}
        for part in ("query", "key", "value"):
            acc, acc_scale = self.linear(f"{inner}.{part}", x, scale)
            self.see(f"{inner}.{part}", acc)
            scales[part] = self.scale(f"{inner}.{part}_activation", 8)
            s8 = fixed_point(acc, acc_scale, scales[part], 8)
            self.see(f"{inner}.{part}.matmul", s8)
            size = s8.shape[-1] // self.heads
            parts[part] = s8.reshape(*s8.shape[:2], self.heads, size).transpose(0, 2, 1, 3)
        scores = parts["query"] @ parts["key"].swapaxes(-1, -2)
        score_scale = scales["query"] * scales["key"] / math.sqrt(parts["query"].shape[-1])
        probabilities = self.softmax(f"{inner}.softmax", scores, score_scale, keep)
        self.see(f"{inner}.probabilities", probabilities)
        context = (probabilities @ parts["value"]).transpose(0, 2, 1, 3).reshape(x.shape)
        self.see(inner, context)
        context_scale = self.scale(f"{inner}.output_activation", 8)
        context = fixed_point(context, scales["value"] / 256, context_scale, 8)
        self.see(f"{inner}.matmul", context)
        y, y_scale = self.residual(f"{path}.attention.output", context, context_scale, x, scale)
        wide_scale = self.scale(f"{path}.pre_intermediate_act", 8)
        y = fixed_point(y, y_scale, wide_scale, 8)
        self.see(f"{path}.attention.output.LayerNorm.matmul", y)
        acc, acc_scale = self.linear(f"{path}.intermediate.dense", y, wide_scale)
        self.see(f"{path}.intermediate.dense", acc)
        gelu, gelu_scale = self.gelu(acc, acc_scale)
        self.see(f"{path}.intermediate.gelu", gelu)
        first = self.scale(f"{path}.intermediate.output_activation", 8)
        s8 = self.see(f"{path}.intermediate.gelu.grid", fixed_point(gelu, gelu_scale, first, 8))
        second = self.scale(f"{path}.pre_output_act", 8)
        s8 = self.see(f"{path}.intermediate.gelu.matmul", fixed_point(s8, first, second, 8))
        return self.residual(f"{path}.output", s8, second, y, wide_scale)

    def residual(
        self, path: str, x: np.ndarray, scale: float, identity: np.ndarray, identity_scale: float
    ) -> tuple[np.ndarray, float]:
        """`IBertSelfOutput`, `IBertOutput`."""
        acc, acc_scale = self.linear(f"{path}.dense", x, scale)
        self.see(f"{path}.dense", acc)
        s22 = self.scale(f"{path}.ln_input_act", 22)
        total = rescale(acc, acc_scale, s22) + rescale(identity, identity_scale, s22)
        total = self.see(f"{path}.add", np.clip(total, -(2**21), 2**21 - 1))
        n, n_scale = self.layer_norm(f"{path}.LayerNorm", total)
        self.see(f"{path}.LayerNorm.normalised", n)
        s8 = self.scale(f"{path}.output_activation", 8)
        out = fixed_point(n, n_scale, s8, 8)
        return self.see(f"{path}.LayerNorm.grid", out), s8
