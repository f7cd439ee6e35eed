"""The integer modules that lowering is to give, built beside the canonical ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.canonical import build
from ibert_tvm.relay_passes.lower import lower_to_integer
from ibert_tvm.relay_passes.quantization_table import (
    ActivationQuant,
    QuantizationTable,
    WeightQuant,
)
from ibert_tvm.relay_passes.spec.clipped import clipped_scale
from ibert_tvm.relay_passes.spec.fixed_point import dyadic_vector
from ibert_tvm.relay_passes.spec.gelu import GELU
from tests.lower.modules import SUM_HIGH, function, tensor, token_inputs

# Scales are powers of two but that of GELU: factors between them are exact, so the expected
# constants can be written down.
SUM = ActivationQuant(2.0**-14, -SUM_HIGH, SUM_HIGH)
WORDS = WeightQuant(np.array([[1, -2], [127, 3], [0, 5]], np.int8), np.array([0.5, 0.25, 1.0]))
STREAM = ActivationQuant(2.0**-12, -32767, 32767)
GELU_STREAM = ActivationQuant(clipped_scale(GELU.limit, 4.0), -32767, 32767)
INT8 = ActivationQuant(2.0**-4, -127, 127)
MATRIX = WeightQuant(np.array([[3, -4], [5, 6], [-7, 127]], np.int8), np.array([0.5, 0.25, 0.125]))
BIAS = np.array([1.0, -2.0, 0.3], np.float32)
LINEAR = {"up.weight": np.zeros((3, 2), np.float32), "up.bias": BIAS}
LINEAR_TABLE = {"matmul": {"x": INT8}, "matrices": {"up": MATRIX}}


def multiplier(factors: list[float], bits: int) -> tuple[np.ndarray, int]:
    vector = dyadic_vector(np.array(factors), bits)
    return vector.multipliers, vector.shift


def requantised_short(
    expected: Expected,
    x: relax.Var,
    name: str,
    multipliers: list[int],
    pre_shifts: list[int],
    **settings: Any,
) -> relax.Call:
    """The 16-bit requantisation with the given constants."""
    bounds = {"low": -127, "high": 127, "dtype": "int8", **settings}
    return integer.requantise_short(
        x,
        expected.constant(f"{name}.multiplier", np.array(multipliers, np.int16)),
        expected.constant(f"{name}.pre_shift", np.array(pre_shifts, np.int32)),
        name=name,
        **bounds,
    )


class Expected:
    """Builds the expected module and its parameters side by side."""

    def __init__(self) -> None:
        self.ids, self.mask = token_inputs()
        self.builder = relax.BlockBuilder()
        self.parameters: dict[str, np.ndarray] = {}
        self.variables: list[relax.Var] = []

    def constant(self, name: str, array: np.ndarray) -> relax.Var:
        self.parameters[name] = array
        self.variables.append(tensor(name, array.shape, str(array.dtype)))
        return self.variables[-1]

    def module(self, body) -> tvm.IRModule:
        with self.builder.function("main", attrs={"num_input": 2}):
            with self.builder.dataflow():
                out = self.builder.emit_output(body(self.builder.emit))
            self.builder.emit_func_output(out, [self.ids, self.mask, *self.variables])
        return self.builder.get()

    def embedded(self, emit) -> relax.Var:
        """The lowered form of ``x``: an embedding at the scale of its own stream entry."""
        factors, shift = multiplier([0.5 / SUM.scale, 0.25 / SUM.scale, 1.0 / SUM.scale], 22)
        words = self.constant("words.weight", WORDS.values)
        m = self.constant("x.multiplier", factors)
        return emit(integer.embedding(self.ids, words, m, name="x", shift=shift))


def lower(
    body, weights=None, preset="accurate", matmul=None, stream=None, matrices=None, grids=None
):
    """Lower a module whose value ``x`` is an embedding; returns what `lower_to_integer` does."""
    ids, mask = token_inputs()
    arrays = {"words.weight": np.zeros((3, 2), np.float32), **(weights or {})}
    variables = {name: tensor(name, array.shape) for name, array in arrays.items()}

    def whole(emit):
        x = emit(build.embedding(variables["words.weight"], ids, name="x"))
        return body(emit, x, mask, variables)

    module = function([ids, mask], list(variables.values()), whole)
    table = QuantizationTable(
        preset,
        matmul or {},
        {"x": SUM, **(stream or {})},
        matrices or {},
        {"x": WORDS},
        grids or {},
    )
    return lower_to_integer(module, arrays, table)


def check(lowered, expected: Expected, body) -> None:
    """Same operators and attributes, same parameters in the same order."""
    module = expected.module(body)
    tvm.ir.assert_structural_equal(lowered.module, module, map_free_vars=True)
    assert [v.name for v in lowered.module["main"].params[2:]] == list(expected.parameters)
    assert list(lowered.parameters) == list(expected.parameters)
    for name, array in expected.parameters.items():
        assert lowered.parameters[name].dtype == array.dtype, name
        np.testing.assert_array_equal(lowered.parameters[name], array, err_msg=name)


def linear(emit, x, weights):
    return emit(build.linear(x, weights["up.weight"], weights["up.bias"], name="up"))


def expected_operand(
    expected: Expected, emit, zero_point: int = 0, short: bool = True
) -> relax.Var:
    """The embedding times 2^-10 in 8 bits."""
    x = expected.embedded(emit)
    if short and zero_point == 0:
        # 2^14 / 2^15 of the accumulator / 2^2, with the 7 fraction bits that 14 - 7 leave.
        return emit(requantised_short(expected, x, "x.matmul", [2**14], [2], shift=7))
    if short:
        # 246 steps above the zero point are 8 bits, so one fraction bit less.
        unsigned = {"low": 0, "high": 255, "dtype": "uint8", "zero_point": zero_point}
        return emit(requantised_short(expected, x, "x.matmul", [2**14], [3], shift=6, **unsigned))
    return emit(
        integer.requantise(
            x,
            expected.constant("x.matmul.multiplier", multiplier([2.0**-10], 31)[0]),
            name="x.matmul",
            shift=40,
            low=-127,
            high=127,
            dtype="int8",
        )
    )


def expected_linear(expected: Expected, emit, zero_point: int = 0, short: bool = True) -> relax.Var:
    x = expected_operand(expected, emit, zero_point, short)
    # b / (S_x S_w[n]) with S_x = 1/16, less zero_point times the sum of the row.
    bias = np.array([32, -128, 38], np.int32) - zero_point * np.array([-1, 11, 120], np.int32)
    weight = expected.constant("up.weight", MATRIX.values)
    name = "up.bias" if zero_point == 0 else "up.bias.compensated"
    return emit(integer.linear(x, weight, expected.constant(name, bias), name="up"))
