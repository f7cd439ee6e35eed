"""Before and Expected: attention, and what becomes of its mask."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.canonical import build
from ibert_tvm.relay_passes.errors import RangeError
from ibert_tvm.relay_passes.quantization_table import ActivationQuant
from ibert_tvm.relay_passes.spec.presets import ACCURATE, PAPER
from tests.lower.expected import (
    INT8,
    LINEAR,
    MATRIX,
    STREAM,
    Expected,
    check,
    expected_operand,
    lower,
    multiplier,
    requantised_short,
)


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


def biased(table: np.ndarray, preset: str, **window: int):
    """Lower attention with a bias; its scores have the scale 2^-9."""

    def body(emit, x, mask, w):
        q, k, v = (emit(build.linear(x, w["up.weight"], w["up.bias"], name=n)) for n in "qkv")
        operands = (q, k, v, mask, w["table"])
        return emit(build.attention(*operands, name="y", num_heads=3, scale=0.5, **window))

    return lower(
        body,
        {**LINEAR, "table": table},
        preset=preset,
        matmul=dict.fromkeys("xqkvy", INT8),
        matrices=dict.fromkeys("qkv", MATRIX),
        stream={"y": STREAM},
    )


@pytest.mark.parametrize("preset", ["accurate", "paper"])
def test_a_window_is_kept_and_a_bias_rounded_to_the_scale_of_scores(preset):
    table = np.array([[-1.0, 0.0, 0.001], [0.0009, 2.0, 1 / 3], [0.0, 0.0, -7.0]], np.float32)
    lowered = biased(table, preset, before=1, after=0)
    call = next(
        b.value
        for b in lowered.module["main"].body.blocks[0].bindings
        if b.value.op.name == "integer.attention"
    )
    assert (int(call.attrs["before"]), int(call.attrs["after"])) == (1, 0)
    assert str(call.attrs["operands"]) == "q,k,v,mask,multiplier,bias"
    rounded = [[-512, 0, 1], [0, 1024, 171], [0, 0, -3584]]
    np.testing.assert_array_equal(lowered.parameters["y.bias"], np.array(rounded, np.int32))
    assert lowered.parameters["y.bias"].dtype == np.int32


@pytest.mark.parametrize(("largest", "steps"), [(2.0**15, 2**24), (np.nan, "nan")])
def test_a_bias_beyond_the_scores_names_the_layer(largest, steps):
    with pytest.raises(RangeError) as caught:
        biased(np.array([[0, largest, 0]], np.float32), "accurate")
    assert str(caught.value) == (
        f"the bias of the scores reaches {steps} steps\n"
        "  where: y\n"
        "  why: a step is one unit of the scores, 0.00195, and beyond 8388608 of them scores come "
        "near those of masked keys\n"
        "  what to do: calibrate with inputs that reach the usual range of queries and keys"
    )


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
