"""The two-domain arithmetic: intervals are sound, widths minimal, misuse refused."""

from __future__ import annotations

import operator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibert_tvm.relay_passes.errors import RangeError
from ibert_tvm.relay_passes.spec import values
from ibert_tvm.relay_passes.spec.arithmetic import VECTORS, Arithmetic
from ibert_tvm.relay_passes.spec.scalar import Scalar
from ibert_tvm.relay_passes.spec.scalar_minimum import ScalarWithMinimum
from ibert_tvm.relay_passes.spec.values import Condition, Ranged, ranged
from ibert_tvm.relay_passes.spec.widths import audit
from tests.snapshots import Messages

BINARY = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "min": values.minimum,
    "max": values.maximum,
}


@st.composite
def interval_and_point(draw: st.DrawFn, low: int = -(2**31), high: int = 2**31 - 1):
    """An interval and a number in it; the ends are drawn more often than elsewhere."""
    a, b = sorted((draw(st.integers(low, high)), draw(st.integers(low, high))))
    return Ranged(a, b), draw(st.sampled_from((a, b)) | st.integers(a, b))


def array(number: int) -> np.ndarray:
    return np.array([number], np.int64)


def inside(number: object, interval: Ranged) -> bool:
    return interval.low <= int(np.asarray(number).item()) <= interval.high


@pytest.mark.representatives(2)
@pytest.mark.parametrize("name", BINARY)
@given(data=st.data())
def test_interval_of_a_binary_operation_holds_its_result(name: str, data: st.DataObject) -> None:
    a, x = data.draw(interval_and_point())
    b, y = data.draw(interval_and_point())
    assert inside(BINARY[name](array(x), array(y)), BINARY[name](a, b))


@given(interval_and_point(-(2**62), 2**62), interval_and_point(0, 62))
def test_interval_of_a_right_shift_holds_its_result(a, b) -> None:
    assert inside(array(a[1]) >> array(b[1]), a[0] >> b[0])
    assert inside(array(a[1]) & 0xFFFF, a[0] & 0xFFFF)


@given(interval_and_point(-(2**30), 2**30), interval_and_point(0, 31))
def test_interval_of_a_left_shift_holds_its_result(a, b) -> None:
    assert inside(array(a[1]) << array(b[1]), a[0] << b[0])


@given(interval_and_point(-(2**62), 2**62), interval_and_point(1, 2**40))
def test_interval_of_a_floor_division_holds_its_result(a, b) -> None:
    assert inside(values.floor_divide(array(a[1]), array(b[1])), values.floor_divide(a[0], b[0]))


@given(interval_and_point(), st.integers(0, 40))
def test_interval_of_a_rounding_shift_holds_its_result(a, n: int) -> None:
    result = values.shift_right_round(array(a[1]), n)
    assert inside(result, values.shift_right_round(a[0], n))
    assert int(result[0]) == (a[1] * 2 + (1 << n) >> (n + 1))  # floor(x / 2^n + 1/2)


@given(interval_and_point(), interval_and_point(-100, 100))
def test_interval_of_a_choice_holds_both_branches(a, b) -> None:
    chosen = values.select(Condition(), a[0], b[0])
    assert inside(a[1], chosen) and inside(b[1], chosen)
    assert inside(values.absolute(array(a[1])), values.absolute(a[0]))


@given(interval_and_point())
def test_a_square_is_not_negative(a) -> None:
    squared = a[0] * a[0]
    assert inside(a[1] * a[1], squared) and squared.low >= 0


def test_int32_is_used_exactly_while_the_interval_fits() -> None:
    edge = Ranged(-(2**31), 2**31 - 1)
    assert edge.dtype == "int32"
    assert (edge + 1).dtype == "int64"
    assert (edge - 1).dtype == "int64"
    assert ((edge * 4) >> 2).dtype == "int32", "narrowed as soon as it fits again"
    assert values.clamp(edge * 4, -5, 5).dtype == "int32"


@given(st.integers(-(2**31), 2**31 - 1), st.integers(0, 2**31 - 1))
def test_operations_of_two_constants_are_exact(a: int, b: int) -> None:
    """9217 & 32767 once gave 0, the lower bound of a mask of unknown values."""
    for name in ("and_", "add", "sub", "mul"):
        apply = getattr(operator, name)
        result = apply(ranged(a), ranged(b))
        assert (result.low, result.high) == (apply(a, b), apply(a, b)), name


def test_a_product_past_int64_is_refused_with_its_interval(messages: Messages) -> None:
    with messages.raises(RangeError):
        Ranged(0, 2**40) * Ranged(-3, 2**40)


def test_the_caller_adds_the_layer_once() -> None:
    error = RangeError("too wide", why="it is", todo="narrow it").at("encoder.layer.3")
    assert str(error) == (
        "too wide\n  where: encoder.layer.3\n  why: it is\n  what to do: narrow it"
    )
    assert isinstance(error, RangeError)
    assert error.at("elsewhere") is error


def test_a_divisor_that_may_be_zero_is_refused(messages: Messages) -> None:
    with messages.raises(RangeError):
        values.floor_divide(Ranged(0, 5), Ranged(0, 5))


def test_a_shift_that_may_be_too_large_is_refused(messages: Messages) -> None:
    with messages.raises(RangeError):
        Ranged(0, 5) >> Ranged(0, 64)


@pytest.mark.parametrize("value", [Ranged(0, 1), Condition()])
def test_values_have_no_truth(value: object) -> None:
    with pytest.raises(TypeError, match="has no truth value"):
        bool(value)


def test_an_array_becomes_the_interval_of_its_entries() -> None:
    interval = ranged(np.array([3, -7, 5]))
    assert (interval.low, interval.high) == (-7, 5)
    product = np.array([3, -7, 5]) * Ranged(0, 10)  # the array must leave the operator to Ranged
    assert (product.low, product.high) == (-70, 50)


def test_audit_sees_the_widest_intermediate() -> None:
    with audit() as seen:
        _ = (Ranged(-(2**20), 2**20) * 2**30) >> 40
    assert seen.bits == 52


def test_bound_values_keep_an_expression_from_growing() -> None:
    from tvm import tirx

    def iterate(x: Ranged) -> Ranged:
        for _ in range(30):
            x = values.bind(values.clamp(x + x, -1000, 1000))
        return x

    expr = values.trace(iterate, Ranged(-9, 9, tirx.Var("x", "int32"))).expr
    assert len(str(expr)) < 10_000, "without let-bindings there would be 2^30 terms"


def test_a_trace_within_another_binds_for_itself() -> None:
    from tvm import tirx

    arithmetic = Arithmetic()
    x, y = (Ranged(-9, 9, tirx.Var(n, "int32"), arithmetic=arithmetic) for n in "xy")
    inner: list[Ranged] = []

    def outer() -> Ranged:
        twice = values.bind(x + x)
        inner.append(values.trace(lambda: values.bind(y + 1) * 2, arithmetic=arithmetic))
        return values.bind(twice + 1) * 3

    traced = values.trace(outer, arithmetic=arithmetic)
    assert arithmetic.scope is None
    assert [str(v.name) for v in tirx.analysis.undefined_vars(inner[0].expr)] == ["y"]
    assert [str(v.name) for v in tirx.analysis.undefined_vars(traced.expr)] == ["x"]


def test_a_constant_needs_none_of_the_values_bound_on_its_way() -> None:
    from tvm import tirx

    def at_least_100(x: Ranged) -> Ranged:
        return values.maximum(values.bind(x + 1), 100)

    traced = values.trace(at_least_100, Ranged(-9, 9, tirx.Var("x", "int32")))
    assert (traced.low, traced.high, traced.expr) == (100, 100, None)


def test_division_and_shifts_of_negative_numbers_floor(both_domains) -> None:
    x = np.arange(-300, 300)
    both_domains(lambda v: values.floor_divide(v, 7), (x, -300, 300))
    both_domains(lambda v: v >> 3, (x, -300, 300))
    both_domains(lambda v: values.shift_right_round(v, 3), (x, -300, 300))
    divisor = np.resize(np.arange(1, 12), x.size)
    both_domains(values.floor_divide, (x, -300, 300), (divisor, 1, 11))
    amounts = np.resize(np.arange(0, 40), x.size)
    both_domains(values.shift_right_round, (x, -300, 300), (amounts, 0, 39))


def test_no_clamp_is_lost_behind_a_shift_by_a_difference(both_domains) -> None:
    # TVM's simplifier takes `x >> (n - 1) <= 3` for true, whatever x and n.
    def function(v, n):
        return values.minimum(v >> (n - 1), 100)

    x = np.arange(0, 2**16, 100)
    both_domains(function, (x, 0, 2**16), (np.resize(np.arange(1, 12), x.size), 1, 30))


@pytest.mark.parametrize("arithmetic", [VECTORS, Scalar(), ScalarWithMinimum()])
def test_tvm_proves_nothing_wrong_of_a_shift_by_an_absolute_value(arithmetic: Arithmetic) -> None:
    """It knows n to be above -16 only, and took the shift by it for 0 or -1."""
    from tvm import sym, tirx

    def function(v, n):
        return (v >> 2) >> (values.absolute(n) >> 3)

    operands = (("v", "int16", -(2**15), 2**15 - 1), ("n", "int8", -127, 127))
    traced = values.trace(
        function, *(Ranged(a, b, tirx.Var(n, t), arithmetic=arithmetic) for n, t, a, b in operands)
    )
    analyzer, expr = sym.Analyzer(), traced.expr
    while isinstance(expr, tirx.Let):
        analyzer.bind(expr.var, expr.value)
        expr = expr.body
    bound = analyzer.const_int_bound(expr)
    assert bound.min_value <= traced.low < traced.high <= bound.max_value


def test_selections_agree_in_both_domains(both_domains) -> None:
    x = np.arange(-128, 128)

    def function(v):
        sign = values.select(values.less(v, 0), -1, values.select(values.less(0, v), 1, 0))
        even = values.not_equal(v & 1, 1)
        wide = values.select(values.greater_equal(v, 100), v * 2**40, v)
        return values.select(even, sign * values.absolute(v), wide)

    both_domains(function, (x, -128, 127))


def test_int64_edges_agree_in_both_domains(both_domains) -> None:
    edge = 2**31
    x = np.array([-edge, -edge + 1, -1, 0, 1, edge - 2, edge - 1, 12345])

    def function(v):
        return values.maximum(-v, v + 1) - values.minimum(v * v, 2**40)

    both_domains(function, (x, -edge, edge - 1))
