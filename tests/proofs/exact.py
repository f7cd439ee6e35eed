"""Integers that are terms of an SMT solver: a third domain of the specification.

The functions of `ibert_tvm.relay_passes.spec` run on them as they do on NumPy arrays, whose
functions they take over, so that a theorem is about the code that evaluates and compiles.

An integer carries bounds of its own, computed here and not by `Ranged`, whose results are to be
proved. Terms are bit-vectors of the narrowest of 32, 64, 128 bits that holds the bounds, so nothing
ever wraps: they are integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

z3 = pytest.importorskip("z3", reason="the solver comes with the extra `verify`")

WIDTHS = (32, 64, 128, 256)


def _width(low: int, high: int) -> int:
    bits = max(high, ~low).bit_length() + 1
    return next(width for width in WIDTHS if bits <= width)


class Claims:
    """What was claimed on the way: conditions that must hold for every input."""

    def __init__(self) -> None:
        self.of: list[tuple[str, z3.BoolRef]] = []

    def add(self, what: str, condition: z3.BoolRef) -> None:
        """Note a condition, once."""
        if not any(condition.eq(other) for _, other in self.of):
            self.of.append((what, condition))


class Truth:
    """A condition."""

    __array_ufunc__ = None

    def __init__(self, term: z3.BoolRef) -> None:
        self.term = term

    def __and__(self, other: Truth) -> Truth:
        return Truth(z3.And(self.term, other.term))

    def __bool__(self) -> bool:
        raise TypeError("a condition of the solver has no truth value")

    def __array_function__(self, function: Any, types: Any, arguments: Any, keywords: Any) -> Exact:
        assert function is np.where and not keywords, function
        return choose(*arguments)


class Exact:
    """An integer in [low, high].

    Parameters
    ----------
    low, high : int
        Bounds.
    term : z3.BitVecRef
        Of any width that holds them.
    """

    def __init__(self, low: int, high: int, term: z3.BitVecRef) -> None:
        self.low, self.high = low, high
        self.term = _resized(term, _width(low, high))

    @staticmethod
    def constant(number: int) -> Exact:
        """A known integer."""
        return Exact(number, number, z3.BitVecVal(number, _width(number, number)))

    @staticmethod
    def variable(name: str, low: int, high: int) -> Exact:
        """Any integer of an interval; `inside` is the condition that it is one."""
        return Exact(low, high, z3.BitVec(name, _width(low, high)))

    def inside(self, low: int, high: int) -> z3.BoolRef:
        """The condition that it lies between bounds."""
        width = max(_width(low, high), self.term.size())
        a, b = (z3.BitVecVal(end, width) for end in (low, high))
        term = _resized(self.term, width)
        return z3.And(a <= term, term <= b)

    def narrowed(self, low: int, high: int) -> Exact:
        """The same integer, of which more is known."""
        return Exact(max(low, self.low), min(high, self.high), self.term)

    def __add__(self, other: Any) -> Exact:
        b = exact(other)
        return _combined(self, b, self.low + b.low, self.high + b.high, lambda x, y: x + y)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Exact:
        b = exact(other)
        return _combined(self, b, self.low - b.high, self.high - b.low, lambda x, y: x - y)

    def __rsub__(self, other: Any) -> Exact:
        return exact(other) - self

    def __neg__(self) -> Exact:
        return exact(0) - self

    def __mul__(self, other: Any) -> Exact:
        b = exact(other)
        corners = [x * y for x in (self.low, self.high) for y in (b.low, b.high)]
        return _combined(self, b, min(corners), max(corners), lambda x, y: x * y)

    __rmul__ = __mul__

    def __rshift__(self, other: Any) -> Exact:
        n = exact(other)
        corners = [x >> s for x in (self.low, self.high) for s in (n.low, n.high)]
        low, high = min(corners), max(corners)
        return _combined(self, n, low, high, lambda x, s: x >> s)

    def __rrshift__(self, other: Any) -> Exact:
        return exact(other) >> self

    def __lshift__(self, other: Any) -> Exact:
        n = exact(other)
        corners = [x << s for x in (self.low, self.high) for s in (n.low, n.high)]
        return _combined(self, n, min(corners), max(corners), lambda x, s: x << s)

    def __rlshift__(self, other: Any) -> Exact:
        return exact(other) << self

    def __and__(self, other: Any) -> Exact:
        b = exact(other)
        tops = [x.high for x in (self, b) if x.low >= 0]
        return _combined(self, b, 0, min(tops), lambda x, y: x & y)

    __rand__ = __and__

    def floor_divide(self, other: Any) -> Exact:
        """``floor(self / other)`` of a positive divisor."""
        b = exact(other)
        assert b.low >= 1, b.low
        corners = [x // y for x in (self.low, self.high) for y in (b.low, b.high)]
        build = z3.UDiv if self.low >= 0 else _floored
        return _combined(self, b, min(corners), max(corners), build)

    def compared(self, other: Any, compare: Callable[[Any, Any], Any]) -> Truth:
        """The condition of a comparison."""
        b = exact(other)
        width = max(self.term.size(), b.term.size())
        return Truth(compare(_resized(self.term, width), _resized(b.term, width)))

    def __array_ufunc__(self, function: Any, method: str, *arguments: Any, **_: Any) -> Any:
        assert method == "__call__", method
        return _FUNCTIONS[function](*arguments)

    def __array_function__(self, function: Any, types: Any, arguments: Any, keywords: Any) -> Any:
        assert function is np.where and not keywords, function
        return choose(*arguments)


def exact(value: Any) -> Exact:
    """Turn a number into a term; leave a term alone."""
    return value if isinstance(value, Exact) else Exact.constant(int(value))


def choose(condition: Any, yes: Any, no: Any) -> Exact:
    """``yes`` where a condition holds."""
    a, b = exact(yes), exact(no)
    if isinstance(condition, (bool, np.bool_)):
        return a if condition else b
    low, high = min(a.low, b.low), max(a.high, b.high)
    return _combined(a, b, low, high, lambda x, y: z3.If(condition.term, x, y))


def smaller(a: Any, b: Any) -> Exact:
    """Minimum."""
    x, y = exact(a), exact(b)
    if x.high <= y.low:
        return x
    if y.high <= x.low:
        return y
    low, high = min(x.low, y.low), min(x.high, y.high)
    return _combined(x, y, low, high, lambda p, q: z3.If(p <= q, p, q))


def larger(a: Any, b: Any) -> Exact:
    """Maximum."""
    x, y = exact(a), exact(b)
    if x.low >= y.high:
        return x
    if y.low >= x.high:
        return y
    low, high = max(x.low, y.low), max(x.high, y.high)
    return _combined(x, y, low, high, lambda p, q: z3.If(p >= q, p, q))


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.minimum: smaller,
    np.maximum: larger,
    np.absolute: lambda a: larger(a, -a),
    np.multiply: lambda a, b: exact(a) * b,
    np.left_shift: lambda a, b: exact(a) << b,
    np.floor_divide: lambda a, b: exact(a).floor_divide(b),
    np.greater_equal: lambda a, b: exact(a).compared(b, lambda x, y: x >= y),
    np.less: lambda a, b: exact(a).compared(b, lambda x, y: x < y),
    np.not_equal: lambda a, b: exact(a).compared(b, lambda x, y: x != y),
    np.add: lambda a, b: exact(a) + b,
    np.subtract: lambda a, b: exact(a) - b,
    np.right_shift: lambda a, b: exact(a) >> b,
    np.bitwise_and: lambda a, b: exact(a) & b,
}


def _floored(x: z3.BitVecRef, y: z3.BitVecRef) -> z3.BitVecRef:
    return x / y - z3.If(z3.SRem(x, y) < 0, z3.BitVecVal(1, x.size()), z3.BitVecVal(0, x.size()))


def _resized(term: z3.BitVecRef, width: int) -> z3.BitVecRef:
    size = term.size()
    if size < width:
        return z3.simplify(z3.SignExt(width - size, term))
    return term if size == width else z3.simplify(z3.Extract(width - 1, 0, term))


def _combined(a: Exact, b: Exact, low: int, high: int, build: Callable[[Any, Any], Any]) -> Exact:
    width = max(_width(low, high), a.term.size(), b.term.size())
    return Exact(low, high, build(_resized(a.term, width), _resized(b.term, width)))


@contextmanager
def claiming(claims: Claims) -> Iterator[None]:
    """Make claims of the bounds that the specification declares as known theorems."""
    import importlib
    import pkgutil

    from ibert_tvm.relay_passes import spec

    names = [name for _, name, _ in pkgutil.iter_modules(spec.__path__, f"{spec.__name__}.")]
    modules = [importlib.import_module(name) for name in names]
    values = importlib.import_module(f"{spec.__name__}.values")
    original, original_shift = values.known, values.shift_left_within

    def known(value: Any, low: int, high: int) -> Any:
        if not isinstance(value, Exact):
            return original(value, low, high)
        if low > value.low or high < value.high:
            claims.add(f"[{low}, {high}] is known", value.inside(low, high))
        return value.narrowed(low, high)

    def shift_left_within(value: Any, n: Any, bound: int) -> Any:
        if not isinstance(value, Exact):
            return original_shift(value, n, bound)
        return known(value << n, -bound, bound)

    patched = [
        (module, name, replacement)
        for module in modules
        for name, replacement in (("known", known), ("shift_left_within", shift_left_within))
        if hasattr(module, name)
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in patched]
    for module, name, replacement in patched:
        setattr(module, name, replacement)
    try:
        yield
    finally:
        for module, name, function in before:
            setattr(module, name, function)
