"""The arithmetic of the integer specification: one function, two domains.

A specification function is written once over *values*. In the first domain a value is a NumPy
int64 array (or a Python int): evaluation, the reference. In the second it is a `Ranged`: a closed
interval of Python ints, which proves the width of every intermediate, together with an optional
TIR expression: what the compiler emits. Python's operators ``+ - * >> << &`` and unary ``-`` work
on both; everything else goes through the functions of this module.

Widths. A `Ranged` operation is computed in int32 when its operands and its result fit int32, in
int64 otherwise, and is narrowed to int32 again as soon as its interval fits. Past int64 it raises
a RangeError. The NumPy domain always computes in int64; since the interval analysis of the same
function proves that nothing leaves int64, both give the same integers.

Twice as many 16-bit as 32-bit numbers fit a vector register, so a function may say that a value is
to be kept `short`: operations on short values stay in int16 as long as their results provably fit,
and leave it by themselves where they do not. `q15_multiply` is the product of two such values.

For a machine without vectors the same functions are traced to other expressions, with the same
intervals and values, where the operands are of the arithmetic `ibert_tvm.relay_passes.spec.scalar`.

Shifts to the right are arithmetic (they floor). Values are mathematically integers in both
domains, so where a width changes cannot be seen in the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ..errors import RangeError
from .arithmetic import Arithmetic, shared
from .binding import Truth, Value, bind, bind_amount, tirx_module
from .ranged import (
    Condition,
    Constant,
    Ranged,
    combined,
    expr_in,
    exprs_in,
    is_ranged,
    product_bounds,
    ranged,
    respelled,
)
from .widths import INT16, INT32, fits

if TYPE_CHECKING:
    from tvm import tirx


def trace(
    function: Callable[..., Value],
    *arguments: object,
    arithmetic: Arithmetic | None = None,
    **keywords: object,
) -> Ranged:
    """Call a specification function with `Ranged` arguments and close its let-bindings.

    Parameters
    ----------
    function
        A function of this package that returns one value.
    *arguments, **keywords
        Passed on; `Ranged` ones carry the TIR expressions of the operands.
    arithmetic
        That of the values which the function reads besides; by default it reads its arguments
        only, which get an arithmetic of their own.

    Returns
    -------
    Ranged
        Interval, dtype and one self-contained TIR expression of the result.
    """
    if arithmetic is None:
        given = [x for x in (*arguments, *keywords.values()) if isinstance(x, Ranged)]
        arithmetic = own = shared(*given).fresh()
        arguments = tuple(_of(own, x) for x in arguments)
        keywords = {name: _of(own, x) for name, x in keywords.items()}
    with arithmetic.tracing() as scope:
        return scope.close(ranged(function(*arguments, **keywords)))


def _of(arithmetic: Arithmetic, x: object) -> object:
    """The same value with another arithmetic."""
    if not isinstance(x, Ranged) or x.expr is None:
        return x
    return Ranged(x.low, x.high, x.expr, x.is_short, arithmetic)


def spelled_as(function: str, x: Value) -> Ranged | None:
    """A function of one value that the target has itself; None where it is computed.

    Parameters
    ----------
    function
        What the arithmetic calls it (`ibert_tvm.relay_passes.spec.arithmetic`).
    x
        Its argument.
    """
    if not isinstance(x, Ranged):
        return None
    return x.arithmetic.function(function, x)


def minimum(a: Value, b: Value) -> Value:
    """Smaller of two values, elementwise."""
    if not is_ranged(a, b):
        return np.minimum(a, b)
    return _extreme("minimum", ranged(a), ranged(b))


def maximum(a: Value, b: Value) -> Value:
    """Larger of two values, elementwise."""
    if not is_ranged(a, b):
        return np.maximum(a, b)
    return _extreme("maximum", ranged(a), ranged(b))


def _extreme(name: str, x: Ranged, y: Ranged) -> Ranged:
    choose = min if name == "minimum" else max
    if x.high <= y.low or y.high <= x.low:
        return choose(x, y, key=lambda value: (value.low, value.high))
    spelled = respelled(name, x, y)
    if spelled is not None:
        return spelled
    low, high = choose(x.low, y.low), choose(x.high, y.high)

    def build(p: tirx.Expr, q: tirx.Expr) -> tirx.Expr:  # TVM is imported for expressions alone
        return getattr(tirx_module(), choose.__name__)(p, q)

    return combined(name, low, high, build, x, y)


def cut(value: Value, least: int, most: int) -> Value:
    """``minimum(value, n)`` for any n in [least, most]: the result must not depend on which.

    n is `least` wherever a machine has no cheaper one.
    """
    if isinstance(value, Ranged) and value.high > least:
        spelled = value.arithmetic.cut(value, least, most)
        if spelled is not None:
            return spelled
    return minimum(value, least)


def clamp(value: Value, low: Value, high: Value) -> Value:
    """``min(max(value, low), high)``."""
    return minimum(maximum(value, low), high)


def absolute(value: Value) -> Value:
    """Absolute value."""
    if not is_ranged(value):
        return np.abs(value)
    x = bind(ranged(value))
    if x.low >= 0:
        return x
    spelled = x.arithmetic.absolute(x)
    if spelled is not None:
        return spelled
    nearest = max(0, -x.high)  # the smallest absolute value, when the interval excludes 0
    return known(maximum(x, -x), nearest, max(-x.low, x.high))


def _compare(name: str, a: Value, b: Value) -> Condition:
    x, y = ranged(a), ranged(b)
    wide = not all(fits(v.low, v.high, INT32) for v in (x, y))
    dtype = "int64" if wide else "int32"
    sides = exprs_in(x, y, dtype)
    if sides is None:
        return Condition()
    return Condition(getattr(tirx_module(), name)(*sides), shared(x, y))


def greater_equal(a: Value, b: Value) -> Truth:
    """``a >= b``: a NumPy boolean array or a `Condition`."""
    return _compare("GE", a, b) if is_ranged(a, b) else np.greater_equal(a, b)


def less(a: Value, b: Value) -> Truth:
    """``a < b``: a NumPy boolean array or a `Condition`."""
    return _compare("LT", a, b) if is_ranged(a, b) else np.less(a, b)


def not_equal(a: Value, b: Value) -> Truth:
    """``a != b``: a NumPy boolean array or a `Condition`."""
    return _compare("NE", a, b) if is_ranged(a, b) else np.not_equal(a, b)


def indicator(condition: Truth) -> Value:
    """1 where a condition holds, else 0."""
    if not isinstance(condition, Condition):
        return np.where(condition, 1, 0)
    expr = None if condition.expr is None else condition.expr.astype("int32")
    return Ranged(0, 1, expr, arithmetic=condition.arithmetic)


def select(condition: Truth, yes: Value, no: Value) -> Value:
    """Choose elementwise; both branches are evaluated, so both must be defined everywhere."""
    if not is_ranged(condition, yes, no):
        return np.where(condition, yes, no)
    a, b = ranged(yes), ranged(no)
    test, arithmetic = None, shared(a, b)
    if isinstance(condition, Condition):
        test, arithmetic = condition.expr, shared(a, b, condition)

    def build(x: tirx.Expr, y: tirx.Expr) -> tirx.Expr:
        return None if test is None else tirx_module().Select(test, x, y)

    if isinstance(a, Constant) and isinstance(b, Constant):
        dtype = "int32" if fits(min(a.low, b.low), max(a.low, b.low), INT32) else "int64"
        expr = None if test is None else build(*(expr_in(value, dtype) for value in (a, b)))
        return Ranged(min(a.low, b.low), max(a.low, b.low), expr, arithmetic=arithmetic)
    return combined("choice", min(a.low, b.low), max(a.high, b.high), build, a, b)


def floor_log2(x: Value, first: int, last: int) -> Value:
    """``floor(log2 x)``, from `first` to `last`: comparisons with powers of two, or a function.

    A value below ``2^first`` counts as that.
    """
    bits: Value | None = spelled_as("floor_log2", x)
    if bits is None:
        bits = first
        for j in range(first + 1, last + 1):
            bits = select(greater_equal(x, 1 << j), 1, 0) + bits
    return known(bits, first, last)


def normalised_reciprocal(x: Value, bits: Value) -> Value:
    """``floor(2^bits / x)`` in 15 bits, for x from ``2^(bits - 15)`` to below twice that."""
    quotient = spelled_as("normalised_reciprocal", x)
    if quotient is None:
        quotient = floor_divide(power_of_two(bits), x)
    return minimum(known(quotient, 2**14, 2**15), 2**15 - 1)


def floor_divide(a: Value, b: Value) -> Value:
    """``floor(a / b)`` for positive b; exact in both domains."""
    if not is_ranged(a, b):
        return np.floor_divide(a, b)
    x, y = ranged(a), ranged(b)
    if y.low < 1:
        raise RangeError(
            "divisor may be zero or negative",
            why=f"its interval is [{y.low}, {y.high}]",
            todo="take the maximum with 1 before dividing",
        )
    corners = [p // q for p in (x.low, x.high) for q in (y.low, y.high)]
    # Of non-negative numbers truncation is the floor, and costs no correction of the sign.
    divide = "truncdiv" if x.low >= 0 else "floordiv"

    def build(p: tirx.Expr, q: tirx.Expr) -> tirx.Expr:
        return getattr(tirx_module(), divide)(p, q)

    return combined("quotient", min(corners), max(corners), build, x, y)


def shift_right_round(value: Value, n: Value) -> Value:
    """``round_half_up(value / 2^n)``: ``(value + 2^(n-1)) >> n``, and `value` itself for n = 0.

    Parameters
    ----------
    value
        The number to be shifted.
    n : int or Value
        0..62.

    Raises
    ------
    RangeError
        If a constant n is another one.
    """
    if isinstance(n, (int, np.integer)):
        if n == 0:
            return value
        if not 0 < n <= 62:
            raise RangeError(
                f"a shift by {n} bits", why="0 to 62 are defined", todo="quantise the model again"
            )
        half = 1 << (int(n) - 1)
        if isinstance(value, Ranged) and value.is_short and value.high + half > INT16[1]:
            return ((value >> (int(n) - 1)) + 1) >> 1  # the same floor, and no carry out of int16
        return (value + half) >> int(n)
    n = bind(n)
    # The same floor as of value + 2^(n-1), but narrower, and without a constant shifted left by a
    # vector: where there is no AVX2, LLVM does that in floating point.
    return (((value << 1) >> n) + 1) >> 1


def shift_left_within(value: Value, n: Value, bound: int) -> Value:
    """``value << n`` where a theorem bounds its magnitude, as for `known`: in as many bits.

    Parameters
    ----------
    value
        The number to be shifted.
    n
        0..15.
    bound
        Of the result's magnitude.
    """
    if not is_ranged(value, n):
        return value << n
    x, amount = ranged(value), bind_amount(ranged(n))
    return combined("left shift", -bound, bound, lambda p, s: p << s, x, amount, amount)


def power_of_two(n: Value) -> Value:
    """``2^n`` for a value n in 0..62."""
    if is_ranged(n):
        return ranged(1) << n
    return np.left_shift(np.int64(1), n)


def known(value: Value, low: int, high: int) -> Value:
    """Tighten an interval to a bound that is a theorem about the function just computed.

    Used only where the bound follows from the function and not from data, for example that a
    square root of [a, b] lies between the roots of a and b. Nothing is computed.
    """
    if not is_ranged(value):
        return value
    x = ranged(value)
    if isinstance(x, Constant):
        return x
    low, high = max(x.low, low), min(x.high, high)
    tightened = Ranged(low, high, x.expr, x.is_short, x.arithmetic)
    tightened.form = x.form
    return tightened


def short(value: Value) -> Value:
    """Compute with this value in int16 from here on.

    Parameters
    ----------
    value
        Its interval must fit int16.

    Returns
    -------
    Value
        The same number.

    Raises
    ------
    RangeError
        If the interval does not fit.
    """
    if not is_ranged(value):
        return value
    x = ranged(value)
    if not fits(x.low, x.high, INT16):
        raise RangeError(
            f"a value of {x.bits} bits does not fit 16",
            why=f"its interval is [{x.low}, {x.high}]",
            todo="use a coarser scale, or the wide form of the operator",
        )
    if isinstance(x, Constant) or not x.arithmetic.keeps_short:
        return x
    return Ranged(x.low, x.high, x.expr, True, x.arithmetic)


def saturate_short(value: Value) -> Value:
    """``clamp(value, -2^15, 2^15 - 1)``, computed with in int16 from here on."""
    return short(clamp(value, *INT16))


def q15_multiply(a: Value, b: Value) -> Value:
    """``round_half_up(a b / 2^15)``: the product of two 16-bit numbers, one of them in Q15.

    Every instruction set with 16-bit lanes has it as one instruction (pmulhrsw, sqrdmulh,
    vqrdmulh); elsewhere it is a 32-bit product, an addition and a shift.

    Parameters
    ----------
    a, b
        16 bits each; not both -2^15.

    Returns
    -------
    Value
        16 bits, and short in the second domain.

    Raises
    ------
    RangeError
        If an operand does not fit 16 bits, or both may be -2^15.
    """
    if not is_ranged(a, b):
        return (np.multiply(a, b) + (1 << 14)) >> 15
    x, y = ranged(short(a)), ranged(short(b))
    low, high = ((bound + (1 << 14)) >> 15 for bound in product_bounds(x, y, square=a is b))
    if high > INT16[1]:
        raise RangeError(
            "both factors of a Q15 product may be -2^15",
            why=f"[{x.low}, {x.high}] with [{y.low}, {y.high}]",
            todo="clamp one of them to -32767",
        )
    if isinstance(x, Constant) and isinstance(y, Constant):
        return Constant(low)
    arithmetic = shared(x, y)
    if not arithmetic.keeps_short:
        spelled = arithmetic.q15_product(x, y)
        return known((x * y + (1 << 14)) >> 15 if spelled is None else spelled, low, high)
    sides = exprs_in(x, y, "int16")
    if sides is None:
        return Ranged(low, high, is_short=True)
    from .q15 import q15_product

    return Ranged(low, high, q15_product(*sides), True, arithmetic)
