"""Variables for what a traced specification function uses more than once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any


def tirx_module() -> Any:
    """Import TIR late: interval analysis and NumPy evaluation do not need it."""
    from tvm import tirx

    return tirx


class Scope:
    """Let-bindings collected while a specification function is traced with expressions."""

    def __init__(self) -> None:
        self._bindings: list[tuple[Any, Any]] = []

    def bind(self, value: Any) -> Any:
        """Give an expression that is used several times a variable of its own."""
        var = tirx_module().Var(f"t{len(self._bindings)}", value.dtype)
        self._bindings.append((var, value.expr))
        return value.with_expr(var)

    def close(self, value: Any) -> Any:
        """Wrap the result of the traced function in all bindings made so far."""
        bindings, self._bindings = self._bindings, []
        if value.expr is None:  # a constant, whatever was bound on the way to it
            return value
        expr = value.expr
        for var, bound in reversed(bindings):
            expr = tirx_module().Let(var, bound, expr)
        return value.with_expr(expr)


_scope: ContextVar[Scope | None] = ContextVar(
    "ibert_tvm.relay_passes.spec.binding.scope", default=None
)


@contextmanager
def scope() -> Iterator[Scope]:
    """Open a scope in which `bind` makes variables; close the result with ``Scope.close``."""
    current = Scope()
    token = _scope.set(current)
    try:
        yield current
    finally:
        _scope.reset(token)


def bind(value: Any) -> Any:
    """Mark a value that is used more than once.

    Without it, the expression of such a value is duplicated at each use, and grows exponentially
    in iterations. No effect on arrays, on pure intervals and outside a `scope`.
    """
    current = _scope.get()
    if current is None or getattr(value, "expr", None) is None:
        return value
    tir = tirx_module()
    if isinstance(value.expr, (tir.Var, tir.IntImm)):
        return value
    bound = value.arithmetic.bind(value, bind)
    return current.bind(value) if bound is None else bound
