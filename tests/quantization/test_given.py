"""From the grids of a source to the entries of a table, one rule at a time."""

from __future__ import annotations

import numpy as np
import pytest

from ibert_tvm.frontend.model import GivenMatrix, GivenQuantization, GivenReader, GivenScale
from ibert_tvm.quantization.given import fill_scales
from ibert_tvm.quantization.scale_source import embedding_rows, linear_rows
from ibert_tvm.relay_passes.canonical import OPERATORS
from ibert_tvm.relay_passes.lower.required_scales import Reader, Requirement
from ibert_tvm.relay_passes.lower.rule import rules_of
from ibert_tvm.relay_passes.quantization_table import ActivationQuant
from ibert_tvm.relay_passes.spec.presets import preset as preset_of

RANGES = {"u8": (0, 255), "s8": (-128, 127), "s16": (-(2**15), 2**15 - 1), "u16": (0, 2**16 - 1)}
SHORT, STREAM, SUM = 2**14 - 1, 2**15 - 1, 2**19 - 1


def scale(kind: str, step=0.5, zero=0, tensor: str = "t") -> GivenScale:
    low, high = RANGES[kind]
    zeros = np.broadcast_to(np.asarray(zero, np.int64), np.shape(step))
    return GivenScale(np.asarray(step, np.float64), zeros, low, high, tensor)


def fill(op, products=(), others=(), readers=(), preset="accurate", widen=False, **flags):
    """Entries of one value v, whose readers are rounded as given."""
    found = [GivenReader("n", True, s) for s in products]
    found += [GivenReader("n", False, s) for s in others]
    op = f"canonical.{op}"
    sections = [operand.section for operand in OPERATORS[op].OPERANDS if operand.section]
    need = rules_of(preset)[op].need(preset_of(preset))
    read = [reader(preset) for reader in readers]
    value = Requirement("v", op, 4, need, *sections, readers=read, **flags)
    given = GivenQuantization({"v": tuple(found)}, {})
    return fill_scales(given, {"v": value}, widen)


def fields(quant: ActivationQuant):
    assert quant.channel_divisor is None
    return quant.scale, quant.low, quant.high, quant.zero_point


def texts(result) -> list[str]:
    return [note.what for note in result.notes]


def reads(op: str, position: int = 0):
    """A reader by operator and operand."""

    def reader(preset: str) -> Reader:
        need = rules_of(preset)[f"canonical.{op}"].need(preset_of(preset))
        return Reader(op, need.operands[position], need.stream_for)

    return reader


LINEAR = [reads("linear")]
GELU = [reads("gelu")]


def attention(*positions: int):
    return [reads("attention", position) for position in positions]


# -- matrix operands --------------------------------------------------------------------------


@pytest.mark.parametrize("kind, zero", [("u8", 118), ("s8", -10), ("s8", 0), ("u8", 0)])
def test_a_linear_layer_takes_any_zero_point(kind, zero):
    result = fill("gelu", [scale(kind, 0.25, zero)], readers=LINEAR, matmul=True)
    assert fields(result.matmul["v"]) == (0.25, *RANGES[kind], zero)
    assert result.notes == []
    assert result.missing == []
    assert result.tensors == {"matmul v": "t"}


def test_a_symmetric_grid_is_attentions_own():
    result = fill("linear", [scale("s8", 0.25)], readers=attention(0), matmul=True)
    assert fields(result.matmul["v"]) == (0.25, -128, 127, 0)
    assert result.notes == []


def test_attention_counts_a_slightly_asymmetric_grid_from_its_zero_point():
    result = fill("linear", [scale("u8", 0.25, 118)], readers=attention(0), matmul=True)
    assert fields(result.matmul["v"]) == (0.25, -118, 127, 0)
    assert texts(result) == [
        "zero point 118: same scale, symmetric; the 10 outermost of 256 steps saturate"
    ]


def test_attention_takes_a_coarser_scale_where_much_would_saturate():
    result = fill("linear", [scale("u8", 0.5, 1)], readers=attention(2), matmul=True)
    assert fields(result.matmul["v"]) == (0.5 * 254 / 127, -127, 127, 0)
    assert texts(result) == ["made symmetric int8, 2 times coarser"]


def test_sixteen_bits_in_attention_become_eight_symmetric_ones():
    result = fill("linear", [scale("s16", 0.5)], readers=attention(1), matmul=True)
    assert fields(result.matmul["v"]) == (0.5 * 2**15 / 127, -127, 127, 0)
    assert texts(result) == ["16 bits reduced to symmetric int8 over the same range"]


def test_values_may_have_a_scale_per_channel_and_queries_not():
    steps = np.array([0.5, 0.25, 1.0, 0.125])
    per_channel = scale("s8", steps)
    values = fill("linear", [per_channel], readers=attention(2), matmul=True).matmul["v"]
    assert (values.scale, values.low, values.high, values.zero_point) == (1.0, -128, 127, 0)
    np.testing.assert_array_equal(values.channel_scale, steps)
    queries = fill("linear", [per_channel], readers=attention(0), matmul=True)
    assert fields(queries.matmul["v"]) == (1.0, -128, 127, 0)
    assert texts(queries) == ["scales per channel: queries and keys take one, the largest"]


def test_sixteen_bits_before_a_matrix_product_become_eight():
    result = fill("gelu", [scale("u16", 0.01, 6553)], readers=LINEAR, matmul=True)
    step, low, high, zero = fields(result.matmul["v"])
    assert step == pytest.approx(0.01 * 65535 / 255)
    assert (low, high, zero) == (0, 255, 25)
    assert texts(result) == ["16 bits reduced to 8 over the same range"]


def test_zero_points_that_differ_between_channels_become_symmetric():
    given = scale("u8", np.array([0.5, 0.25]), np.array([100, 200]))
    quant = fill("layer_norm", [given], readers=LINEAR, matmul=True).matmul["v"]
    np.testing.assert_allclose(quant.channel_scale, [0.5 * 155 / 127, 0.25 * 200 / 127])
    assert (quant.low, quant.high, quant.zero_point) == (-127, 127, 0)


def test_of_two_grids_for_products_the_wider_serves_both():
    narrow, wide = scale("u8", 0.25, 3, "narrow"), scale("u8", 0.5, 3, "wide")
    result = fill("gelu", [narrow, wide], readers=LINEAR, matmul=True)
    assert fields(result.matmul["v"]) == (0.5, 0, 255, 3)
    assert [(n.tensor, n.what) for n in result.notes] == [
        ("narrow", "not used: one 8-bit form serves all readers, wide")
    ]


# -- other readers ----------------------------------------------------------------------------


def test_a_layer_norm_rounds_to_its_grid_by_itself():
    grid = scale("u8", 0.5, 100)
    result = fill("layer_norm", [grid], [grid], LINEAR, matmul=True, stream=True)
    assert fields(result.stream["v"]) == (0.5, -100, 155, 0)
    assert fields(result.matmul["v"]) == (0.5, 0, 255, 100)
    assert result.grids == {}


def test_a_sum_is_rounded_after_its_terms_were_added_in_finer_steps():
    result = fill("add", others=[scale("s8", 0.5, 4)], stream=True)
    assert fields(result.grids["v"]) == (0.5, -132, 123, 0)
    assert fields(result.stream["v"]) == (0.5 / 32, -SHORT, SHORT, 0)


def test_a_sum_on_sixteen_bits_is_a_stream_as_it_is():
    result = fill("add", others=[scale("s16", 0.001)], stream=True)
    assert fields(result.stream["v"]) == (0.001, -SUM, SUM, 0)
    assert result.grids == {}


def test_what_a_sum_reads_is_rounded_first():
    result = fill("linear", others=[scale("u8", 0.5, 128)])
    assert fields(result.grids["v"]) == (0.5, -128, 127, 0)
    assert result.stream == {}


def test_the_input_of_gelu_is_rounded_and_then_read_at_gelus_own_scale():
    result = fill("linear", others=[scale("u8", 2.0**-5, 128)], readers=GELU, stream=True)
    assert fields(result.grids["v"]) == (2.0**-5, -128, 127, 0)
    step, low, high, _ = fields(result.stream["v"])
    assert (low, high) == (-SHORT, SHORT)
    assert step < 2.0**-5 / 64
    assert step * SHORT >= 4.0  # all of the grid


def test_other_streams_are_finer_by_a_power_of_two():
    result = fill("linear", others=[scale("u8", 0.5, 100)], readers=[reads("tanh")], stream=True)
    assert fields(result.stream["v"]) == (0.5 / 128, -STREAM, STREAM, 0)


def test_only_a_matrix_product_reads_a_layer_norm():
    result = fill("layer_norm", [scale("u8", 0.5, 100)], readers=LINEAR, matmul=True, stream=True)
    assert fields(result.stream["v"]) == (0.5, -100, 155, 0)
    assert result.missing == []


def test_a_reader_without_rounding_keeps_the_value_wide():
    grid = scale("u8", 0.5, 100)
    result = fill("layer_norm", [grid], [grid, None], LINEAR, matmul=True, stream=True)
    assert [(m.value, m.section, m.op) for m in result.missing] == [
        ("v", "stream", "canonical.layer_norm")
    ]
    assert texts(result) == ["not used: another reader takes the value unrounded"]


def test_different_grids_for_additions_are_not_used():
    result = fill("add", others=[scale("u8", 0.5, 1, "a"), scale("u8", 0.25, 1, "b")], stream=True)
    assert [(n.tensor, n.what) for n in result.notes] == [
        ("b", "not used: another reader has the grid of a")
    ]
    assert len(result.missing) == 1


def test_what_is_not_rounded_is_missing():
    result = fill("linear", readers=attention(0), matmul=True)
    assert [(m.value, m.section, m.op) for m in result.missing] == [
        ("v", "matmul", "canonical.linear")
    ]


def test_the_paper_needs_no_stream_for_gelu():
    result = fill("linear", others=[scale("u8", 0.5, 100)], readers=GELU, preset="paper")
    assert fields(result.grids["v"]) == (0.5, -100, 155, 0)
    assert result.stream == {}


# -- weights ----------------------------------------------------------------------------------

NO_BIAS = np.zeros(2, np.float32)


def matrix(integers, steps, found=(True, True)) -> GivenMatrix:
    array = np.asarray(integers, np.int64)
    return GivenMatrix(array, np.asarray(steps, np.float64), np.asarray(found), "w")


def floats(given: GivenMatrix) -> np.ndarray:
    return (given.integers * given.scale[:, None]).astype(np.float32)


def test_integers_that_fit_are_kept():
    given = matrix([[-128, 127], [1, 2]], [0.5, 0.25])
    rows, use = linear_rows(floats(given), given, NO_BIAS, 1.0, None)
    np.testing.assert_array_equal(rows.values, given.integers)
    np.testing.assert_array_equal(rows.scale, given.scale)
    assert (use.rows, use.exact, use.why) == (2, 2, "")


def test_a_row_beyond_int8_takes_the_nearer_of_two_forms():
    # One outlier: saturating it costs less than a coarser scale. A whole row: the other way round.
    given = matrix([[130, *range(-60, 61)], [*range(-135, -74), *range(75, 136)]], [0.5, 0.5])
    rows, use = linear_rows(floats(given), given, NO_BIAS, 1.0, None)
    assert rows.values[0, 0] == 127
    np.testing.assert_array_equal(rows.values[0, 1:], given.integers[0, 1:])
    np.testing.assert_allclose(rows.scale, [0.5, 0.5 * 135 / 127])
    assert (use.exact, use.why) == (0, "integers beyond int8, counted from their zero point")


def test_rows_that_were_not_found_are_rounded_to_the_nearest():
    given = matrix([[10, 20], [0, 0]], [0.5, 1.0], (True, False))
    array = floats(given)
    array[1] = [1.0, -0.5]
    rows, use = linear_rows(array, given, NO_BIAS, 1.0, None)
    np.testing.assert_array_equal(rows.values, [[10, 20], [127, -64]])
    assert (use.exact, use.why) == (1, "no single scale for the row in the source")
    _, use = linear_rows(array, None, NO_BIAS, 1.0, None)
    assert (use.tensor, use.exact, use.why) == ("", 0, "floats in the source")


def test_a_bias_that_would_leave_int32_makes_its_row_coarser():
    given = matrix([[100, -100], [100, 100]], [1e-12, 0.5])
    bias = np.array([1.0, 1.0], np.float32)
    rows, use = linear_rows(floats(given), given, bias, 0.5, None)
    assert rows.scale[0] == pytest.approx(2.0**-29)
    np.testing.assert_array_equal(rows.values, [[0, 0], [100, 100]])
    assert (use.exact, use.why) == (1, "the bias would leave int32")


def test_a_scale_per_channel_of_the_operand_moves_into_the_weights():
    given = matrix([[100, -100], [100, 100]], [0.5, 0.5])
    divisor = np.array([1.0, 0.5])
    rows, use = linear_rows(floats(given), given, NO_BIAS, 1.0, divisor)
    np.testing.assert_allclose(rows.dequantize(), floats(given) * divisor, atol=0.3)
    assert use.exact == 0


def test_rows_of_an_embedding_that_are_rounded_later_are_rounded_at_once():
    table = np.array([[0.26, -0.2], [1.0, 70.0]], np.float32)
    rows, use = embedding_rows(table, None, scale("u8", 0.5, 100, "rounded"))
    np.testing.assert_array_equal(rows.values, [[1, 0], [2, 127]])  # 140 steps saturate
    assert (use.tensor, use.rows, use.exact) == ("rounded", 2, 1)


def test_an_embedding_on_its_own_grid_keeps_its_integers():
    given = matrix([[1, -7], [3, 100]], [0.5, 0.5])
    rows, use = embedding_rows(floats(given), given, scale("u8", 0.5, 100, "rounded"))
    np.testing.assert_array_equal(rows.values, given.integers)
    assert (use.tensor, use.exact) == ("w", 2)


# -- widened ----------------------------------------------------------------------------------


def test_widening_keeps_the_range_and_rounds_nothing():
    grid = scale("u8", 0.5, 100)
    for op, expected in (
        ("layer_norm", (0.5 / 128, -STREAM, STREAM, 0)),
        ("add", (0.5 / 32, -SHORT, SHORT, 0)),
    ):
        result = fill(op, [grid], [grid], LINEAR, widen=True, matmul=True, stream=True)
        assert fields(result.stream["v"]) == expected
        assert fields(result.matmul["v"]) == (0.5, 0, 255, 100)
        assert result.grids == {}
        assert result.missing == []
    term = fill("linear", others=[grid], widen=True)
    assert (term.grids, term.stream, term.missing) == ({}, {}, [])


def test_widening_leaves_sixteen_bits_alone():
    result = fill("add", others=[scale("s16", 0.001)], widen=True, stream=True)
    assert fields(result.stream["v"]) == (0.001, -SUM, SUM, 0)
