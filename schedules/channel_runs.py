"""Runs of channels that a kernel reads as they lie, where it reads others elsewhere.

Most kernels read entry c of a row for channel c, so any number of neighbouring channels is a
vector. A kernel that pairs channels of a head reads entry c + D/2 for the first half of a head and
c - D/2 for the second: only within a half do neighbours read neighbours, and what is done differs
from half to half. Which stretches those are is read off the indices and conditions of a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from tvm import ir, sym, tirx

from .nodes import calls_of, contains, nodes_of, substituted
from .stages import CHOICE, loads_of


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
    choices = [call.args[0] for call in calls_of(value, CHOICE)]
    conditions = choices + [select.condition for select in nodes_of(value, tirx.Select)]
    parts = (nodes_of(expr, tirx.FloorDiv, tirx.FloorMod) for expr in (*indices, *conditions))
    if not any(contains(part.a, channel) for part in chain.from_iterable(parts)):
        return None
    places = [expr for expr in indices if contains(expr, channel)]
    tests = [expr for expr in conditions if contains(expr, channel)]

    def alike(size: int, between: bool) -> bool:
        """Whether stretches of `size` are runs; with `between`, whether all are read alike."""
        analyzer = sym.Analyzer()
        outer, inner = tirx.Var("outer", "int32"), tirx.Var("inner", "int32")
        for var, count in ((outer, extent // size), (inner, size)):
            analyzer.bind(var, ir.Range(0, count))
        start, step = (inner, outer * size) if between else (outer * size, inner)

        def at(expr: tirx.Expr, place: tirx.Expr) -> tirx.Expr:
            return analyzer.simplify(substituted(expr, {channel: place}))

        differences = [at(p, outer * size + inner) - at(p, start) for p in places]
        steps = (step, step * 0)
        moves = outer if between else inner
        return all(
            any(analyzer.can_prove_equal(difference, value) for value in steps)
            for difference in differences
        ) and not any(contains(at(test, outer * size + inner), moves) for test in tests)

    divisors = [size for size in range(extent, 0, -1) if extent % size == 0]
    run = next(size for size in divisors if alike(size, between=False))
    repeats = (size for size in divisors[::-1] if size % run == 0)
    period = next(size for size in repeats if alike(size, between=True))
    return ChannelRuns(run, period) if run < extent else None
