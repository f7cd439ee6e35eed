"""Before and Expected: GELU, LayerNorm, pooling and tanh."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.canonical import build
from ibert_tvm.relay_passes.integer.operators.functions import Gelu
from ibert_tvm.relay_passes.integer.relax_ops import is_integer_op, operator_of
from ibert_tvm.relay_passes.quantization_table import ActivationQuant
from ibert_tvm.relay_passes.spec.clipped import ClippedPolynomial, clipped_scale
from ibert_tvm.relay_passes.spec.gelu import GELU, PaperGelu
from ibert_tvm.relay_passes.spec.layer_norm import LayerNormAffine, LayerNormConstants
from ibert_tvm.relay_passes.spec.presets import ACCURATE, PAPER
from ibert_tvm.relay_passes.spec.short_layer_norm import ShortLayerNorm
from tests.lower.expected import (
    GELU_STREAM,
    LINEAR,
    LINEAR_TABLE,
    MATRIX,
    STREAM,
    SUM,
    WORDS,
    Expected,
    check,
    expected_linear,
    linear,
    lower,
    multiplier,
)


def test_accurate_gelu_works_on_the_16_bit_stream():
    lowered = lower(
        lambda emit, x, mask, w: emit(build.gelu(linear(emit, x, w), name="y", form="tanh")),
        LINEAR,
        **LINEAR_TABLE,
        stream={"up": GELU_STREAM, "y": STREAM},
    )
    expected = Expected()

    def body(emit):
        factors, shift = multiplier([2.0**-n / GELU_STREAM.scale for n in (5, 6, 7)], 31)
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
        return emit(
            integer.gelu(stream, ClippedPolynomial.from_scale(GELU_STREAM.scale, GELU), name="y")
        )

    check(lowered, expected, body)


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


def test_gelu_of_another_scale_is_requantised_once_more():
    # The polynomial ends at 32640 / 2^k units, which 2^-14 does not give.
    lowered = lower(
        lambda emit, x, mask, w: emit(build.gelu(linear(emit, x, w), name="y", form="erf")),
        LINEAR,
        **LINEAR_TABLE,
        stream={"up": ActivationQuant(2.0**-14, -32767, 32767), "y": STREAM},
    )
    calls = {
        operator_of(binding.value).name: binding.value
        for binding in lowered.module["main"].body.blocks[0].bindings
        if is_integer_op(binding.value)
    }
    scale = clipped_scale(GELU.limit, 32767 * 2.0**-14)
    term = operator_of(calls["up.for.y"])
    assert (term.low, term.high, term.dtype) == (1 - 2**14, 2**14 - 1, "int16")
    assert operator_of(calls["y"]) == Gelu("y", ClippedPolynomial.from_scale(scale, GELU))
    assert lowered.scales["values"]["y"][0]["scale"] == scale


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
