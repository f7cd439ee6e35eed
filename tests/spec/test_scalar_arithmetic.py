"""Expressions for a machine without vectors: nothing in 16 bits, the same integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ibert_tvm.relay_passes.spec import short_layer_norm, short_softmax
from ibert_tvm.relay_passes.spec.arithmetic import VECTORS, Arithmetic
from ibert_tvm.relay_passes.spec.clipped import ClippedPolynomial, clipped_scale
from ibert_tvm.relay_passes.spec.gelu import GELU, gelu_accurate
from ibert_tvm.relay_passes.spec.layer_norm import mean_of
from ibert_tvm.relay_passes.spec.scalar import Scalar
from ibert_tvm.relay_passes.spec.scalar_minimum import ScalarWithMinimum
from ibert_tvm.relay_passes.spec.short_layer_norm import ShortLayerNorm
from ibert_tvm.relay_passes.spec.short_requantise import requantise_short, saturating_sum
from ibert_tvm.relay_passes.spec.short_softmax import ShortExponential
from ibert_tvm.relay_passes.spec.square_root import i_sqrt
from ibert_tvm.relay_passes.spec.values import (
    Condition,
    Ranged,
    absolute,
    bind,
    clamp,
    cut,
    less,
    minimum,
    q15_multiply,
    saturate_short,
    select,
    shift_right_round,
    short,
    trace,
)

SATURATING = Scalar(frozenset({"positive"}))
INT15 = np.arange(-32767, 32768)
INT16 = (-(2**15), 2**15 - 1)
# Whatever has steps in 32 bits: ends of intervals, round 0, and in between.
WIDE = np.unique(
    np.concatenate(
        [
            np.linspace(-(2**24), 2**24, 20_001).astype(np.int64),
            np.arange(-5000, 5000),
            2**24 - np.arange(100),
            -(2**24) + np.arange(100),
        ]
    )
)


def exponential(scale: float) -> Callable[[Any], Any]:
    constants = ShortExponential.from_scale(scale)
    return lambda d: short_softmax.exponential_of(-d, 0, constants)


def gelu(scale: float) -> Callable[[Any], Any]:
    constants = ClippedPolynomial.from_scale(scale, GELU)
    return lambda q: gelu_accurate(q, constants)


def normalised(shift: int) -> Callable[[Any, Any, Any], Any]:
    constants = ShortLayerNorm.from_scale(1e-3, 1e-12, 384)
    bits = constants.root_fraction_bits + 14

    def function(d: Any, gain: Any, offset: Any) -> Any:
        return short_layer_norm.normalise(
            short(d), bits, 2**14 + 77, gain, offset, constants, shift, -127, 127
        )

    return function


CASES: dict[str, tuple[Callable[..., Any], list[np.ndarray]]] = {
    **{
        f"exponential of unit {scale:g}": (
            exponential(scale),
            [np.concatenate([np.arange(70_000), [2**20, 2**30, 2**31 - 1]])],
        )
        for scale in (1e-7, 1e-4, 1e-3, 0.1, 0.6)
    },
    **{
        f"gelu up to {largest:g}": (gelu(clipped_scale(GELU.limit, largest)), [INT15])
        for largest in (1.0, 5.0, 30.0, 200.0)
    },
    "requantisation": (lambda x: requantise_short(x, 29_000, 9, 7, 0, -127, 127), [WIDE]),
    "requantisation with a zero point": (
        lambda x: requantise_short(x, 29_000, 9, 6, 17, 0, 255),
        [WIDE],
    ),
    "requantisation without a shift": (
        lambda x: requantise_short(x, 29_000, 0, 0, 0, -(2**14), 2**14),
        [INT15],
    ),
    "saturating sum": (
        lambda a, b: saturating_sum(short(a), short(b), -32767, 32767),
        [INT15, INT15[::-1] // 3 * 2],
    ),
    "product of a difference": (
        lambda x, y, factor: (short(x) - short(y)) * factor,
        [INT15 // 2, INT15[::-1] // 3, np.resize(np.arange(-(2**15), 2**15, 77), 65_535)],
    ),
    "a number less a shifted product of the same": (
        lambda p: 22_000 - q15_multiply(short(p), 22_027 - q15_multiply(short(p), 5757)),
        [INT15],
    ),
    "a number less a shifted product of two": (
        lambda p, q: 77 - q15_multiply(short(p), short(q)),
        [INT15, INT15[::-1] // 3 * 2],
    ),
    "a shift by a computed amount after a constant one": (
        lambda x, n: (x >> 5) >> ((n & 15) + 3),
        [WIDE, np.arange(WIDE.size) * 7],
    ),
    "a shift by a computed amount that leaves 32 bits": (
        lambda x, n: (x >> 20) >> ((n & 15) + 3),
        [WIDE, np.arange(WIDE.size) * 7],
    ),
    "normalisation": (
        normalised(20),
        [INT15 // 2, np.resize(np.arange(-(2**14), 2**14, 7), 65_535), INT15 * 200],
    ),
}


@pytest.mark.representatives(9)
@pytest.mark.parametrize("arithmetic", [Scalar(), ScalarWithMinimum(), SATURATING])
@pytest.mark.parametrize("name", CASES)
def test_the_integers_are_those_of_the_specification(
    both_domains, name: str, arithmetic: Arithmetic
) -> None:
    function, arrays = CASES[name]
    operands = [(array, int(array.min()), int(array.max())) for array in arrays]
    both_domains(function, *operands, vectorise=False, arithmetic=arithmetic)


@pytest.mark.parametrize("name", CASES)
def test_intervals_are_the_same_and_nothing_is_16_bits_wide(name: str) -> None:
    from tvm import tirx

    function, arrays = CASES[name]

    def traced(arithmetic: Arithmetic) -> Ranged:
        variables = [tirx.Var(f"x{place}", "int32") for place in range(len(arrays))]
        ranges = [
            Ranged(int(array.min()), int(array.max()), variable, arithmetic=arithmetic)
            for array, variable in zip(arrays, variables, strict=True)
        ]
        return trace(function, *ranges)

    plain, scalar = traced(VECTORS), traced(Scalar())
    assert (scalar.low, scalar.high) == (plain.low, plain.high)
    assert ("int16" in str(plain.expr) and "ibert_q15" in str(plain.expr)) or name in (
        "normalisation",
        "product of a difference",
        "saturating sum",
        "a shift by a computed amount after a constant one",
        "a shift by a computed amount that leaves 32 bits",
    )
    assert "int16" not in str(scalar.expr) and "ibert_q15" not in str(scalar.expr)


def test_the_product_of_a_difference_adds_what_is_the_same_for_a_row() -> None:
    from tvm import tirx

    scalar = Scalar()
    x, mean, factor = (
        Ranged(-(2**14), 2**14 - 1, tirx.Var(name, "int32"), arithmetic=scalar)
        for name in ("x", "mean", "factor")
    )
    text = str(((short(x) - short(mean)) * factor).expr)
    assert text == "T.ibert_multiply_add(x, factor, 0 - mean * factor)"


@pytest.mark.parametrize("channels", [1, 2, 7, 384])
def test_squares_about_the_mean_need_no_second_pass(channels: int) -> None:
    random = np.random.default_rng(channels)
    limit = short_layer_norm.INPUT_LIMIT
    x = random.integers(-limit, limit + 1, (50, channels))
    x[0], x[1], x[2, ::2], x[2, 1::2] = limit, -limit, limit, -limit
    mean = mean_of(x.sum(axis=1), channels)
    expected = ((x - mean[:, None]) ** 2).sum(axis=1)
    squares = (x**2).sum(axis=1)
    result = short_layer_norm.sum_about_mean(squares, x.sum(axis=1), mean, channels)
    np.testing.assert_array_equal(result, expected)


def variable(low: int, high: int, arithmetic: Arithmetic) -> Ranged:
    from tvm import tirx

    return Ranged(low, high, tirx.Var("x", "int32"), arithmetic=arithmetic)


def test_short_values_are_of_16_bits_where_the_arithmetic_has_them() -> None:
    assert short(variable(*INT16, VECTORS)).dtype == "int16"
    assert short(variable(*INT16, Scalar())).dtype == "int32"


def test_results_have_the_arithmetic_of_their_operands() -> None:
    scalar = Scalar()
    x = variable(-100, 100, scalar)
    for value in (x + 1, 3 - x, x * np.array([4, 5]), x >> 2, minimum(x, Ranged(-5, 9)), short(x)):
        assert value.arithmetic == scalar or value.expr is None
    chosen = select(less(x, 0), 1, 0)
    assert chosen.arithmetic == scalar
    assert trace(lambda: absolute(bind(x + 5)) >> 1).arithmetic == scalar


def test_values_of_two_arithmetics_are_not_combined() -> None:
    x, y = variable(-100, 100, Scalar()), variable(-100, 100, VECTORS)
    for combine in (
        lambda: x + y,
        lambda: x - y,
        lambda: x * y,
        lambda: x >> (y & 3),
        lambda: less(x, y),
        lambda: minimum(x, y),
        lambda: q15_multiply(x, y),
        lambda: select(less(x, 0), y, 0),
        lambda: less(x, 0) & less(y, 0),
    ):
        with pytest.raises(TypeError) as error:
            combine()
        assert str(error.value) in (
            "values of two arithmetics are combined: Scalar and Arithmetic",
            "values of two arithmetics are combined: Arithmetic and Scalar",
        )
    assert select(Condition(), x, 0).expr is None


def test_what_does_not_fit_16_bits_is_refused_all_the_same() -> None:
    from ibert_tvm.relay_passes.errors import RangeError

    with pytest.raises(RangeError, match="a value of 17 bits does not fit 16"):
        short(variable(0, 2**16 - 1, Scalar()))
    with pytest.raises(RangeError, match="both factors of a Q15 product may be -2\\^15"):
        q15_multiply(variable(*INT16, Scalar()), variable(*INT16, Scalar()))


def test_a_rounding_shift_adds_before_it_shifts() -> None:
    assert str(shift_right_round(short(variable(*INT16, Scalar())), 4).expr) == "x + 8 >> 4"


def spelled(
    function: Callable[[Ranged], Any], low: int, high: int, arithmetic: Arithmetic | None = None
) -> str:
    """Text of the expression that a function of one value is spelled as."""
    return str(trace(function, variable(low, high, arithmetic or Scalar())).expr)


@pytest.mark.parametrize(
    ("function", "low", "high", "text"),
    [
        (lambda x: minimum(x, 2**15 - 1), 0, 2**20, "T.min(T.max(x, 0), 32767)"),
        (lambda x: minimum(x, 2**15), 0, 2**20, "32768 - T.max(32768 - x, 0)"),
        (lambda x: minimum(x, 2**15 - 1), -1, 2**20, "T.min(x, 32767)"),
        (lambda x: cut(x, 1000, 1022), 0, 2**20, "1000 - T.max(1000 - x, 0)"),
        (lambda x: cut(x, 1000, 1023), 0, 2**20, "T.min(T.max(x, 0), 1023)"),
        (lambda x: clamp(x, -127, 127), -1000, 1000, "T.max(T.ibert_saturate(x, 8), -127)"),
        (lambda x: clamp(x, -128, 127), -1000, 1000, "T.min(T.max(x, -128), 127)"),
        (lambda x: saturate_short(x) >> 3, -(2**20), 2**20, "T.min(T.max(x >> 3, -4096), 4095)"),
        (
            lambda x: clamp((saturate_short(x) + 5) >> 3, 0, 255),
            -(2**20),
            2**20,
            "T.min(T.max(x + 5 >> 3, 0), 255)",
        ),
        (lambda x: ((x >> 4) + 3) >> 2, -(2**20), 2**20, "x + 48 >> 6"),
        (lambda x: ((x >> 4) + 3) >> 2, -(2**31), 2**31 - 1, "(x >> 4) + 3 >> 2"),
        (lambda x: (x >> 30) >> 3, -(2**31), 2**31 - 1, "x >> 30 >> 3"),
        (
            lambda x: (q15_multiply(x, 1000) + 7) >> 4,
            -(2**15),
            2**15 - 1,
            "T.ibert_multiply_add(x, 1000, 245760) >> 19",
        ),
        (
            lambda x: q15_multiply(x << 3, 1000),
            0,
            2**12 - 1,
            "T.ibert_multiply_add(x, 1000, 2048) >> 12",
        ),
        (lambda x: 64 - (x << 3), 0, 2**12, "8 - x << 3"),
        (lambda x: 65 - (x << 3), 0, 2**12, "65 - (x << 3)"),
        (absolute, -(2**15), 2**15, "(T.max(x, 0) << 1) - x"),
    ],
)
def test_spelling(function: Callable[[Ranged], Any], low: int, high: int, text: str) -> None:
    assert spelled(function, low, high) == text


def test_spelling_of_functions_that_the_target_has() -> None:
    def of(function: Callable[[Ranged], Any], low: int, high: int) -> str:
        names = frozenset({"square_root", "floor_log2", "normalised_reciprocal"})
        return spelled(function, low, high, ScalarWithMinimum(names))

    assert of(absolute, -(2**15), 2**15) == "T.Select(x >= 0, x, 0 - x)"
    assert of(absolute, -(2**31), 0) != "T.Select(x >= 0, x, 0 - x)", "2^31 does not fit"
    assert of(lambda x: i_sqrt(x, 40), 0, 2**31 - 1) == ('T.ibert_square_root(T.Cast("int64", x))')
    ends = ShortLayerNorm(4, 11)
    assert of(lambda x: short_layer_norm.root_bits(x, ends), 2**12, 2**31 - 1) == (
        "T.ibert_floor_log2(x)"
    )
    assert of(lambda x: short_layer_norm.reciprocal(x, x), 2**12, 2**31 - 1) == (
        "T.min(T.ibert_normalised_reciprocal(x), 32767)"
    )
    assert of(lambda x: short_softmax.sum_bits(x, 2**15), 0, 2**15) == (
        "T.ibert_floor_log2(T.max(x, 255)) + 1"
    )
    assert of(lambda x: short_softmax.reciprocal(x, x), 0, 2**15) == (
        "T.min(T.ibert_normalised_reciprocal(T.max(x, 255)), 32767)"
    )


def test_spelling_of_a_minimum_whose_rest_is_an_instruction() -> None:
    def of(function: Callable[[Ranged], Any], low: int, high: int) -> str:
        return spelled(function, low, high, SATURATING)

    rest = "T.Let(4080 - T.ibert_positive(t0, 12), where={t0: 4080 - x})"
    assert of(lambda x: minimum(x, 4080), 0, 2**15) == rest
    assert of(lambda x: minimum(x, 4095), 0, 2**15) == "T.min(T.max(x, 0), 4095)"
    assert of(lambda x: minimum(x, 4080), -1, 2**15) == "T.min(x, 4080)"


def test_values_of_64_bits_are_left_alone() -> None:
    text = spelled(lambda x: clamp((x * x + 5) >> 3, -127, 127), -(2**31), 2**31 - 1)
    assert "int64" in text and "ibert" not in text


def test_the_arithmetic_of_vectors_leaves_operations_as_they_are() -> None:
    assert str(cut(variable(0, 2**20, VECTORS), 1000, 1023).expr) == "T.min(x, 1000)"
    assert cut(np.array([5, 2000]), 1000, 1023).tolist() == [5, 1000]


@pytest.mark.parametrize(
    ("function", "low", "high", "text"),
    [
        (lambda x: minimum(x, 2**15 - 1), 0, 2**20, "T.min(x, 32767)"),
        (lambda x: minimum(x, 2**15), 0, 2**20, "T.min(x, 32768)"),
        (lambda x: clamp(x, -127, 127), -1000, 1000, "T.max(T.min(x, 127), -127)"),
        (lambda x: clamp(x, -127, 127), -127, 1000, "T.min(x, 127)"),
        (lambda x: saturate_short(x) >> 3, -(2**20), 2**20, "T.max(T.min(x >> 3, 4095), -4096)"),
        (
            lambda x: 9 - q15_multiply(x, 5757),
            0,
            2**15 - 1,
            "T.ibert_multiply_add(x, -5757, 311295) >> 15",
        ),
        (lambda x: 9 - (x >> 4), 0, 2**15 - 1, "9 - (x >> 4)"),
        (
            lambda x: cut(q15_multiply(minimum(x, 2**15 - 1), 18_008), 10_239, 16_383),
            0,
            2**20,
            "T.ibert_multiply_add(T.min(x, 29812), 18008, 16384) >> 15",
        ),
        (
            lambda x: cut(q15_multiply(minimum(x, 1000), 18_008), 10_239, 16_383),
            0,
            2**20,
            "T.ibert_multiply_add(T.min(x, 1000), 18008, 16384) >> 15",
        ),
        (lambda x: cut(x, 1000, 1022), 0, 2**20, "T.min(x, 1000)"),
    ],
)
def test_spelling_with_minima(
    function: Callable[[Ranged], Any], low: int, high: int, text: str
) -> None:
    assert spelled(function, low, high, ScalarWithMinimum()) == text
