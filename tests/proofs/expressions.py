"""What a TIR expression computes, as a term of an SMT solver, and what its types claim.

Every operation is that of integers, with the claim that its result fits the type that the
expression has: a machine then computes the same, and nothing overflows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import ir, tirx

from .exact import Claims, Exact, Truth, choose, exact, larger, smaller

Value = Exact | Truth


class Reader:
    """Evaluates expressions.

    Parameters
    ----------
    values : mapping
        Integers of variables.
    claims : Claims
        Where claims are noted.
    """

    def __init__(self, values: Mapping[tirx.Var, Exact], claims: Claims) -> None:
        self.values: dict[tirx.Var, Any] = dict(values)
        self.claims = claims
        self.done: dict[tirx.Expr, Any] = {}

    def read(self, expr: Any) -> Any:
        """Value of an expression."""
        if expr not in self.done:
            value = self._read(expr)
            if isinstance(value, Exact):
                value = self._fitting(value, str(expr.ty))
            self.done[expr] = value
        return self.done[expr]

    def _fitting(self, value: Exact, dtype: str) -> Exact:
        bits = int(dtype.removeprefix("u").removeprefix("int"))
        low, high = -(1 << bits - 1), (1 << bits - 1) - 1
        if dtype.startswith("u"):
            low, high = 0, (1 << bits) - 1
        if value.low < low or value.high > high:
            self.claims.add(f"it fits {dtype}", value.inside(low, high))
        return value.narrowed(low, high)

    def _read(self, expr: Any) -> Any:
        if isinstance(expr, tirx.Var):
            return self.values[expr]
        if isinstance(expr, tirx.IntImm):
            return exact(int(expr.value))
        if isinstance(expr, tirx.Let):
            self.values[expr.var] = self.read(expr.value)
            return self.read(expr.body)
        if isinstance(expr, tirx.Cast):
            value = self.read(expr.value)
            return choose(value, 1, 0) if isinstance(value, Truth) else value
        if isinstance(expr, tirx.Select):
            condition, *branches = map(
                self.read, (expr.condition, expr.true_value, expr.false_value)
            )
            return choose(condition, *branches)
        if isinstance(expr, ir.Call):
            return self._call(expr)
        a, b = self.read(expr.a), self.read(expr.b)
        if isinstance(expr, tirx.And):
            return a & b
        if isinstance(expr, (tirx.RShift, tirx.LShift)):
            bits = int(str(expr.ty).removeprefix("int"))
            if b.low < 0 or b.high >= bits:
                self.claims.add(f"a shift within {bits} bits", b.inside(0, bits - 1))
                b = b.narrowed(0, bits - 1)
            return a >> b if isinstance(expr, tirx.RShift) else a << b
        return _BINARY[type(expr)](a, b)

    def _call(self, call: ir.Call) -> Any:
        arguments = [self.read(argument) for argument in call.args]
        return _CALLS[call.op.name](*arguments)


def _floor_log2(n: Exact) -> Exact:
    result: Any = 0
    for power in range(1, n.high.bit_length()):
        result = choose(n.compared(1 << power, lambda x, y: x >= y), power, result)
    return exact(result).narrowed(0, n.high.bit_length() - 1)


_BINARY = {
    tirx.Add: lambda a, b: a + b,
    tirx.Sub: lambda a, b: a - b,
    tirx.Mul: lambda a, b: a * b,
    tirx.BitwiseAnd: lambda a, b: a & b,
    tirx.Min: smaller,
    tirx.Max: larger,
    tirx.Div: lambda a, b: a.floor_divide(b),
    tirx.FloorDiv: lambda a, b: a.floor_divide(b),
    tirx.GE: lambda a, b: a.compared(b, lambda x, y: x >= y),
    tirx.LT: lambda a, b: a.compared(b, lambda x, y: x < y),
    tirx.NE: lambda a, b: a.compared(b, lambda x, y: x != y),
}
# The operators of `relay_passes.spec.q15`, as their documentation defines them.
_CALLS = {
    "tirx.abs": lambda a: larger(a, -a),
    "tirx.ibert_q15_multiply": lambda a, b: (a * b + (1 << 14)) >> 15,
    "tirx.ibert_multiply_add": lambda a, b, c: a * b + c,
    "tirx.ibert_saturate": lambda x, bits: smaller(
        larger(x, -(1 << bits.low - 1)), (1 << bits.low - 1) - 1
    ),
    "tirx.ibert_positive": lambda x, bits: larger(x, 0),
    "tirx.ibert_floor_log2": _floor_log2,
    "tirx.ibert_normalised_reciprocal": lambda n: (exact(1) << (_floor_log2(n) + 15)).floor_divide(
        n
    ),
}
