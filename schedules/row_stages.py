"""What the stages of a kernel that works row by row are, read off their axes and what they read.

No name of a stage and no kind of kernel is known here, so an operator that did not exist when this
was written is scheduled like those that did.
"""

from __future__ import annotations

from tvm import ir, sym, tirx

from .nodes import contains, nodes_of, substituted
from .stages import NotElementwise, StageDefinition, StageGraph, loads_of

_COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE)


class RowStages:
    """Stages of a kernel by what is to be done with them.

    Parameters
    ----------
    graph
        The kernel.

    Attributes
    ----------
    reductions
        By name, the reductions over the entries of a row, in program order. The value is the name
        of the reduction over groups of entries that is combined, or None where there are no groups.
    sums
        Names of those among `reductions` that add the entries of a row up one by one.
    columns
        Names of the reductions over rows, which leave one number per column.
    kept
        Names of the intermediates that stay blocks: reductions, numbers of a row, and entries that
        would be computed again for every reader although they wait for numbers of the row, or for
        those of columns on the way to others. Others are inlined.
    entries
        Names of the entries among `kept`, and of results that are entries; none with one to a row.
    anchor
        Name of the first entries that wait for numbers of the row; of a result where there are
        none.
    whole_rows
        Whether a row is best worked on from its reductions to its results.

    Raises
    ------
    NotElementwise
        If a reduction goes neither over the entries of a row nor over rows.
    """

    def __init__(self, graph: StageGraph) -> None:
        stages = list(graph.stages.values())
        results = [stage.name for stage in stages if stage.buffer in graph.outputs]
        self.reductions: dict[str, str | None] = {}
        self.columns: list[str] = []
        groups: list[str] = []
        for stage in reversed(stages):
            if stage.reduced and stage.name not in groups:
                if len(stage.axes) == len(stage.reduced) == 1:
                    part = _groups(graph, stage)
                    groups += [] if part is None else [part]
                    self.reductions = {stage.name: part, **self.reductions}
                elif _goes_along_columns(stage):
                    self.columns.insert(0, stage.name)
                else:
                    raise NotElementwise(
                        f"block {stage.name!r} reduces neither the entries of a row nor rows"
                    )
        self.sums = [
            name
            for name, part in self.reductions.items()
            if part is None and graph.stages[name].combine == "sum"
        ]
        numbers = {stage.name for stage in stages if len(stage.axes) == 1} - {*results}
        numbers |= {*self.reductions}
        awaited = graph.sources(self.reductions)
        waiting = [
            stage.name
            for stage in stages
            if not stage.reduced and len(stage.axes) > 1 and graph.reads(stage) & numbers
        ]
        last = [name for name in waiting if name not in awaited]
        early = [name for name in waiting if name in awaited]
        free = [name for name in results if name not in awaited]
        free = sorted(free, key=lambda name: name not in self.reductions)
        self.anchor = [*early, *last, *free][0]
        self.entries = [
            name
            for name in dict.fromkeys([*early, *last[:1], *results])
            if not graph.stages[name].reduced
            and (len(graph.stages[name].axes) > 1 or not self.reductions)
            and (graph.stages[name].extents[-1] > 1 or not numbers)
        ]
        between = graph.sources(self.columns)
        steps = {
            stage.name
            for stage in stages
            if stage.name in between and not stage.reduced and graph.reads(stage) & {*self.columns}
        }
        self.kept = {*numbers, *groups, *self.columns, *self.entries, *steps, self.anchor}
        sums = {*self.columns}
        self.whole_rows = bool(numbers) and (not sums or bool(sums & awaited))


def counts_on(graph: StageGraph) -> bool:
    """Whether a reduction goes as far as the entry that it is for: a running count or sum."""
    return any(_compares(stage) for stage in graph.stages.values() if stage.reduced)


def _compares(stage: StageDefinition) -> bool:
    """Whether what is reduced depends on how its place compares with that of the result."""
    return any(
        all(
            any(side.same_as(var) for side in (comparison.a, comparison.b) for var in variables)
            for variables in (stage.axes, stage.reduced)
        )
        for comparison in nodes_of(stage.value, *_COMPARISONS)
    )


def _groups(graph: StageGraph, total: StageDefinition) -> str | None:
    """Name of the reduction over groups of entries that another one combines."""
    value = total.value.value if isinstance(total.value, tirx.Cast) else total.value
    part = graph.producer(value.source) if isinstance(value, ir.TensorLoad) else None
    if part is None or not part.reduced or len(part.axes) != 2 or _goes_along_columns(part):
        return None
    return part.name


def _goes_along_columns(stage: StageDefinition) -> bool:
    """Whether neighbouring results read neighbouring entries of a row, in each step."""
    if len(stage.axes) < 2 or len(stage.reduced) != 1:
        return False
    places = [load.indices[-1] for load in loads_of(stage.value)]
    return any(_moves_with(place, stage.axes[-1], stage.reduced[0]) for place in places)


def _moves_with(place: tirx.Expr, axis: tirx.Var, step: tirx.Var) -> bool:
    """Whether a place is one further for the next entry of an axis, and the same in all steps."""
    if place.same_as(axis):
        return True
    moved = sym.Analyzer().simplify(substituted(place, {axis: axis + 1}) - place)
    return isinstance(moved, tirx.IntImm) and int(moved) == 1 and not contains(place, step)
