"""Asking the solver, and saying what it found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ibert_tvm.relay_passes.spec.arithmetic import VECTORS, Arithmetic
from ibert_tvm.relay_passes.spec.ranged import Ranged
from ibert_tvm.relay_passes.spec.scalar import Scalar
from ibert_tvm.relay_passes.spec.scalar_minimum import ScalarWithMinimum
from ibert_tvm.relay_passes.spec.values import trace

from .exact import Claims, Exact, claiming, exact, z3
from .expressions import Reader

SECONDS = 600
_FUNCTIONS = frozenset({"floor_log2", "normalised_reciprocal"})
ARITHMETICS: dict[str, Arithmetic] = {
    "vectors": VECTORS,
    "scalar": Scalar(frozenset({"positive"})),
    "gpu": ScalarWithMinimum(_FUNCTIONS),
}


def prove(what: str, condition: Any, given: list[Any]) -> None:
    """Show that a condition holds for every input.

    Raises
    ------
    AssertionError
        With the inputs for which it does not, or that it was not decided in time.
    """
    solver = z3.Solver()
    solver.set("timeout", SECONDS * 1000)
    solver.add(*given, z3.Not(condition))
    answer = solver.check()
    if answer == z3.sat:
        raise AssertionError(f"{what}: not for {solver.model()}")
    if answer != z3.unsat:
        raise AssertionError(f"{what}: not decided in {SECONDS} s ({solver.reason_unknown()})")


def prove_traced(
    function: Callable[..., Any],
    arithmetic: Arithmetic,
    part: Mapping[str, tuple[int, int]] | None = None,
    assumed: Callable[[Mapping[str, Exact]], list[Any]] = lambda _: [],
    **intervals: tuple[int, int],
) -> int:
    """Show that the expression of a function is the function, for all inputs of intervals.

    Shown are, in this order: bounds that the function declares as known hold; every operation of
    the expression fits its type, and every shift its width; the expression equals the function; its
    value lies in the interval that is proven for it.

    Parameters
    ----------
    function : callable
        Of the specification, of one value per interval.
    arithmetic : Arithmetic
        What the expression is written for.
    part
        By name, the intervals of inputs that it is shown for, where that is a part of those that
        the expression is made for.
    assumed
        Conditions on the operands, by name, that another theorem shows.
    **intervals
        Of its operands, by name; expressions are of their types' width.

    Returns
    -------
    int
        How many conditions were shown.
    """
    from tvm import tirx

    shown_for = {**intervals, **(part or {})}
    operands = {name: Exact.variable(name, *ends) for name, ends in shown_for.items()}
    given = [operands[name].inside(*ends) for name, ends in shown_for.items()]
    given += assumed(operands)
    claims = Claims()
    with claiming(claims):
        wanted = exact(function(**operands))
    ranged, values = {}, {}
    for name, (low, high) in intervals.items():
        dtype = "int32" if low >= -(2**31) and high < 2**31 else "int64"
        variable = tirx.Var(name, dtype)
        values[variable] = operands[name]
        ranged[name] = Ranged(low, high, variable, arithmetic=arithmetic)
    traced = trace(function, **ranged)
    shown = exact(traced.low) if traced.expr is None else Reader(values, claims).read(traced.expr)
    for what, condition in claims.of:
        prove(what, condition, given)
        given.append(condition)
    prove("the expression is the function", shown.compared(wanted, lambda x, y: x == y).term, given)
    prove(
        f"the value lies in [{traced.low}, {traced.high}]",
        wanted.inside(traced.low, traced.high),
        given,
    )
    return len(claims.of) + 2
