"""Runs of channels that a kernel reads as they lie, where it reads others elsewhere.

Most kernels read entry c of a row for channel c, so any number of neighbouring channels is a
vector. A kernel that pairs channels of a head reads entry c + D/2 for the first half of a head and
c - D/2 for the second: only within a half do neighbours read neighbours, and what is done differs
from half to half. Which stretches those are is read off the indices and conditions of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, sym, tirx

from .stages import loads_of


@dataclass(frozen=True)
class ChannelRuns:
    """How channels of a row are read.

    Attributes
    ----------
    run
        The row falls into stretches of so many channels, in each of which neighbours read
        neighbours, or the same, under the same conditions.
    period
        What a channel reads and what one reads so many behind it are so many apart, or the same,
        under the same conditions; a multiple of `run`.
    """

    run: int
    period: int


def channel_runs(block: tirx.SBlock) -> ChannelRuns | None:
    """Tell in which stretches the channels of a block's rows are read.

    Parameters
    ----------
    block
        Computes entries; its last axis goes over channels.

    Returns
    -------
    ChannelRuns or None
        None if all channels are one run.
    """
    axis = block.iter_vars[-1]
    channel, extent = axis.var, int(axis.dom.extent)
    value = block.body.value if isinstance(block.body, tirx.BufferStore) else None
    if value is None:
        return None
    indices = [index for load in loads_of(value) for index in load.indices]
    conditions = _conditions(value)
    divided = [expr for expr in (*indices, *conditions) if _divides(expr, channel)]
    if not divided:
        return None
    places = [expr for expr in indices if _has(expr, channel)]
    tests = [expr for expr in conditions if _has(expr, channel)]
    divisors = [size for size in range(extent, 0, -1) if extent % size == 0]
    run = next(size for size in divisors if _is_run(places, tests, channel, extent, size))
    repeats = (size for size in divisors[::-1] if size % run == 0)
    period = next(size for size in repeats if _is_period(places, tests, channel, extent, size))
    return ChannelRuns(run, period) if run < extent else None


def _is_run(
    places: Sequence[tirx.Expr],
    tests: Sequence[tirx.Expr],
    channel: tirx.Var,
    extent: int,
    size: int,
) -> bool:
    """Whether stretches of `size` are runs."""
    analyzer, outer, inner = _split(extent, size)
    at = _At(analyzer, channel, outer * size + inner)
    start = _At(analyzer, channel, outer * size)
    return all(
        _is_either(analyzer, at(place) - start(place), inner) for place in places
    ) and not any(_has(at(test), inner) for test in tests)


def _is_period(
    places: Sequence[tirx.Expr],
    tests: Sequence[tirx.Expr],
    channel: tirx.Var,
    extent: int,
    size: int,
) -> bool:
    """Whether stretches of `size` are read alike."""
    analyzer, outer, inner = _split(extent, size)
    at = _At(analyzer, channel, outer * size + inner)
    first = _At(analyzer, channel, inner)
    return all(
        _is_either(analyzer, at(place) - first(place), outer * size) for place in places
    ) and not any(_has(at(test), outer) for test in tests)


def _split(extent: int, size: int) -> tuple[sym.Analyzer, tirx.Var, tirx.Var]:
    """Variables that count stretches, and channels of one."""
    analyzer = sym.Analyzer()
    outer, inner = tirx.Var("outer", "int32"), tirx.Var("inner", "int32")
    for var, count in ((outer, extent // size), (inner, size)):
        analyzer.bind(var, ir.Range(0, count))
    return analyzer, outer, inner


@dataclass(frozen=True)
class _At:
    """Expressions at a channel."""

    analyzer: sym.Analyzer
    channel: tirx.Var
    place: tirx.Expr

    def __call__(self, expr: tirx.Expr) -> tirx.Expr:
        return self.analyzer.simplify(
            tvm_ffi.structural_map(
                expr, (ir.Var, lambda var: self.place if var.same_as(self.channel) else var)
            )
        )


def _is_either(analyzer: sym.Analyzer, difference: tirx.Expr, step: tirx.Expr) -> bool:
    """Whether a difference is a step, or nothing."""
    return any(analyzer.can_prove_equal(difference, value) for value in (step, step * 0))


def _conditions(value: tirx.Expr) -> list[tirx.Expr]:
    """Conditions by which an expression chooses."""
    found: list[tirx.Expr] = []

    def look(call: ir.Call) -> None:
        if getattr(call.op, "name", "") == "prim.if_then_else":
            found.append(call.args[0])

    def choose(select: tirx.Select) -> None:
        found.append(select.condition)

    tvm_ffi.structural_walk(value, (ir.Call, look))
    tvm_ffi.structural_walk(value, (tirx.Select, choose))
    return found


def _divides(expr: tirx.Expr, channel: tirx.Var) -> bool:
    """Whether channels are counted in groups."""
    found: list[bool] = []
    kinds = (tirx.FloorDiv, tirx.FloorMod)
    tvm_ffi.structural_walk(expr, (kinds, lambda part: found.append(_has(part.a, channel))))
    return any(found)


def _has(expr: tirx.Expr, var: tirx.Var) -> bool:
    found: list[bool] = []
    tvm_ffi.structural_walk(expr, (ir.Var, lambda one: found.append(one.same_as(var))))
    return any(found)
