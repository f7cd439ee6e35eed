"""Before and Expected: which integer operators every canonical operator becomes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from relay_passes import integer
from relay_passes.canonical import build
from relay_passes.integer.attrs import GeluAttrs
from relay_passes.lower import lower_to_integer
from relay_passes.quantization_table import ActivationQuant, QuantizationTable, WeightQuant
from relay_passes.spec.fixed_point import dyadic_vector
from relay_passes.spec.gelu import AccurateGelu, PaperGelu, gelu_scale
from relay_passes.spec.layer_norm import LayerNormAffine, LayerNormConstants
from relay_passes.spec.presets import ACCURATE, PAPER
from relay_passes.spec.short_layer_norm import ShortLayerNorm
from tests.lower.modules import SUM_HIGH, function, tensor, token_inputs

# Scales are powers of two: factors between them are exact, so the expected constants can be
# written down.
SUM = ActivationQuant(2.0**-14, -SUM_HIGH, SUM_HIGH)
WORDS = WeightQuant(np.array([[1, -2], [127, 3], [0, 5]], np.int8), np.array([0.5, 0.25, 1.0]))
STREAM = ActivationQuant(2.0**-12, -32767, 32767)
INT8 = ActivationQuant(2.0**-4, -127, 127)
MATRIX = WeightQuant(np.array([[3, -4], [5, 6], [-7, 127]], np.int8), np.array([0.5, 0.25, 0.125]))
BIAS = np.array([1.0, -2.0, 0.3], np.float32)


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


def test_embedding_is_requantised_by_row():
    lowered = lower(lambda emit, x, mask, w: emit(build.relu(x, name="y")))
    expected = Expected()

    def body(emit):
        return emit(integer.relu(expected.embedded(emit), name="y"))

    check(lowered, expected, body)


def test_a_sum_of_embeddings_takes_each_at_its_scale_directly():
    lowered = lower(lambda emit, x, mask, w: emit(build.add(x, x, name="sum")), stream={"sum": SUM})
    expected = Expected()

    def body(emit):
        factors, shift = multiplier([2.0**13, 2.0**12, 2.0**14], 22)
        words = expected.constant("words.weight", WORDS.values)
        m = expected.constant("x.for.sum.multiplier", factors)
        term = emit(integer.embedding(expected.ids, words, m, name="x.for.sum", shift=shift))
        return emit(integer.add(term, term, name="sum"))

    check(lowered, expected, body)


LINEAR = {"up.weight": np.zeros((3, 2), np.float32), "up.bias": BIAS}
LINEAR_TABLE = {"matmul": {"x": INT8}, "matrices": {"up": MATRIX}}


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


@pytest.mark.parametrize("zero_point", [0, 9])
def test_linear_folds_bias_and_zero_point(zero_point):
    quant = INT8 if zero_point == 0 else ActivationQuant(2.0**-4, 0, 255, zero_point)
    lowered = lower(
        lambda emit, x, mask, w: emit(build.relu(linear(emit, x, w), name="y")),
        LINEAR,
        matmul={"x": quant},
        matrices={"up": MATRIX},
        stream={"y": STREAM},
    )
    expected = Expected()

    def body(emit):
        acc = expected_linear(expected, emit, zero_point)
        y = emit(integer.relu(acc, name="y"))
        factors, shift = multiplier([2.0**7, 2.0**6, 2.0**5], 31)
        return emit(
            integer.requantise(
                y,
                expected.constant("y.stream.multiplier", factors),
                name="y.stream",
                shift=shift,
                low=-32767,
                high=32767,
                dtype="int16",
            )
        )

    check(lowered, expected, body)
    assert lowered.scales["values"]["up"] == [
        {"value": "up", "form": "native", "scale": [2**-5, 2**-6, 2**-7], "zero_point": 0}
    ]
    assert lowered.scales["outputs"] == [
        {"name": "y", "value": "y.stream", "scale": 2**-12, "zero_point": 0, "dtype": "int16"}
    ]


def test_smoothing_only_changes_the_multipliers_of_the_8_bit_form():
    divided = ActivationQuant(2.0**-4, -127, 127, 0, np.array([4.0, 0.5]))
    lowered = lower(
        lambda emit, x, mask, w: linear(emit, x, w),
        LINEAR,
        matmul={"x": divided},
        matrices={"up": MATRIX},
        stream={"up": STREAM},
    )
    plain = lower(
        lambda emit, x, mask, w: linear(emit, x, w), LINEAR, **LINEAR_TABLE, stream={"up": STREAM}
    )
    changed = [
        name
        for name in plain.parameters
        if not np.array_equal(plain.parameters[name], lowered.parameters[name])
    ]
    assert changed == ["x.matmul.multiplier", "x.matmul.pre_shift"]
    # 2^-10 / 4 and 2^-10 / 0.5 are a factor of 8 apart.
    assert lowered.parameters["x.matmul.multiplier"].tolist() == [2**14, 2**14]
    assert lowered.parameters["x.matmul.pre_shift"].tolist() == [4, 1]


def test_accurate_gelu_works_on_the_16_bit_stream():
    lowered = lower(
        lambda emit, x, mask, w: emit(build.gelu(linear(emit, x, w), name="y", form="tanh")),
        LINEAR,
        **LINEAR_TABLE,
        stream={"up": STREAM, "y": STREAM},
    )
    expected = Expected()

    def body(emit):
        factors, shift = multiplier([2.0**7, 2.0**6, 2.0**5], 31)
        stream = emit(
            integer.requantise(
                expected_linear(expected, emit),
                expected.constant("up.stream.multiplier", factors),
                name="up.stream",
                shift=shift,
                low=-32767,
                high=32767,
                dtype="int16",
            )
        )
        return emit(integer.gelu(stream, AccurateGelu.from_scale(2.0**-12), name="y"))

    check(lowered, expected, body)


def test_a_grid_rounds_a_value_before_anything_reads_it():
    lowered = lower(
        lambda emit, x, mask, w: emit(build.gelu(linear(emit, x, w), name="y", form="tanh")),
        LINEAR,
        **LINEAR_TABLE,
        stream={"up": STREAM, "y": STREAM},
        grids={"up": ActivationQuant(2.0**-5, -118, 137)},
    )
    expected = Expected()

    def body(emit):
        factors, shift = multiplier([1.0, 0.5, 0.25], 31)
        grid = emit(
            integer.requantise(
                expected_linear(expected, emit),
                expected.constant("up.grid.multiplier", factors),
                name="up.grid",
                shift=shift,
                low=-118,
                high=137,
                dtype="int16",
            )
        )
        factor, shift = multiplier([2.0**7], 22)
        stream = emit(
            integer.requantise(
                grid,
                expected.constant("up.stream.multiplier", factor),
                name="up.stream",
                shift=shift,
                low=-32767,
                high=32767,
                dtype="int16",
            )
        )
        return emit(integer.gelu(stream, AccurateGelu.from_scale(2.0**-12), name="y"))

    check(lowered, expected, body)
    assert [form["form"] for form in lowered.scales["values"]["up"]] == ["native", "grid", "stream"]


def test_a_grid_that_the_value_is_on_already_costs_nothing():
    same = ActivationQuant(2.0**-12, -32767, 32767)
    plain, gridded = (
        lower(
            lambda emit, x, mask, w: emit(
                build.layer_norm(x, w["norm.weight"], w["norm.bias"], name="n", epsilon=1e-5)
            ),
            {"norm.weight": np.ones(2, np.float32), "norm.bias": np.zeros(2, np.float32)},
            stream={"n": STREAM},
            grids=grids,
        )
        for grids in ({}, {"n": same})
    )
    tvm.ir.assert_structural_equal(plain.module, gridded.module)


def test_paper_gelu_works_on_the_accumulator():
    lowered = lower(
        lambda emit, x, mask, w: emit(build.gelu(linear(emit, x, w), name="y")),
        LINEAR,
        **LINEAR_TABLE,
        preset="paper",
        stream={"y": STREAM},
    )
    expected = Expected()
    constants = PaperGelu.from_scales(np.array([2.0**-5, 2.0**-6, 2.0**-7]))

    def body(emit):
        acc = expected_linear(expected, emit, short=False)
        arrays = [
            expected.constant(f"y.{name}", getattr(constants, name))
            for name in ("q_b", "q_c", "q_1", "erf_shift")
        ]
        y = emit(integer.gelu_paper(acc, *arrays, name="y"))
        bound = int((np.abs(MATRIX.values.astype(int)).sum(1) * 127 + [32, 128, 38]).max())
        bits = (bound * (2 * int(-constants.q_1.min()) + 4)).bit_length()
        factors, shift = multiplier((constants.scales / 2.0**-12).tolist(), min(61 - bits, 31))
        return emit(
            integer.requantise(
                y,
                expected.constant("y.stream.multiplier", factors),
                name="y.stream",
                shift=shift,
                low=-32767,
                high=32767,
                dtype="int16",
            )
        )

    check(lowered, expected, body)
    assert (lowered.parameters["y.stream.multiplier"] < 0).all()


@pytest.mark.parametrize("preset", [ACCURATE, PAPER])
def test_layer_norm_reads_a_sum_as_it_is(preset):
    gamma, beta = np.array([1.0, -0.5], np.float32), np.array([0.25, 3.0], np.float32)
    lowered = lower(
        lambda emit, x, mask, w: emit(
            build.layer_norm(
                emit(build.add(x, x, name="sum")), w["gamma"], w["beta"], name="y", epsilon=1e-5
            )
        ),
        {"gamma": gamma, "beta": beta},
        preset=preset.name,
        stream={"sum": SUM, "y": STREAM},
    )
    expected = Expected()
    affine = LayerNormAffine.from_scale(gamma, beta, STREAM.scale)

    def body(emit):
        factors, shift = multiplier([2.0**13, 2.0**12, 2.0**14], 22)
        words = expected.constant("words.weight", WORDS.values)
        m = expected.constant("x.for.sum.multiplier", factors)
        term = emit(integer.embedding(expected.ids, words, m, name="x.for.sum", shift=shift))
        return emit(
            integer.layer_norm(
                emit(integer.add(term, term, name="sum")),
                expected.constant("gamma", affine.gain),
                expected.constant("beta", affine.offset),
                LayerNormConstants.from_scale(
                    SUM.scale, 1e-5, 2, reciprocal_bits=preset.reciprocal_bits
                ),
                name="y",
                shift=affine.shift,
                low=-32767,
                high=32767,
                dtype="int16",
            )
        )

    check(lowered, expected, body)


def test_a_sum_of_15_bits_is_added_and_normalised_in_16():
    gamma, beta = np.array([1.0, -0.5], np.float32), np.array([0.25, 3.0], np.float32)
    lowered = lower(
        lambda emit, x, mask, w: emit(
            build.layer_norm(
                emit(build.add(x, x, name="sum")), w["gamma"], w["beta"], name="y", epsilon=1e-5
            )
        ),
        {"gamma": gamma, "beta": beta},
        stream={"sum": ActivationQuant(2.0**-10, 1 - 2**14, 2**14 - 1), "y": STREAM},
    )
    expected = Expected()
    affine = LayerNormAffine.from_scale(gamma, beta, STREAM.scale)

    def body(emit):
        factors, shift = multiplier([2.0**9, 2.0**8, 2.0**10], 22)
        words = expected.constant("words.weight", WORDS.values)
        m = expected.constant("x.for.sum.multiplier", factors)
        term = emit(integer.embedding(expected.ids, words, m, name="x.for.sum", shift=shift))
        bounds = {"low": 1 - 2**14, "high": 2**14 - 1}
        return emit(
            integer.layer_norm_short(
                emit(integer.add_short(term, term, name="sum", **bounds)),
                expected.constant("gamma", affine.gain),
                # n is rounded down: half a gain is added.
                expected.constant("beta", affine.offset + affine.gain // 2),
                ShortLayerNorm.from_scale(2.0**-10, 1e-5, 2),
                name="y",
                shift=affine.shift,
                low=-32767,
                high=32767,
                dtype="int16",
            )
        )

    check(lowered, expected, body)


def test_gelu_of_a_scale_that_16_bits_do_not_serve_is_requantised_once_more():
    # 2^-14 ends before T = 3.69652, where the polynomial does.
    lowered = lower(
        lambda emit, x, mask, w: emit(build.gelu(linear(emit, x, w), name="y", form="erf")),
        LINEAR,
        **LINEAR_TABLE,
        stream={"up": ActivationQuant(2.0**-14, -32767, 32767), "y": STREAM},
    )
    calls = {
        integer.attributes(binding.value).name: binding.value
        for binding in lowered.module["main"].body.blocks[0].bindings
        if integer.is_integer_op(binding.value)
    }
    scale = gelu_scale(32767 * 2.0**-14)
    term = integer.attributes(calls["up.for.y"])
    assert (term.low, term.high, term.dtype) == (1 - 2**14, 2**14 - 1, "int16")
    assert integer.attributes(calls["y"]) == GeluAttrs("y", AccurateGelu.from_scale(scale))
    assert lowered.scales["values"]["y"][0]["scale"] == scale


@pytest.mark.parametrize("preset", [ACCURATE, PAPER])
def test_attention_yields_the_8_bit_context_at_once(preset):
    values = ActivationQuant(2.0**-4, -127, 127, 0, np.array([1.0, 0.5, 0.25]))
    context = ActivationQuant(2.0**-5, -127, 127, 0, np.array([2.0, 1.0, 1.0]))
    weights, matrices = {}, {}
    for name in "qkv":
        weights[f"{name}.weight"] = np.zeros((3, 2), np.float32)
        weights[f"{name}.bias"] = np.zeros(3, np.float32)
        matrices[name] = MATRIX

    def source(emit, x, mask, w):
        q, k, v = (emit(build.linear(x, w[f"{n}.weight"], w[f"{n}.bias"], name=n)) for n in "qkv")
        return emit(build.attention(q, k, v, mask, name="y", num_heads=3, scale=0.5))

    lowered = lower(
        source,
        weights,
        preset=preset.name,
        matmul={"x": INT8, "q": INT8, "k": INT8, "v": values, "y": context},
        matrices=matrices,
        stream={"y": STREAM},
    )
    expected = Expected()

    def body(emit):
        x = expected_operand(expected, emit, short=preset.short)
        accumulators = [
            emit(
                integer.linear(
                    x,
                    expected.constant(f"{n}.weight", MATRIX.values),
                    expected.constant(f"{n}.bias", np.zeros(3, np.int32)),
                    name=n,
                )
            )
            for n in "qkv"
        ]
        heads = []
        for name, acc in zip("qkv", accumulators, strict=True):
            scales = [1.0, 1.0, 1.0] if name != "v" else [1.0, 0.5, 0.25]
            factors = [2.0**-n / s / 2**-4 for n, s in zip((5, 6, 7), scales, strict=True)]
            if preset.short:  # the accumulator has 16 bits: no shift before or after
                array = [int(factor * 2**15) for factor in factors]
                heads.append(
                    emit(requantised_short(expected, acc, f"{name}.matmul", array, [0], shift=0))
                )
                continue
            array, shift = multiplier(factors, 15)
            heads.append(
                emit(
                    integer.requantise(
                        acc,
                        expected.constant(f"{name}.matmul.multiplier", array),
                        name=f"{name}.matmul",
                        shift=shift,
                        low=-127,
                        high=127,
                        dtype="int8",
                    )
                )
            )
        ratios = [2.0**-4 * v / 2**-5 / d for v, d in ((1, 2), (0.5, 1), (0.25, 1))]
        if preset.short:  # 7 fraction bits; 6 more leave the multipliers below 1
            array, shift = np.array([2.0**14 * r for r in ratios], np.int16), 6
        else:
            array, shift = multiplier([r / 256 for r in ratios], 15)
        y = emit(
            integer.attention(
                *heads,
                expected.mask,
                expected.constant("y.multiplier", array),
                name="y",
                num_heads=3,
                softmax=preset.softmax,
                exponential=preset.exponential_for(2.0**-8 * 0.5),
                shift=shift,
                low=-127,
                high=127,
            )
        )
        array, shift = multiplier([2.0**-4 / 2**-12, 2.0**-5 / 2**-12, 2.0**-5 / 2**-12], 23)
        y = emit(
            integer.requantise(
                y,
                expected.constant("y.stream.multiplier", array),
                name="y.stream",
                shift=shift,
                low=-32767,
                high=32767,
                dtype="int16",
            )
        )
        return emit(integer.mask_tokens(y, expected.mask, name="y.stream.masked"))

    check(lowered, expected, body)


@pytest.mark.parametrize("masked", [True, False])
def test_outputs_per_token_are_masked_as_attention_is(masked):
    def body(emit, x, mask, w):
        q, k, v = (emit(build.linear(x, w["up.weight"], w["up.bias"], name=n)) for n in "qkv")
        last = [mask] if masked else []
        y = emit(build.attention(q, k, v, *last, name="y", num_heads=1, scale=0.5))
        return emit(build.select_token(y, name="one")), y

    matmul = dict.fromkeys("xqkvy", INT8)
    matrices = dict.fromkeys("qkv", MATRIX)
    stream = {"y": STREAM, "one": STREAM}
    lowered = lower(body, LINEAR, matmul=matmul, matrices=matrices, stream=stream)
    operators = [
        (b.value.op.name, str(b.value.attrs["name"]))
        for b in lowered.module["main"].body.blocks[0].bindings
        if hasattr(b.value, "op")
    ]
    found = [name for op, name in operators if op == "integer.mask_tokens"]
    assert found == (["y.masked"] if masked else [])
    outputs = [output["value"] for output in lowered.scales["outputs"]]
    assert outputs == ["one", "y.masked" if masked else "y"]


def test_mean_pool_keeps_fraction_bits_that_int32_has_room_for():
    lowered = lower(
        lambda emit, x, mask, w: emit(
            build.mean_pool(emit(build.add(x, x, name="sum")), mask, name="y")
        ),
        stream={"sum": SUM},
    )
    call = lowered.module["main"].body.blocks[0].bindings[-2].value
    assert (call.op.name, int(call.attrs["fraction_bits"])) == ("integer.mean_pool", 7)
    assert lowered.scales["outputs"][0]["scale"] == 2.0**-14 / 2**7


def test_select_token_takes_one_token_before_anything_is_requantised():
    lowered = lower(
        lambda emit, x, mask, w: emit(
            build.tanh(emit(build.select_token(linear(emit, x, w), name="one")), name="y")
        ),
        LINEAR,
        **LINEAR_TABLE,
        stream={"one": STREAM},
    )
    bindings = lowered.module["main"].body.blocks[0].bindings
    assert [b.value.attrs["name"] for b in bindings[:-1]] == [
        "x",
        "x.matmul",
        "up",
        "one",
        "one.stream",
        "y",
    ]
    assert lowered.scales["outputs"][0]["scale"] == 2.0**-15


def test_a_form_that_several_read_is_made_once():
    def source(emit, x, mask, w):
        y = linear(emit, x, w)
        first = emit(build.gelu(y, name="first"))
        second = emit(build.gelu(y, name="second"))
        return first, second

    lowered = lower(
        source, LINEAR, **LINEAR_TABLE, stream={n: STREAM for n in ("up", "first", "second")}
    )
    names = [
        str(b.value.attrs["name"])
        for b in lowered.module["main"].body.blocks[0].bindings
        if isinstance(b.value, relax.Call)
    ]
    assert names == ["x", "x.matmul", "up", "up.stream", "first", "second"]


def test_values_that_no_output_depends_on_are_left_out():
    def source(emit, x, mask, w):
        linear(emit, x, w)
        return emit(build.relu(x, name="y"))

    lowered = lower(source, LINEAR)
    assert list(lowered.parameters) == ["words.weight", "x.multiplier"]
    assert list(lowered.scales["values"]) == ["x", "y"]


def test_a_matrix_with_two_quantisations_becomes_two_parameters():
    other = WeightQuant(np.full((3, 2), 7, np.int8), np.array([0.5, 0.25, 0.125]))

    def source(emit, x, mask, w):
        first = linear(emit, x, w)
        second = emit(build.linear(x, w["up.weight"], w["up.bias"], name="again"))
        return emit(build.add(first, second, name="sum"))

    lowered = lower(
        source,
        LINEAR,
        matmul={"x": INT8},
        matrices={"up": MATRIX, "again": other},
        stream={"sum": SUM},
    )
    np.testing.assert_array_equal(lowered.parameters["up.weight"], MATRIX.values)
    np.testing.assert_array_equal(lowered.parameters["up.weight.2"], other.values)
    assert "up.bias.2" not in lowered.parameters  # equal integers are shared


def test_lowering_is_deterministic_and_changes_nothing_it_is_given():
    def source(emit, x, mask, w):
        return linear(emit, x, w)

    first = lower(source, LINEAR, **LINEAR_TABLE, stream={"up": STREAM})
    second = lower(source, LINEAR, **LINEAR_TABLE, stream={"up": STREAM})
    tvm.ir.assert_structural_equal(first.module, second.module, map_free_vars=True)
    assert first.scales == second.scales
