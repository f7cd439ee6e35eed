"""Variables for what a traced specification function uses more than once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from .ranged import SPELLING, Ranged, Value, ranged, tirx_module


class Scope:
    """Let-bindings collected while a specification function is traced with expressions."""

    def __init__(self) -> None:
        self._bindings: list[tuple[Any, Any]] = []

    def bind(self, value: Ranged) -> Ranged:
        """Give an expression that is used several times a variable of its own."""
        var = tirx_module().Var(f"t{len(self._bindings)}", value.dtype)
        self._bindings.append((var, value.expr))
        return Ranged(value.low, value.high, var, value.is_short)

    def close(self, value: Ranged) -> Ranged:
        """Wrap the result of the traced function in all bindings made so far."""
        expr = value.expr
        for var, bound in reversed(self._bindings):
            expr = tirx_module().Let(var, bound, expr)
        self._bindings.clear()
        return Ranged(value.low, value.high, expr, value.is_short)


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


def bind(value: Value) -> Value:
    """Mark a value that is used more than once.

    Without it, the expression of such a value is duplicated at each use, and grows exponentially
    in iterations. No effect on arrays, on pure intervals and outside a `scope`.
    """
    current = _scope.get()
    if current is None or not isinstance(value, Ranged) or value.expr is None:
        return value
    tir = tirx_module()
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
