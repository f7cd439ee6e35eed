"""Before and Expected: SiLU, sigmoid, products and RMSNorm."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.canonical import build
from ibert_tvm.relay_passes.integer.relax_ops import is_integer_op, operator_of
from ibert_tvm.relay_passes.lower import requirements
from ibert_tvm.relay_passes.passes.program import bindings
from ibert_tvm.relay_passes.quantization_table import ActivationQuant, WeightQuant
from ibert_tvm.relay_passes.spec.clipped import ClippedPolynomial, clipped_scale
from ibert_tvm.relay_passes.spec.layer_norm import LayerNormAffine, LayerNormConstants
from ibert_tvm.relay_passes.spec.logistic import SIGMOID, SILU
from ibert_tvm.relay_passes.spec.presets import ACCURATE, PAPER
from ibert_tvm.relay_passes.spec.short_layer_norm import ShortLayerNorm
from tests.lower.expected import (
    LINEAR,
    LINEAR_TABLE,
    STREAM,
    SUM,
    WORDS,
    Expected,
    check,
    linear,
    lower,
    multiplier,
)
from tests.lower.modules import function, tensor, token_inputs

SHORT_SUM = ActivationQuant(2.0**-10, -(2**14 - 1), 2**14 - 1)


def records(lowered) -> list:
    """The integer operators, in order."""
    calls = [binding.value for binding in bindings(lowered.module["main"])]
    return [operator_of(call) for call in calls if is_integer_op(call)]


def operators(lowered) -> list[tuple[str, str]]:
    """Kinds of the integer operators and names of their values, behind the matrix product."""
    found = [(type(record).__name__, record.name) for record in records(lowered)]
    return found[next(i for i, (kind, _) in enumerate(found) if kind == "Linear") + 1 :]


@pytest.mark.parametrize("beta", [1.0, 1.702])
@pytest.mark.parametrize("preset", [ACCURATE, PAPER])
def test_silu_takes_a_stream_at_its_own_scale(preset, beta: float) -> None:
    function = SILU.of_multiple(beta)
    own = ActivationQuant(clipped_scale(function.limit, 4.0), -(2**14 - 1), 2**14 - 1)
    for stream, extra in ((own, []), (STREAM, ["up.for.y"])):
        lowered = lower(
            lambda emit, x, mask, w: emit(build.silu(linear(emit, x, w), name="y", beta=beta)),
            LINEAR,
            **LINEAR_TABLE,
            preset=preset.name,
            stream={"up": stream, "y": STREAM},
        )
        names = [name for _, name in operators(lowered)]
        assert names == ["up.stream", *extra, "y"]
        silu = next(record for record in records(lowered) if record.name == "y")
        scale = lowered.scales["values"]["y"][0]["scale"]
        assert silu.constants == ClippedPolynomial.from_scale(scale, function)


def needed(body):
    ids, mask = token_inputs()
    arrays = {"words.weight": np.zeros((3, 2), np.float32), **LINEAR}
    variables = {name: tensor(name, array.shape) for name, array in arrays.items()}

    def whole(emit):
        x = emit(build.embedding(variables["words.weight"], ids, name="x"))
        return emit(body(linear(emit, x, variables)))

    module = function([ids, mask], list(variables.values()), whole)
    return requirements(module, "accurate")


def test_the_stream_is_asked_for_at_the_scale_of_the_polynomial() -> None:
    for make, limit in (
        (lambda x: build.silu(x, name="y"), SILU.limit),
        (lambda x: build.silu(x, name="y", beta=1.702), SILU.limit / 1.702),
        (lambda x: build.sigmoid(x, name="y"), SIGMOID.limit),
    ):
        wish = needed(make)["up"].stream_for
        assert wish is not None
        assert (wish(7.0).scale, wish(7.0).high) == (clipped_scale(limit, 7.0), 2**14 - 1)


def gate(emit, x, w):
    up = linear(emit, x, w)
    return up, emit(build.multiply(emit(build.sigmoid(up, name="gate")), up, name="y"))


def test_a_product_is_exact_until_it_is_requantised() -> None:
    own = ActivationQuant(clipped_scale(SIGMOID.limit, 4.0), -(2**14 - 1), 2**14 - 1)
    divided = ActivationQuant(2.0**-4, -127, 127, 0, np.array([1.0, 2.0, 0.5]))
    down = {"down.weight": np.zeros((3, 3), np.float32), "down.bias": np.zeros(3, np.float32)}
    matrix = WeightQuant(np.eye(3, dtype=np.int8), np.ones(3))
    lowered = lower(
        lambda emit, x, mask, w: emit(
            build.linear(gate(emit, x, w)[1], w["down.weight"], w["down.bias"], name="down")
        ),
        {**LINEAR, **down},
        matmul={**LINEAR_TABLE["matmul"], "y": divided},
        matrices={**LINEAR_TABLE["matrices"], "down": matrix},
        stream={"up": own, "gate": STREAM, "down": STREAM},
    )
    assert operators(lowered)[1:5] == [
        ("Sigmoid", "gate"),
        ("Multiply", "y"),
        ("RequantiseShort", "y.matmul"),
        ("Linear", "down"),
    ]
    # The divisor of smoothing is in the factors of the product's only requantisation.
    factors = lowered.parameters["y.matmul.multiplier"] / 2.0 ** (
        15 + 7 + lowered.parameters["y.matmul.pre_shift"]
    )
    expected = own.scale / 2**15 / 2.0**-4 / np.array([1.0, 2.0, 0.5])
    np.testing.assert_allclose(factors, expected, rtol=2**-14)


@pytest.mark.parametrize("reader", ["output", "relu", "select_token"])
def test_whoever_reads_a_product_reads_it_requantised(reader: str) -> None:
    def body(emit, x, mask, w):
        _, y = gate(emit, x, w)
        if reader == "output":
            return y
        options = {"index": 0} if reader == "select_token" else {}
        return emit(getattr(build, reader)(y, name="z", **options))

    lowered = lower(
        body,
        LINEAR,
        **LINEAR_TABLE,
        stream={"up": STREAM, "gate": STREAM, "y": STREAM, "z": STREAM},
    )
    names = [name for _, name in operators(lowered)]
    after = [] if reader == "output" else ["z"]
    assert names[names.index("y") :] == ["y", "y.stream", *after]


def test_a_factor_of_more_than_16_bits_is_requantised() -> None:
    lowered = lower(
        lambda emit, x, mask, w: emit(
            build.multiply(x, emit(build.add(x, x, name="sum")), name="y")
        ),
        stream={"sum": SUM, "y": STREAM},
    )
    names = {record.name for record in records(lowered)}
    assert {"y", "x.for.y", "sum.for.y"} <= names


@pytest.mark.parametrize(
    ("preset", "quant"), [(ACCURATE, SUM), (PAPER, SUM), (ACCURATE, SHORT_SUM)]
)
def test_rms_norm_reads_a_sum_as_it_is(preset, quant) -> None:
    gamma = np.array([1.0, -0.5], np.float32)
    lowered = lower(
        lambda emit, x, mask, w: emit(
            build.rms_norm(emit(build.add(x, x, name="sum")), w["gamma"], name="y", epsilon=1e-5)
        ),
        {"gamma": gamma},
        preset=preset.name,
        stream={"sum": quant, "y": STREAM},
    )
    expected = Expected()
    affine = LayerNormAffine.from_scale(gamma, np.zeros(2), STREAM.scale)
    stored = {"shift": affine.shift, "low": -32767, "high": 32767, "dtype": "int16"}

    def body(emit):
        real = [0.5 / quant.scale, 0.25 / quant.scale, 1.0 / quant.scale]
        factors, shift = multiplier(real, 22)
        words = expected.constant("words.weight", WORDS.values)
        m = expected.constant("x.for.sum.multiplier", factors)
        term = emit(integer.embedding(expected.ids, words, m, name="x.for.sum", shift=shift))
        gain = affine.gain
        if quant is SHORT_SUM:
            bounds = {"low": quant.low, "high": quant.high}
            total = emit(integer.add_short(term, term, name="sum", **bounds))
            constants = ShortLayerNorm.from_scale(quant.scale, 1e-5, 2)
            gain = expected.constant("gamma", gain)
            return emit(integer.rms_norm_short(total, gain, constants, name="y", **stored))
        total = emit(integer.add(term, term, name="sum"))
        constants = LayerNormConstants.from_scale(
            quant.scale, 1e-5, 2, reciprocal_bits=preset.reciprocal_bits
        )
        gain = expected.constant("gamma", gain)
        return emit(integer.rms_norm(total, gain, constants, name="y", **stored))

    check(lowered, expected, body)
