"""The integer operators: types and refusals."""

from __future__ import annotations

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
from ibert_tvm.relay_passes.spec.exponential import BinaryExponential, PolynomialExponential
from ibert_tvm.relay_passes.spec.gelu import GELU
from ibert_tvm.relay_passes.spec.layer_norm import LayerNormConstants
from ibert_tvm.relay_passes.spec.short_layer_norm import ShortLayerNorm
from ibert_tvm.relay_passes.spec.short_softmax import ShortExponential

BATCH, SEQ = tirx.Var("batch", "int64"), tirx.Var("seq_len", "int64")
TANH = BinaryExponential.for_tanh(1e-3)
SHORT = ShortExponential.from_scale(1e-3)


def var(name: str, shape: list, dtype: str) -> relax.Var:
    return relax.Var(name, relax.TensorType(shape, dtype))


IDS = var("ids", [BATCH, SEQ], "int64")
X8 = var("x", [BATCH, SEQ, 8], "int8")
X32 = var("x32", [BATCH, SEQ, 8], "int32")
X16 = var("x16", [BATCH, SEQ, 8], "int16")
C32 = var("c", [8], "int32")
C16 = var("c16", [8], "int16")
ONE = var("one", [1], "int32")


def typed(call: relax.Call) -> str:
    builder = relax.BlockBuilder()
    return str(builder.normalize(call).ty)


@pytest.mark.parametrize(
    ("call", "shape", "dtype"),
    [
        (lambda: integer.position_ids(IDS, name="p"), (BATCH, SEQ), "int32"),
        (
            lambda: integer.embedding(IDS, var("t", [9, 8], "int8"), ONE, name="e", shift=1),
            (BATCH, SEQ, 8),
            "int32",
        ),
        (
            lambda: integer.linear(
                var("u", [BATCH, SEQ, 8], "uint8"),
                var("w", [5, 8], "int8"),
                var("b", [5], "int32"),
                name="l",
            ),
            (BATCH, SEQ, 5),
            "int32",
        ),
        (
            lambda: integer.requantise(X32, C32, name="q", shift=1, low=0, high=255, dtype="uint8"),
            (BATCH, SEQ, 8),
            "uint8",
        ),
        (
            lambda: integer.requantise_short(
                X32, C16, C32, name="q", shift=7, low=-9, high=9, dtype="int16"
            ),
            (BATCH, SEQ, 8),
            "int16",
        ),
        (
            lambda: integer.gelu(
                X16, ClippedPolynomial.from_scale(clipped_scale(GELU.limit, 9.0), GELU), name="g"
            ),
            (BATCH, SEQ, 8),
            "int16",
        ),
        (
            lambda: integer.gelu_paper(X32, C32, var("qc", [8], "int64"), C32, ONE, name="g"),
            (BATCH, SEQ, 8),
            "int64",
        ),
        (lambda: integer.relu(X8, name="r"), (BATCH, SEQ, 8), "int8"),
        (lambda: integer.tanh(X32, TANH, name="t"), (BATCH, SEQ, 8), "int32"),
        (lambda: integer.add(X8, X32, name="a"), (BATCH, SEQ, 8), "int32"),
        (lambda: integer.add_short(X8, X32, name="a", low=-9, high=9), (BATCH, SEQ, 8), "int16"),
        (
            lambda: integer.layer_norm_short(
                X16,
                C32,
                C32,
                ShortLayerNorm(9, 9),
                name="n",
                shift=1,
                low=-9,
                high=9,
                dtype="int8",
            ),
            (BATCH, SEQ, 8),
            "int8",
        ),
        (
            lambda: integer.layer_norm(
                X32,
                C32,
                C32,
                LayerNormConstants(9, 1, 40, 16),
                name="n",
                shift=1,
                low=-9,
                high=9,
                dtype="int16",
            ),
            (BATCH, SEQ, 8),
            "int16",
        ),
        (
            lambda: integer.attention(
                X8,
                X8,
                X8,
                IDS,
                C16,
                name="s",
                num_heads=2,
                softmax="short",
                exponential=SHORT,
                shift=1,
                low=-9,
                high=9,
            ),
            (BATCH, SEQ, 8),
            "int8",
        ),
        (lambda: integer.mean_pool(X32, IDS, name="m"), (BATCH, 8), "int32"),
        (lambda: integer.select_token(X8, name="f"), (BATCH, 8), "int8"),
    ],
)
def test_types_keep_symbolic_dimensions(call, shape, dtype: str) -> None:
    assert typed(call()) == str(relax.TensorType(shape, dtype))


def refused(build) -> str:
    with pytest.raises(LoweringError) as caught:
        build()
    return str(caught.value)


def test_contracted_dimensions_must_agree() -> None:
    weight, bias = var("w", [5, 7], "int8"), var("b", [5], "int32")
    assert refused(lambda: integer.linear(X8, weight, bias, name="encoder.0.query")) == (
        "dimension K of x and weight differ: 8 and 7\n"
        "  where: integer.linear 'encoder.0.query'\n"
        "  why: integer.linear takes x [..., K] and weight [N, K]\n"
        "  what to do: check which tensor was passed"
    )


def test_a_float_operand_is_refused() -> None:
    x = var("x", [BATCH, SEQ, 8], "float32")
    assert refused(lambda: integer.relu(x, name="act")) == (
        "operand x is float32\n"
        "  where: integer.relu 'act'\n"
        "  why: allowed: uint8, int8, int16, int32\n"
        "  what to do: requantise or convert it first"
    )


def test_constants_per_channel_must_have_one_entry_per_channel() -> None:
    assert refused(
        lambda: integer.requantise(
            X32, var("m", [3], "int32"), name="q", shift=1, low=0, high=1, dtype="int8"
        )
    ) == (
        "dimension C of x and multiplier differ: 8 and 3\n"
        "  where: integer.requantise 'q'\n"
        "  why: integer.requantise takes x [..., C] and multiplier [1 or C]\n"
        "  what to do: check which tensor was passed"
    )


def test_operands_of_elementwise_operators_have_one_shape() -> None:
    other = var("y", [BATCH, 4, 8], "int8")
    assert refused(lambda: integer.add(X8, other, name="residual")) == (
        "leading dimensions of a and b differ: [batch, seq_len] and [batch, 4]\n"
        "  where: integer.add 'residual'\n"
        "  why: integer.add takes a [..., C] and b [..., C]\n"
        "  what to do: check which tensor was passed"
    )


def test_an_operand_has_as_many_dimensions_as_its_record_says() -> None:
    assert refused(lambda: integer.embedding(C32, X8, ONE, name="e", shift=1)) == (
        "operand ids has 1 dimensions\n"
        "  where: integer.embedding 'e'\n"
        "  why: integer.embedding needs 2\n"
        "  what to do: check which tensor was passed"
    )
    scalar = var("s", [], "int8")
    assert refused(lambda: integer.linear(scalar, X8, C32, name="fc")) == (
        "operand x has 0 dimensions\n"
        "  where: integer.linear 'fc'\n"
        "  why: integer.linear needs at least 1\n"
        "  what to do: check which tensor was passed"
    )


def test_an_operand_of_unknown_shape_is_refused() -> None:
    x = relax.Var("x", relax.TensorType(dtype="int8", ndim=3))
    assert refused(lambda: integer.relu(x, name="act")) == (
        'operand x has no known shape (R.Tensor(dtype="int8", ndim=3))\n'
        "  where: integer.relu 'act'\n"
        "  why: widths and kernels depend on shapes\n"
        "  what to do: give the variable a TensorType with dimensions (symbolic ones serve)"
    )


def test_operands_that_are_missing_or_unknown_are_refused() -> None:
    weight = var("w", [5, 8], "int8")
    assert refused(lambda: integer.linear(X8, weight, name="fc")) == (
        "integer.linear got the operands x, weight\n"
        "  where: integer.linear 'fc'\n"
        "  why: it takes: x, weight, bias\n"
        "  what to do: build the call with ibert_tvm.relay_passes.integer"
    )
    assert refused(lambda: integer.mean_pool(x=None, name="mean")) == (
        "integer.mean_pool got no operands\n"
        "  where: integer.mean_pool 'mean'\n"
        "  why: it takes: x, mask (optional), slots (optional)\n"
        "  what to do: build the call with ibert_tvm.relay_passes.integer"
    )
    relu = Relu("act")
    assert refused(lambda: call_operator(relu, {"x": X8, "slope": ONE})) == (
        "integer.relu got the operands x, slope\n"
        "  where: integer.relu 'act'\n"
        "  why: it takes: x\n"
        "  what to do: build the call with ibert_tvm.relay_passes.integer"
    )


def test_heads_must_divide_the_channels() -> None:
    assert refused(
        lambda: integer.attention(
            X8,
            X8,
            X8,
            IDS,
            C16,
            name="s",
            num_heads=3,
            softmax="short",
            exponential=SHORT,
            shift=1,
            low=-9,
            high=9,
        )
    ) == (
        "3 heads do not divide 8 channels\n"
        "  where: integer.attention 's'\n"
        "  why: every head has the same number of channels\n"
        "  what to do: set num_heads as the source model does"
    )


def test_bounds_must_fit_the_dtype() -> None:
    assert refused(lambda: Requantise("q", 3, -200, 127, "int8")) == (
        "bounds [-200, 127] cannot be stored as int8\n"
        "  where: q\n"
        "  why: int8 holds [-128, 127], and low must not exceed high\n"
        "  what to do: choose a wider dtype or tighter bounds"
    )
    assert refused(lambda: Requantise("q", 63, -1, 1, "int8")) == (
        "shift 63 is outside [0, 62]\n"
        "  where: q\n"
        "  why: the shifted product is an int64\n"
        "  what to do: derive multiplier and shift with ibert_tvm.relay_passes.spec.fixed_point"
    )


@pytest.mark.parametrize(
    ("make", "what", "allowed"),
    [
        (
            lambda: Requantise("q", 3, 0, 1, "float16"),
            "dtype 'float16'",
            "int8, uint8, int16, int32",
        ),
        (
            lambda: Attention("q", 1, "flash", SHORT, 3, 0, 1),
            "softmax 'flash'",
            "short, normalised",
        ),
        (
            lambda: PositionIds("q", "rotary"),
            "kind 'rotary'",
            "absolute, roberta",
        ),
    ],
)
def test_unknown_choices_list_the_allowed_ones(make, what: str, allowed: str) -> None:
    assert refused(make) == (
        f"unknown {what}\n"
        "  where: q\n"
        "  why: the integer dialect does not define it\n"
        f"  what to do: use one of: {allowed}"
    )


def test_an_exponential_that_does_not_belong_to_its_softmax_is_refused() -> None:
    published = PolynomialExponential.from_scale(1e-3)
    for mode, constants in (("short", published), ("normalised", SHORT)):
        assert refused(lambda m=mode, k=constants: Attention("s", 1, m, k, 3, 0, 1)) == (
            f"a {type(constants).__name__} in {mode} softmax\n"
            "  where: s\n"
            "  why: a ShortExponential belongs to short softmax, the others to normalised softmax\n"
            "  what to do: derive both from one preset"
        )


def test_an_exponential_too_wide_for_its_softmax_is_refused() -> None:
    wide = PolynomialExponential.from_scale(1e-3, 65536)
    assert refused(lambda: Attention("s", 1, "normalised", wide, 3, 0, 1)) == (
        "exponentials up to 65536 in normalised softmax\n"
        "  where: s\n"
        "  why: this mode stores them in 16 bits\n"
        "  what to do: derive the exponential with a smaller maximum"
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: RequantiseShort("q", 15, -127, 127, "int8"),
        lambda: Attention("q", 1, "short", SHORT, 15, -127, 127),
    ],
)
def test_a_shift_that_leaves_nothing_of_16_bits_is_refused(make) -> None:
    assert refused(make) == (
        "shift 15 is outside [0, 14]\n"
        "  where: q\n"
        "  why: it leaves at least one of the 15 bits of a Q15 product\n"
        "  what to do: derive it with ibert_tvm.relay_passes.spec.short_requantise"
    )


def test_operators_of_16_bits_store_no_more() -> None:
    norm = ShortLayerNorm(9, 9)
    for make in (
        lambda: RequantiseShort("q", 0, -9, 9, "int32"),
        lambda: LayerNormShort("q", norm, 9, -9, 9, "int32"),
        lambda: Attention("q", 1, "short", SHORT, 3, -9, 9, "int32"),
    ):
        assert refused(make) == (
            "unknown dtype 'int32'\n"
            "  where: q\n"
            "  why: the integer dialect does not define it\n"
            "  what to do: use one of: int8, uint8, int16"
        )
    assert refused(lambda: AddShort("q", -9, 2**15)) == (
        "bounds [-9, 32768] cannot be stored as int16\n"
        "  where: q\n"
        "  why: int16 holds [-32768, 32767], and low must not exceed high\n"
        "  what to do: choose a wider dtype or tighter bounds"
    )


def test_gelu_in_16_bits_takes_no_more() -> None:
    assert refused(
        lambda: integer.gelu(
            X32, ClippedPolynomial.from_scale(clipped_scale(GELU.limit, 9.0), GELU), name="act"
        )
    ) == (
        "operand x is int32\n"
        "  where: integer.gelu 'act'\n"
        "  why: allowed: int8, int16\n"
        "  what to do: requantise or convert it first"
    )


@pytest.mark.parametrize(
    ("softmax", "given", "allowed"), [("short", C32, "int16"), ("normalised", C16, "int32")]
)
def test_the_multiplier_of_short_attention_has_16_bits(softmax, given, allowed: str) -> None:
    exponential = SHORT if softmax == "short" else PolynomialExponential.from_scale(1e-3)
    message = refused(
        lambda: integer.attention(
            X8,
            X8,
            X8,
            IDS,
            given,
            name="s",
            num_heads=2,
            softmax=softmax,
            exponential=exponential,
            shift=1,
            low=-9,
            high=9,
        )
    )
    assert message == (
        f"operand multiplier is {given.ty.dtype}\n"
        "  where: integer.attention 's'\n"
        f"  why: allowed: {allowed}\n"
        "  what to do: requantise or convert it first"
    )
