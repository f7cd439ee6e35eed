"""A small integer program, built by hand: every operator of the dialect once, random constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.passes import IntegerProgram
from ibert_tvm.relay_passes.spec.clipped import ClippedPolynomial, clipped_scale
from ibert_tvm.relay_passes.spec.exponential import BinaryExponential, PolynomialExponential
from ibert_tvm.relay_passes.spec.gelu import GELU, PaperGelu
from ibert_tvm.relay_passes.spec.layer_norm import LayerNormConstants
from ibert_tvm.relay_passes.spec.short_layer_norm import ShortLayerNorm
from ibert_tvm.relay_passes.spec.short_requantise import short_factors
from ibert_tvm.relay_passes.spec.short_softmax import ShortExponential

VOCABULARY, POSITIONS = 50, 64
# Arguments of `encoder_program`; sizes straddle vector widths.
ENCODERS: dict[str, dict[str, Any]] = {
    # Heads of 32, which with sequences of 16 fill the tiles: K and V are packed by shuffles.
    "whole": {"hidden": 64, "heads": 2, "feed_forward": 64},
    "even": {"hidden": 32, "heads": 4, "feed_forward": 64},
    "odd": {"hidden": 36, "heads": 3, "feed_forward": 50},
    "paper": {"hidden": 32, "heads": 2, "feed_forward": 48, "preset": "paper"},
    "relu_roberta": {"feed_forward": 40, "activation": "relu", "roberta": True},
}


class ProgramBuilder:
    """Builds ``main`` binding by binding, with parameters of random integers.

    Parameters
    ----------
    seed
        Of the random integers.
    """

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.parameters: dict[str, np.ndarray] = {}
        self.vars: list[relax.Var] = []
        self.builder = relax.BlockBuilder()

    def parameter(self, name: str, array: np.ndarray) -> relax.Var:
        """Add a parameter with its value."""
        var = relax.Var(name, relax.TensorType(array.shape, str(array.dtype)))
        self.parameters[name] = array
        self.vars.append(var)
        return var

    def integers(self, name: str, low: int, high: int, shape: tuple[int, ...], dtype: str):
        """Add a parameter of random integers in [low, high]."""
        return self.parameter(name, self.random.integers(low, high + 1, shape).astype(dtype))

    def emit(self, call: relax.Call) -> relax.Var:
        """Bind a call."""
        return self.builder.emit(call)

    def linear(self, name: str, x: relax.Var, channels: int) -> relax.Var:
        """Bind a linear layer with random weights."""
        depth = int(x.ty.shape.values[-1])
        weight = self.integers(f"{name}.weight", -127, 127, (channels, depth), "int8")
        bias = self.integers(f"{name}.bias", -4000, 4000, (channels,), "int32")
        return self.emit(integer.linear(x, weight, bias, name=name))

    def words(
        self, ids: relax.Var, channels: int, shift: int, name: str = "word", rows: int = 1
    ) -> relax.Var:
        """Bind rows of a table of 50, which have one factor together, or `rows` of their own."""
        table = self.integers(f"{name}.weight", -127, 127, (50, channels), "int8")
        low = 2**14 if rows == 1 else 1
        factor = self.integers(f"{name}.multiplier", low, 2**15, (rows,), "int32")
        return self.emit(integer.embedding(ids, table, factor, name=name, shift=shift))

    def attention(
        self,
        name: str,
        operands: Sequence[relax.Var],
        mask: relax.Var | None,
        factors: relax.Var,
        *,
        heads: int = 2,
        short: bool = True,
        scale: float = 1e-3,
        **attributes: Any,
    ) -> relax.Var:
        """Bind attention of q, k and v to 8 bits, in either form, with scores at a scale."""
        exponential = ShortExponential if short else PolynomialExponential
        given = {
            "softmax": "short" if short else "normalised",
            "exponential": exponential.from_scale(scale),
            **{"shift": 7, "low": -127, "high": 127},
            **attributes,
        }
        return self.emit(
            integer.attention(*operands, mask, factors, name=name, num_heads=heads, **given)
        )

    def requantise(
        self,
        name: str,
        x: relax.Var,
        gain: float,
        low: int = -127,
        high: int = 127,
        dtype: str = "int8",
        zero_point: int = 0,
        channels: int = 1,
    ) -> relax.Var:
        """Bind a requantisation by about `gain`."""
        shift = 30
        middle = max(1, int(gain * 2**shift))
        multiplier = self.integers(
            f"{name}.multiplier", max(1, middle // 2), middle, (channels,), "int32"
        )
        return self.emit(
            integer.requantise(
                x,
                multiplier,
                name=name,
                shift=shift,
                low=low,
                high=high,
                dtype=dtype,
                zero_point=zero_point,
            )
        )

    def requantise_short(
        self,
        name: str,
        x: relax.Var,
        gain: float,
        low: int = -127,
        high: int = 127,
        dtype: str = "int8",
        zero_point: int = 0,
        channels: int = 1,
    ) -> relax.Var:
        """Bind a requantisation in 16 bits by about `gain`, per channel."""
        magnitude = 2**15 - 1 if str(x.ty.dtype) == "int16" else 2**31 - 1
        reals = self.random.uniform(gain / 2, gain, channels)
        factors = short_factors(reals, magnitude, low, high, zero_point)
        return self.emit(
            integer.requantise_short(
                x,
                self.parameter(f"{name}.multiplier", factors.multipliers),
                self.parameter(f"{name}.pre_shift", factors.pre_shifts),
                name=name,
                shift=factors.shift,
                low=low,
                high=high,
                dtype=dtype,
                zero_point=zero_point,
            )
        )

    def layer_norm(self, name: str, x: relax.Var, short: bool = False) -> relax.Var:
        """Bind a layer norm, of 15 bits if `short`, to int16; some gains are negative, one is 0."""
        channels = int(x.ty.shape.values[-1])
        gain = self.random.integers(-(2**14), 2**14, channels).astype("int32")
        gain[0] = 0
        operands = (
            self.parameter(f"{name}.gain", gain),
            self.integers(f"{name}.offset", -(2**24), 2**24, (channels,), "int32"),
        )
        stored = {"shift": 14, "low": -32767, "high": 32767, "dtype": "int16"}
        if short:
            constants = ShortLayerNorm.from_scale(1e-3, 1e-12, channels)
            call = integer.layer_norm_short(x, *operands, constants, name=name, **stored)
        else:
            constants = LayerNormConstants(2**20 - 1, 5, 40, 16)
            call = integer.layer_norm(x, *operands, constants, name=name, **stored)
        return self.emit(call)

    def built(
        self, inputs: Sequence[relax.Var], body: Callable[[], Sequence[relax.Var]]
    ) -> tvm.IRModule:
        """A module of ``main(*inputs, *parameters)``, whose results `body` binds."""
        with self.builder.function("main"):
            with self.builder.dataflow():
                outputs = [self.builder.emit_output(value) for value in body()]
            results = outputs if len(outputs) > 1 else outputs[0]
            self.builder.emit_func_output(results, [*inputs, *self.vars])
        main = relax.transform.Normalize()(self.builder.get())["main"]
        return tvm.IRModule({"main": main.with_attr("num_input", len(inputs))})


def module_of(
    inputs: Sequence[relax.Var], make: Callable[..., relax.Call], **arrays: np.ndarray
) -> tvm.IRModule:
    """A module of ``main(*inputs, *parameters)``, which is what `make` gives of them."""
    p = ProgramBuilder(0)
    weights = [p.parameter(name, array) for name, array in arrays.items()]
    return p.built(inputs, lambda: [p.emit(make(*inputs, *weights))])


def encoder_program(
    hidden: int = 32,
    heads: int = 4,
    feed_forward: int = 48,
    preset: str = "accurate",
    activation: str = "gelu",
    roberta: bool = False,
    seed: int = 0,
    masked: bool = False,
) -> IntegerProgram:
    """One encoder layer with embeddings, mean pooling and a tanh pooler, as an integer program.

    Parameters
    ----------
    hidden, heads, feed_forward
        Sizes; any, also such that no vector width divides.
    preset
        Forms of GELU and softmax.
    activation
        ``gelu`` or ``relu``.
    roberta
        Position ids that count tokens.
    seed
        Of the constants.
    masked
        Set the last hidden state to 0 where there is padding, as lowering does.

    Returns
    -------
    IntegerProgram
        Outputs: the last hidden state, the masked mean, the pooler.
    """
    p = ProgramBuilder(seed)
    batch, seq_len = tirx.Var("batch", "int64"), tirx.Var("seq_len", "int64")
    ids = relax.Var("input_ids", relax.TensorType([batch, seq_len], "int32"))
    mask = relax.Var("attention_mask", relax.TensorType([batch, seq_len], "int32"))

    def body() -> Sequence[relax.Var]:
        last, *others = _encoder(
            p, ids, mask, hidden, heads, feed_forward, preset, activation, roberta
        )
        if masked:
            last = p.emit(integer.mask_tokens(last, mask, name="last"))
        return [last, *others]

    return IntegerProgram(p.built([ids, mask], body), p.parameters)


def _encoder(p, ids, mask, hidden, heads, feed_forward, preset, activation, roberta):
    kind = "roberta" if roberta else "absolute"
    positions = p.emit(
        integer.position_ids(ids, name="positions", kind=kind, offset=0, padding_index=1)
    )
    summed = None
    for name, index, rows in (("word", ids, VOCABULARY), ("position", positions, POSITIONS + 2)):
        table = p.integers(f"{name}.table", -127, 127, (rows, hidden), "int8")
        factor = p.integers(f"{name}.multiplier", 2**20, 2**24, (rows,), "int32")
        value = p.emit(integer.embedding(index, table, factor, name=name, shift=16))
        summed = value if summed is None else p.emit(integer.add(summed, value, name="embedded"))
    hidden_state = p.layer_norm("embedding_norm", summed)
    short = preset == "accurate"
    requantise = p.requantise_short if short else p.requantise
    operand = requantise("operand", hidden_state, 1 / 200, channels=hidden)
    # What makes 8 bits of an accumulator; below the largest factor of the 16-bit form.
    spread = min(127 / (127 * 30 * hidden**0.5), 2.0**-7)
    q, k, v = (
        requantise(f"{name}_8", p.linear(name, operand, hidden), spread, channels=hidden)
        for name in "qkv"
    )
    largest, dtype, shift = (2**15 - 1, "int16", 7) if short else (2**14, "int32", 20)
    factors = p.integers("context.multiplier", largest // 2, largest, (hidden,), dtype)
    context = p.attention(
        "attention", [q, k, v], mask, factors, heads=heads, short=short, shift=shift
    )
    projected = p.requantise(
        "projected_wide", p.linear("projected", context, hidden), 0.5, -(2**19), 2**19, "int32"
    )
    residual = p.requantise("residual", hidden_state, 0.9, -(2**19), 2**19, "int32")
    hidden_state = p.layer_norm(
        "attention_norm", p.emit(integer.add(projected, residual, name="attention_sum"))
    )
    operand = requantise("feed_forward_in", hidden_state, 1 / 200, channels=hidden)
    inner = p.linear("inner", operand, feed_forward)
    if activation == "relu":
        active = p.emit(integer.relu(inner, name="relu"))
        active = requantise("active", active, spread, 0, 255, "uint8", channels=feed_forward)
    elif short:
        wide = requantise("wide", inner, 0.1, 1 - 2**14, 2**14 - 1, "int16", channels=feed_forward)
        active = p.emit(
            integer.gelu(
                wide,
                ClippedPolynomial.from_scale(clipped_scale(GELU.limit, 9.0), GELU),
                name="gelu",
            )
        )
        active = requantise("active", active, 0.02, 0, 255, "uint8", 20, feed_forward)
    else:
        scales = p.random.uniform(1e-4, 1e-3, feed_forward)
        constants = PaperGelu.from_scales(scales)
        arrays = [
            p.parameter(f"gelu.{name}", getattr(constants, name))
            for name in ("q_b", "q_c", "q_1", "erf_shift")
        ]
        active = p.emit(integer.gelu_paper(inner, *arrays, name="gelu"))
        active = p.requantise("active", active, 1e-6, -127, 127, "int8", 0, feed_forward)
    outer = p.linear("outer", active, hidden)
    if short:
        bounds = {"low": 1 - 2**14, "high": 2**14 - 1}
        outer = requantise("outer_wide", outer, 0.3, **bounds, dtype="int16", channels=hidden)
        residual = requantise("residual_2", hidden_state, 0.6, **bounds, dtype="int16")
        total = p.emit(integer.add_short(outer, residual, name="output_sum", **bounds))
        last = p.layer_norm("output_norm", total, short=True)
    else:
        outer = p.requantise("outer_wide", outer, 0.5, -(2**19), 2**19, "int32")
        residual = p.requantise("residual_2", hidden_state, 0.9, -(2**19), 2**19, "int32")
        last = p.layer_norm("output_norm", p.emit(integer.add(outer, residual, name="output_sum")))
    mean = p.emit(integer.mean_pool(last, mask, name="mean", fraction_bits=8))
    first = p.emit(integer.select_token(last, name="first", index=0))
    first = p.requantise("first_8", first, 1 / 200)
    pooled = p.requantise(
        "pooled_wide", p.linear("pooler", first, hidden), 0.2, -32767, 32767, "int32"
    )
    pooled = p.emit(
        integer.tanh(pooled, BinaryExponential.for_tanh(1e-3), name="tanh", fraction_bits=15)
    )
    return last, mean, pooled
