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
intervals and values, inside `relay_passes.spec.scalar.scalar_arithmetic`.

Shifts to the right are arithmetic (they floor). Values are mathematically integers in both
domains, so where a width changes cannot be seen in the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

import numpy as np

from ..errors import RangeError

INT16 = (-(2**15), 2**15 - 1)
INT32 = (-(2**31), 2**31 - 1)
INT64 = (-(2**63), 2**63 - 1)

Value: TypeAlias = Any
"""A NumPy int64 array, a Python int, or a `Ranged`."""


def _tir() -> Any:
    """Import TIR late: interval analysis and NumPy evaluation do not need it."""
    from tvm import tirx

    return tirx


def _fits(low: int, high: int, bounds: tuple[int, int]) -> bool:
    return bounds[0] <= low and high <= bounds[1]


def bits_of(low: int, high: int) -> int:
    """Width in bits of the smallest signed integer type that holds [low, high]."""
    return max((low if low >= 0 else ~low).bit_length(), high.bit_length()) + 1


class Audit:
    """The widest interval seen while it was open.

    Attributes
    ----------
    bits : int
        Bits of the smallest signed type that holds every interval made so far.
    """

    def __init__(self) -> None:
        self.bits = 1


_audit: ContextVar[Audit | None] = ContextVar("relay_passes.spec.values.audit", default=None)


@contextmanager
def audit() -> Iterator[Audit]:
    """Record the width of every intermediate of the specification functions called inside."""
    current = Audit()
    token = _audit.set(current)
    try:
        yield current
    finally:
        _audit.reset(token)


SPELLING: ContextVar[Any] = ContextVar("relay_passes.spec.values.spelling", default=None)
"""How expressions are spelled, where not as here: `relay_passes.spec.scalar`."""


class Ranged:
    """A closed interval of integers and, optionally, the TIR expression it bounds.

    Parameters
    ----------
    low, high : int
        Every value the expression takes lies in [low, high].
    expr : tvm.tirx.PrimExpr, optional
        An integer expression of any width; it is cast to `dtype`. None for pure interval analysis.
    is_short : bool
        Whether to compute in int16; the interval must fit it.

    Attributes
    ----------
    dtype : str
        The type of `expr`: "int16" if short (and machines have vectors), else "int32" if the
        interval fits it, else "int64".

    Raises
    ------
    RangeError
        If the interval does not fit int64.
    """

    __slots__ = ("dtype", "expr", "form", "high", "low")
    __array_ufunc__ = None  # a NumPy array on the left must leave the operator to this class

    def __init__(self, low: int, high: int, expr: Any = None, is_short: bool = False) -> None:
        if low > high:
            raise ValueError(f"empty interval [{low}, {high}]")
        self.low = int(low)
        self.high = int(high)
        if not _fits(self.low, self.high, INT64):
            raise _overflow("a value", self.low, self.high)
        self.dtype = "int32" if _fits(self.low, self.high, INT32) else "int64"
        self.form: Any = None
        if is_short and SPELLING.get() is None:
            self.dtype = "int16"
        watch = _audit.get()
        if watch is not None:
            watch.bits = max(watch.bits, bits_of(self.low, self.high))
        self.expr: Any = None if expr is None else _cast(expr, self.dtype)

    @property
    def is_short(self) -> bool:
        """Whether the expression is int16."""
        return self.dtype == "int16"

    @property
    def bits(self) -> int:
        """Bits of the smallest signed type that holds the interval."""
        return bits_of(self.low, self.high)

    def __repr__(self) -> str:
        expr = "" if self.expr is None else f", {self.expr}"
        return f"Ranged({self.low}, {self.high}{expr})"

    def __add__(self, other: Value) -> Ranged:
        b = ranged(other)
        spelled = _spelled("add", self, b)
        if spelled is not None:
            return spelled
        return _apply("sum", self.low + b.low, self.high + b.high, lambda x, y: x + y, self, b)

    def __radd__(self, other: Value) -> Ranged:
        return ranged(other) + self

    def __sub__(self, other: Value) -> Ranged:
        b = ranged(other)
        spelled = _spelled_difference(self, b)
        if spelled is not None:
            return spelled
        low, high = self.low - b.high, self.high - b.low
        return _apply("difference", low, high, lambda x, y: x - y, self, b)

    def __rsub__(self, other: Value) -> Ranged:
        return ranged(other) - self

    def __neg__(self) -> Ranged:
        return ranged(0) - self

    def __mul__(self, other: Value) -> Ranged:
        b = ranged(other)
        speller = SPELLING.get()
        spelled = None if speller is None else speller.multiply(self, b)
        if spelled is not None:
            return spelled
        if b is self:  # a square is not negative
            corners = [self.low**2, self.high**2] + ([0] if self.low <= 0 <= self.high else [])
        else:
            corners = [x * y for x in (self.low, self.high) for y in (b.low, b.high)]
        return _apply("product", min(corners), max(corners), lambda x, y: x * y, self, b)

    def __rmul__(self, other: Value) -> Ranged:
        return ranged(other) * self

    def __rshift__(self, other: Value) -> Ranged:
        n = _shift_amount(other)
        if n.high == 0:
            return self
        spelled = _spelled("shift_right", self, n)
        if spelled is not None:
            return spelled
        corners = [x >> s for x in (self.low, self.high) for s in (n.low, n.high)]
        return _apply("right shift", min(corners), max(corners), lambda x, s: x >> s, self, n, n)

    def __rrshift__(self, other: Value) -> Ranged:
        return ranged(other) >> self

    def __lshift__(self, other: Value) -> Ranged:
        n = _shift_amount(other)
        if n.high == 0:
            return self
        spelled = _spelled("shift_left", self, n)
        if spelled is not None:
            return spelled
        corners = [x << s for x in (self.low, self.high) for s in (n.low, n.high)]
        return _apply("left shift", min(corners), max(corners), lambda x, s: x << s, self, n, n)

    def __rlshift__(self, other: Value) -> Ranged:
        return ranged(other) << self

    def __and__(self, other: Value) -> Ranged:
        b = ranged(other)
        tops = [x.high for x in (self, b) if x.low >= 0]
        if not tops:
            raise RangeError(
                "bit mask of two values that may both be negative",
                why=f"[{self.low}, {self.high}] & [{b.low}, {b.high}]",
                todo="mask with a non-negative constant",
            )
        return _apply("mask", 0, min(tops), lambda x, y: x & y, self, b)

    def __rand__(self, other: Value) -> Ranged:
        return ranged(other) & self

    def __bool__(self) -> bool:
        raise TypeError("a Ranged has no truth value; use relay_passes.spec.values.select")


class Condition:
    """A comparison of `Ranged` values, to be used in `select`.

    Parameters
    ----------
    expr : tvm.tirx.PrimExpr, optional
        A boolean expression; None for pure interval analysis.
    """

    __slots__ = ("expr",)
    __array_ufunc__ = None

    def __init__(self, expr: Any = None) -> None:
        self.expr = expr

    def __and__(self, other: Condition) -> Condition:
        if self.expr is None or other.expr is None:
            return Condition()
        return Condition(_tir().And(self.expr, other.expr))

    def __bool__(self) -> bool:
        raise TypeError("a Condition has no truth value; use relay_passes.spec.values.select")


def ranged(value: Value) -> Ranged:
    """Turn a Python int or an array of constants into a `Ranged`; leave a `Ranged` alone.

    Parameters
    ----------
    value : int, numpy.ndarray or Ranged
        An array becomes the interval from its smallest to its largest entry.

    Returns
    -------
    Ranged
    """
    if isinstance(value, Ranged):
        return value
    if isinstance(value, np.ndarray):
        return Ranged(int(value.min()), int(value.max()))
    return _Constant(int(value))


class _Constant(Ranged):
    """A known integer: it has a TIR expression in every width."""

    __slots__ = ()

    def __init__(self, value: int) -> None:
        super().__init__(value, value)


def is_ranged(*values: Value) -> bool:
    """Tell whether any of the values belongs to the second domain."""
    return any(isinstance(value, (Ranged, Condition)) for value in values)


def _overflow(what: str, low: int, high: int) -> RangeError:
    return RangeError(
        f"{what} of {bits_of(low, high)} bits does not fit 64",
        why=f"its interval is [{low}, {high}]",
        todo="use coarser scales, shorter multipliers or tighter clamps",
    )


def _cast(expr: Any, dtype: str) -> Any:
    if not hasattr(expr, "ty"):  # an element of a TE tensor
        expr = expr.asobject()
    if str(expr.ty) == dtype:
        return expr
    return expr.astype(dtype)


def _expr_in(value: Ranged, dtype: str) -> Any:
    """Return the expression of `value` in the given width, or None."""
    if isinstance(value, _Constant):
        return _tir().const(value.low, dtype)
    return None if value.expr is None else _cast(value.expr, dtype)


def _shift_amount(value: Value) -> Ranged:
    n = ranged(value)
    if n.low == n.high and 0 <= n.low <= 63:
        return _Constant(n.low)
    if not 0 <= n.low <= n.high <= 63:
        raise RangeError(
            "shift amount outside [0, 63]",
            why=f"its interval is [{n.low}, {n.high}]",
            todo="clamp it",
        )
    # A variable, because the prover in TVM's simplifier believes anything of a shift by a
    # difference, and then drops clamps: it takes x >> (n - 1) <= 3 for true.
    return ranged(bind(n))


def _spelled(operation: str, x: Ranged, y: Ranged) -> Ranged | None:
    """Another spelling of an operation with a constant; None leaves it as it is."""
    speller = SPELLING.get()
    if speller is None:
        return None
    if isinstance(x, _Constant) and operation in ("add", "minimum", "maximum"):
        x, y = y, x
    if isinstance(x, _Constant) or not isinstance(y, _Constant):
        return None
    result: Ranged | None = getattr(speller, operation)(x, y.low)
    return result


def _spelled_difference(x: Ranged, y: Ranged) -> Ranged | None:
    """Another spelling of ``x - y``; None leaves it as it is."""
    speller = SPELLING.get()
    result: Ranged | None = None
    if isinstance(y, _Constant):
        return _spelled("add", x, _Constant(-y.low))
    if speller is not None and isinstance(x, _Constant):
        result = speller.subtract_from(x.low, y)
    elif speller is not None:
        result = speller.subtract(x, y)
    return result


def spelled_as(function: str, x: Value) -> Ranged | None:
    """A function of one value that the target has itself; None where it is computed.

    Parameters
    ----------
    function : str
        What the spelling calls it (`relay_passes.spec.scalar`).
    x : Value
        Its argument.
    """
    speller = SPELLING.get()
    if speller is None or not isinstance(x, Ranged):
        return None
    result: Ranged | None = getattr(speller, function)(x)
    return result


def _is_short_constant(value: Ranged) -> bool:
    return isinstance(value, _Constant) and _fits(value.low, value.high, INT16)


def _apply(
    what: str,
    low: int,
    high: int,
    build: Callable[[Any, Any], Any],
    a: Ranged,
    b: Ranged,
    shift: Ranged | None = None,
) -> Ranged:
    """Combine two values: pick the width, build the expression, narrow the result."""
    if not _fits(low, high, INT64):
        error = _overflow(what, low, high)
        error = RangeError(
            error.what,
            why=f"[{a.low}, {a.high}] with [{b.low}, {b.high}] gives [{low}, {high}]",
            todo=error.todo,
        )
        raise error
    if isinstance(a, _Constant) and isinstance(b, _Constant):
        return _Constant(low)
    wide = not all(
        _fits(x, y, INT32) for x, y in ((low, high), (a.low, a.high), (b.low, b.high))
    ) or (shift is not None and shift.high > 31)
    narrow = (
        _fits(low, high, INT16)
        and (a.is_short or b.is_short)
        and all(x.is_short or _is_short_constant(x) for x in (a, b))
        and (shift is None or shift.high <= 15)
    )
    dtype = "int16" if narrow else "int64" if wide else "int32"
    left, right = _expr_in(a, dtype), _expr_in(b, dtype)
    expr = None if left is None or right is None else build(left, right)
    return Ranged(low, high, expr, narrow)


def minimum(a: Value, b: Value) -> Value:
    """Smaller of two values, elementwise."""
    if not is_ranged(a, b):
        return np.minimum(a, b)
    x, y = ranged(a), ranged(b)
    if x.high <= y.low:
        return x
    if y.high <= x.low:
        return y
    low, high = min(x.low, y.low), min(x.high, y.high)
    spelled = _spelled("minimum", x, y)
    if spelled is not None:
        return spelled
    return _apply("minimum", low, high, lambda p, q: _tir().min(p, q), x, y)


def maximum(a: Value, b: Value) -> Value:
    """Larger of two values, elementwise."""
    if not is_ranged(a, b):
        return np.maximum(a, b)
    x, y = ranged(a), ranged(b)
    if x.low >= y.high:
        return x
    if y.low >= x.high:
        return y
    low, high = max(x.low, y.low), max(x.high, y.high)
    spelled = _spelled("maximum", x, y)
    if spelled is not None:
        return spelled
    return _apply("maximum", low, high, lambda p, q: _tir().max(p, q), x, y)


def cut(value: Value, least: int, most: int) -> Value:
    """``minimum(value, n)`` for any n in [least, most]: the result must not depend on which.

    n is `least` wherever a machine has no cheaper one.
    """
    speller = SPELLING.get()
    if speller is not None and isinstance(value, Ranged) and value.high > least:
        spelled = speller.cut(value, least, most)
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
    speller = SPELLING.get()
    spelled = None if speller is None else speller.absolute(x)
    if spelled is not None:
        return spelled
    nearest = max(0, -x.high)  # the smallest absolute value, when the interval excludes 0
    return known(maximum(x, -x), nearest, max(-x.low, x.high))


def _compare(name: str, a: Value, b: Value) -> Condition:
    x, y = ranged(a), ranged(b)
    wide = not all(_fits(v.low, v.high, INT32) for v in (x, y))
    dtype = "int64" if wide else "int32"
    left, right = _expr_in(x, dtype), _expr_in(y, dtype)
    if left is None or right is None:
        return Condition()
    return Condition(getattr(_tir(), name)(left, right))


def greater_equal(a: Value, b: Value) -> Any:
    """``a >= b``: a NumPy boolean array or a `Condition`."""
    return _compare("GE", a, b) if is_ranged(a, b) else np.greater_equal(a, b)


def less(a: Value, b: Value) -> Any:
    """``a < b``: a NumPy boolean array or a `Condition`."""
    return _compare("LT", a, b) if is_ranged(a, b) else np.less(a, b)


def not_equal(a: Value, b: Value) -> Any:
    """``a != b``: a NumPy boolean array or a `Condition`."""
    return _compare("NE", a, b) if is_ranged(a, b) else np.not_equal(a, b)


def select(condition: Any, yes: Value, no: Value) -> Value:
    """Choose elementwise; both branches are evaluated, so both must be defined everywhere."""
    if not is_ranged(condition, yes, no):
        return np.where(condition, yes, no)
    a, b = ranged(yes), ranged(no)
    test = None if not isinstance(condition, Condition) else condition.expr

    def build(x: Any, y: Any) -> Any:
        return None if test is None else _tir().Select(test, x, y)

    if isinstance(a, _Constant) and isinstance(b, _Constant):
        dtype = "int32" if _fits(min(a.low, b.low), max(a.low, b.low), INT32) else "int64"
        expr = build(_expr_in(a, dtype), _expr_in(b, dtype))
        return Ranged(min(a.low, b.low), max(a.low, b.low), expr)
    return _apply("choice", min(a.low, b.low), max(a.high, b.high), build, a, b)


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
    tir = _tir()
    # Of non-negative numbers truncation is the floor, and costs no correction of the sign.
    divide = tir.truncdiv if x.low >= 0 else tir.floordiv
    return _apply("quotient", min(corners), max(corners), lambda p, q: divide(p, q), x, y)


def shift_right_round(value: Value, n: Value) -> Value:
    """``round_half_up(value / 2^n)``: ``(value + 2^(n-1)) >> n``, and `value` itself for n = 0.

    Parameters
    ----------
    value : Value
        The number to be shifted.
    n : int or Value
        0..62.

    Returns
    -------
    Value
    """
    if isinstance(n, (int, np.integer)):
        if n == 0:
            return value
        half = 1 << (int(n) - 1)
        if isinstance(value, Ranged) and value.is_short and value.high + half > INT16[1]:
            return ((value >> (int(n) - 1)) + 1) >> 1  # the same floor, and no carry out of int16
        return (value + half) >> int(n)
    n = bind(n)
    # The same floor as of value + 2^(n-1), but narrower, and without a constant shifted left by a
    # vector: where there is no AVX2, LLVM does that in floating point.
    return (((value << 1) >> n) + 1) >> 1


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
    tightened = Ranged(max(x.low, low), min(x.high, high), x.expr, x.is_short)
    tightened.form = x.form
    return tightened


def short(value: Value) -> Value:
    """Compute with this value in int16 from here on.

    Parameters
    ----------
    value : Value
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
    if not _fits(x.low, x.high, INT16):
        raise RangeError(
            f"a value of {x.bits} bits does not fit 16",
            why=f"its interval is [{x.low}, {x.high}]",
            todo="use a coarser scale, or the wide form of the operator",
        )
    if isinstance(x, _Constant) or SPELLING.get() is not None:
        return x
    return Ranged(x.low, x.high, x.expr, is_short=True)


def saturate_short(value: Value) -> Value:
    """``clamp(value, -2^15, 2^15 - 1)``, computed with in int16 from here on."""
    return short(clamp(value, *INT16))


def q15_multiply(a: Value, b: Value) -> Value:
    """``round_half_up(a b / 2^15)``: the product of two 16-bit numbers, one of them in Q15.

    Every instruction set with 16-bit lanes has it as one instruction (pmulhrsw, sqrdmulh,
    vqrdmulh); elsewhere it is a 32-bit product, an addition and a shift.

    Parameters
    ----------
    a, b : Value
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
    if a is b:  # a square is not negative
        corners = [x.low**2, x.high**2] + ([0] if x.low <= 0 <= x.high else [])
    else:
        corners = [p * q for p in (x.low, x.high) for q in (y.low, y.high)]
    low, high = ((corner + (1 << 14)) >> 15 for corner in (min(corners), max(corners)))
    if high > INT16[1]:
        raise RangeError(
            "both factors of a Q15 product may be -2^15",
            why=f"[{x.low}, {x.high}] with [{y.low}, {y.high}]",
            todo="clamp one of them to -32767",
        )
    if isinstance(x, _Constant) and isinstance(y, _Constant):
        return _Constant(low)
    speller = SPELLING.get()
    if speller is not None:
        spelled = speller.q15_product(x, y)
        return known((x * y + (1 << 14)) >> 15 if spelled is None else spelled, low, high)
    left, right = _expr_in(x, "int16"), _expr_in(y, "int16")
    if left is None or right is None:
        return Ranged(low, high, is_short=True)
    from .q15 import q15_product

    return Ranged(low, high, q15_product(left, right), is_short=True)


class Scope:
    """Let-bindings collected while a specification function is traced with expressions."""

    def __init__(self) -> None:
        self._bindings: list[tuple[Any, Any]] = []

    def bind(self, value: Ranged) -> Ranged:
        """Give an expression that is used several times a variable of its own."""
        var = _tir().Var(f"t{len(self._bindings)}", value.dtype)
        self._bindings.append((var, value.expr))
        return Ranged(value.low, value.high, var, value.is_short)

    def close(self, value: Ranged) -> Ranged:
        """Wrap the result of the traced function in all bindings made so far."""
        expr = value.expr
        for var, bound in reversed(self._bindings):
            expr = _tir().Let(var, bound, expr)
        self._bindings.clear()
        return Ranged(value.low, value.high, expr, value.is_short)


_scope: ContextVar[Scope | None] = ContextVar("relay_passes.spec.values.scope", default=None)


@contextmanager
def scope() -> Iterator[Scope]:
    """Open a scope in which `bind` makes variables; close the result with ``Scope.close``."""
    current = Scope()
    token = _scope.set(current)
    try:
        yield current
    finally:
        _scope.reset(token)


def bind(value: Value) -> Value:
    """Mark a value that is used more than once.

    Without it, the expression of such a value is duplicated at each use, and grows exponentially
    in iterations. No effect on arrays, on pure intervals and outside a `scope`.
    """
    current = _scope.get()
    if current is None or not isinstance(value, Ranged) or value.expr is None:
        return value
    tir = _tir()
    if isinstance(value.expr, (tir.Var, tir.IntImm)):
        return value
    speller = SPELLING.get()
    spelled = None if speller is None else speller.bind(value, bind)
    return current.bind(value) if spelled is None else spelled


def trace(function: Callable[..., Value], *arguments: Any, **keywords: Any) -> Ranged:
    """Call a specification function with `Ranged` arguments and close its let-bindings.

    Parameters
    ----------
    function : callable
        A function of this package that returns one value.
    *arguments, **keywords
        Passed on; `Ranged` ones carry the TIR expressions of the operands.

    Returns
    -------
    Ranged
        Interval, dtype and one self-contained TIR expression of the result.
    """
    with scope() as current:
        return current.close(ranged(function(*arguments, **keywords)))
