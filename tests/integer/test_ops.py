"""The integer operators: what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
from tvm import relax, tirx

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.dialect.calls import call_operator
from ibert_tvm.relay_passes.errors import LoweringError
from ibert_tvm.relay_passes.integer.operators.attention import Attention
from ibert_tvm.relay_passes.integer.operators.functions import Relu
from ibert_tvm.relay_passes.integer.operators.norms import LayerNormShort
from ibert_tvm.relay_passes.integer.operators.positions import PositionIds
from ibert_tvm.relay_passes.integer.operators.requantise import Requantise, RequantiseShort
from ibert_tvm.relay_passes.integer.operators.sums import AddShort
from ibert_tvm.relay_passes.spec.clipped import ClippedPolynomial, clipped_scale
from ibert_tvm.relay_passes.spec.exponential import PolynomialExponential
from ibert_tvm.relay_passes.spec.gelu import GELU
from ibert_tvm.relay_passes.spec.short_layer_norm import ShortLayerNorm
from ibert_tvm.relay_passes.spec.short_softmax import ShortExponential

BATCH, SEQ = tirx.Var("batch", "int64"), tirx.Var("seq_len", "int64")
SHORT = ShortExponential.from_scale(1e-3)


def var(name: str, shape: list, dtype: str) -> relax.Var:
    return relax.Var(name, relax.TensorType(shape, dtype))


IDS = var("ids", [BATCH, SEQ], "int64")
X8 = var("x", [BATCH, SEQ, 8], "int8")
X32 = var("x32", [BATCH, SEQ, 8], "int32")
C32 = var("c", [8], "int32")
C16 = var("c16", [8], "int16")
ONE = var("one", [1], "int32")


def attention(multiplier: relax.Var = C16, **attributes: Any) -> relax.Call:
    given = {"num_heads": 2, "softmax": "short", "exponential": SHORT, **attributes}
    return integer.attention(
        X8, X8, X8, IDS, multiplier, name="s", shift=1, low=-9, high=9, **given
    )


def refused(build) -> str:
    with pytest.raises(LoweringError) as caught:
        build()
    return str(caught.value)


def test_contracted_dimensions_must_agree(messages) -> None:
    weight, bias = var("w", [5, 7], "int8"), var("b", [5], "int32")
    messages.check(refused(lambda: integer.linear(X8, weight, bias, name="encoder.0.query")))


def test_a_float_operand_is_refused(messages) -> None:
    x = var("x", [BATCH, SEQ, 8], "float32")
    messages.check(refused(lambda: integer.relu(x, name="act")))


def test_constants_per_channel_must_have_one_entry_per_channel(messages) -> None:
    messages.check(
        refused(
            lambda: integer.requantise(
                X32, var("m", [3], "int32"), name="q", shift=1, low=0, high=1, dtype="int8"
            )
        )
    )


def test_operands_of_elementwise_operators_have_one_shape(messages) -> None:
    other = var("y", [BATCH, 4, 8], "int8")
    messages.check(refused(lambda: integer.add(X8, other, name="residual")))


def test_an_operand_has_as_many_dimensions_as_its_record_says(messages) -> None:
    messages.check(refused(lambda: integer.embedding(C32, X8, ONE, name="e", shift=1)))
    scalar = var("s", [], "int8")
    messages.check(refused(lambda: integer.linear(scalar, X8, C32, name="fc")))


def test_an_operand_of_unknown_shape_is_refused(messages) -> None:
    x = relax.Var("x", relax.TensorType(dtype="int8", ndim=3))
    messages.check(refused(lambda: integer.relu(x, name="act")))


def test_operands_that_are_missing_or_unknown_are_refused(messages) -> None:
    weight = var("w", [5, 8], "int8")
    messages.check(refused(lambda: integer.linear(X8, weight, name="fc")))
    messages.check(refused(lambda: integer.mean_pool(x=None, name="mean")))
    relu = Relu("act")
    messages.check(refused(lambda: call_operator(relu, {"x": X8, "slope": ONE})))


def test_heads_must_divide_the_channels(messages) -> None:
    messages.check(refused(lambda: attention(num_heads=3)))


def test_bounds_must_fit_the_dtype(messages) -> None:
    messages.check(refused(lambda: Requantise("q", 3, -200, 127, "int8")))
    messages.check(refused(lambda: Requantise("q", 63, -1, 1, "int8")))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Requantise("q", 3, 0, 1, "float16"),
        lambda: Attention("q", 1, "flash", SHORT, 3, 0, 1),
        lambda: PositionIds("q", "rotary"),
    ],
)
def test_unknown_choices_list_the_allowed_ones(make, messages) -> None:
    messages.check(refused(make))


def test_an_exponential_that_does_not_belong_to_its_softmax_is_refused(messages) -> None:
    published = PolynomialExponential.from_scale(1e-3)
    for mode, constants in (("short", published), ("normalised", SHORT)):
        messages.check(refused(lambda m=mode, k=constants: Attention("s", 1, m, k, 3, 0, 1)))


def test_an_exponential_too_wide_for_its_softmax_is_refused(messages) -> None:
    wide = PolynomialExponential.from_scale(1e-3, 65536)
    messages.check(refused(lambda: Attention("s", 1, "normalised", wide, 3, 0, 1)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: RequantiseShort("q", 15, -127, 127, "int8"),
        lambda: Attention("q", 1, "short", SHORT, 15, -127, 127),
    ],
)
def test_a_shift_that_leaves_nothing_of_16_bits_is_refused(make, messages) -> None:
    messages.check(refused(make))


def test_operators_of_16_bits_store_no_more(messages) -> None:
    norm = ShortLayerNorm(9, 9)
    for make in (
        lambda: RequantiseShort("q", 0, -9, 9, "int32"),
        lambda: LayerNormShort("q", norm, 9, -9, 9, "int32"),
        lambda: Attention("q", 1, "short", SHORT, 3, -9, 9, "int32"),
    ):
        messages.check(refused(make))
    messages.check(refused(lambda: AddShort("q", -9, 2**15)))


def test_gelu_in_16_bits_takes_no_more(messages) -> None:
    messages.check(
        refused(
            lambda: integer.gelu(
                X32, ClippedPolynomial.from_scale(clipped_scale(GELU.limit, 9.0), GELU), name="act"
            )
        )
    )


@pytest.mark.parametrize(
    ("softmax", "given"), [("short", C32), ("normalised", C16)], ids=["short", "normalised"]
)
def test_the_multiplier_of_short_attention_has_16_bits(softmax, given, messages) -> None:
    exponential = SHORT if softmax == "short" else PolynomialExponential.from_scale(1e-3)
    messages.check(refused(lambda: attention(given, softmax=softmax, exponential=exponential)))
