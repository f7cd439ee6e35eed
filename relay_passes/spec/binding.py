"""Variables for what a traced specification function uses more than once."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from tvm import sym, tirx

Value: TypeAlias = Any
"""A NumPy int64 array, a Python int, or a `Traced`."""
Truth: TypeAlias = Any
"""A NumPy array of bool, a bool, or a `ibert_tvm.relay_passes.spec.ranged.Condition`."""
Traced: TypeAlias = Any
"""A `ibert_tvm.relay_passes.spec.ranged.Ranged`, whose module imports this one."""


def tirx_module() -> ModuleType:
    """Import TIR late: interval analysis and NumPy evaluation do not need it."""
    from tvm import tirx

    return tirx


class Scope:
    """Let-bindings collected while a specification function is traced with expressions."""

    def __init__(self) -> None:
        self._bindings: list[tuple[tirx.Var, tirx.Expr]] = []
        self._analyzer: sym.Analyzer | None = None

    def bind(self, value: Traced) -> Traced:
        """Give an expression that is used several times a variable of its own."""
        var = tirx_module().Var(f"t{len(self._bindings)}", value.dtype)
        self._bindings.append((var, value.expr))
        if self._analyzer is not None:
            _add(self._analyzer, var, value.expr)
        return value.with_expr(var)

    def lower_bound(self, expr: tirx.Expr) -> int:
        """What TVM proves an expression to be at least."""
        if self._analyzer is None:
            self._analyzer = _analyzer(self._bindings)
        return int(self._analyzer.const_int_bound(expr).min_value)

    def close(self, value: Traced) -> Traced:
        """Wrap the result of the traced function in all bindings made so far."""
        bindings, self._bindings = self._bindings, []
        if value.expr is None:  # a constant, whatever was bound on the way to it
            return value
        expr = value.expr
        for var, bound in reversed(bindings):
            expr = tirx_module().Let(var, bound, expr)
        return value.with_expr(expr)


def _analyzer(bindings: list[tuple[tirx.Var, tirx.Expr]]) -> sym.Analyzer:
    from tvm import sym

    analyzer = sym.Analyzer()
    for var, bound in bindings:
        _add(analyzer, var, bound)
    return analyzer


def _add(analyzer: sym.Analyzer, var: tirx.Var, bound: tirx.Expr) -> None:
    """Tell bounds alone; `Analyzer.bind` simplifies as well, which fails on elements of tensors."""
    analyzer.update(var, analyzer.const_int_bound(bound))


def bind(value: Value) -> Value:
    """Mark a value that is used more than once.

    Without it, the expression of such a value is duplicated at each use, and grows exponentially
    in iterations. No effect on arrays, on pure intervals, and where nothing is traced with the
    value's arithmetic.
    """
    if getattr(value, "expr", None) is None or value.arithmetic.scope is None:
        return value
    tir = tirx_module()
    if isinstance(value.expr, (tir.Var, tir.IntImm)):
        return value
    bound = value.arithmetic.bind(value, bind)
    return value.arithmetic.scope.bind(value) if bound is None else bound


def bind_amount(value: Traced) -> Traced:
    """Bind what something is shifted by, written so that TVM proves it not to be negative.

    TVM's analysis of bounds takes ``x >> n`` for nearly 0 where it knows n to be above some
    negative number only, as it does of absolute values, and then drops clamps of it. A cast to an
    unsigned type and back tells it what the interval says, and is no instruction.

    Parameters
    ----------
    value : Ranged
        In [0, 63].
    """
    value = bind(value)
    tir = tirx_module()
    if value.expr is None or isinstance(value.expr, tir.IntImm):
        return value
    current = value.arithmetic.scope or Scope()
    if current.lower_bound(value.expr) >= 0:
        return value
    return bind(value.with_expr(value.expr.astype(f"u{value.dtype}").astype(value.dtype)))
