"""What the stages of an attention kernel are, read off their axes and what they read.

Only this much is taken for granted: a first matrix product makes scores of queries and keys, a
second one weighs values, and between the two lie reductions over the keys of a query and entries
computed from them, however many there are and whatever they are called.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir, tirx

from .nodes import nodes_of
from .products import MatrixProduct, matrix_products
from .stages import NotElementwise, StageDefinition, StageGraph, loads_of

_ROW = 2
"""Axes are batch, head, row of queries, and key or channel."""


class AttentionStages:
    """The stages of an attention kernel by what is to be done with them.

    Parameters
    ----------
    graph
        The kernel.

    Attributes
    ----------
    products
        All matrix products, those with rows of ones among them.
    scores, context
        Products of queries and keys, and of weights and values.
    weights
        Stage that the second one reads: what values are weighed with.
    queries, keys, values
        Stages that copy what the two products read.
    parts
        Names of stages that values are computed by before they are copied: both bytes of those that
        have two.
    attended
        Name of the stage with the results of a head, [batch, heads, rows, columns].
    kept
        Names of the intermediates that stay blocks; others are inlined.
    per_head
        Names of those that are computed once per head, what heads share first.
    per_rows
        Names of those that are computed for each block of rows, in order.
    by_key
        Names of entries that are computed for a block of rows and all keys.
    value_sums
        Names of sums of the values over the keys.
    elementwise
        Names of those that are worth vectors: copies that a product reads packed move by shuffles,
        and no processor divides vectors of integers.
    lanes
        Reductions over the lanes of a vector by name, with the reduction by lane that each reads.
    reductions
        Other reductions over the keys of a row by name, with the entries that are computed from an
        earlier reduction for it to read; None where it reads no such entries.

    Raises
    ------
    NotElementwise
        If the kernel is no attention.
    """

    def __init__(self, graph: StageGraph) -> None:
        self.graph = graph
        self.products = matrix_products(graph)
        self.scores, self.context, self.weights = self._both_products()
        self.queries, self.keys, self.values = self._copies()
        self.parts = self._parts()
        after_scores = [name for name in graph.stages if self.scores.name in graph.sources([name])]
        self.attended = self._in_place()
        operands = self._operands()
        before = graph.sources(operands) - operands - self.parts
        between = graph.sources([self.attended]) - before
        between -= {name for name in between if _is_sum(graph.stages[name].value)}
        order = [name for name in graph.stages if name in between]
        self.kept = {*between, self.attended}
        on_rows = {*after_scores, self.scores.name, *self._read_by_row(after_scores, operands)}
        last = self.context.name
        self.per_rows = [name for name in order if name in on_rows and name != last] + [last]
        once = [name for name in order if name not in on_rows]
        self.per_head = sorted(once, key=lambda name: len(graph.stages[name].axes) > _ROW)
        weighed = {self.weights.name, *graph.sources([self.weights.name])}
        self.by_key = [name for name in self.per_rows if name in weighed and self._has_keys(name)]
        self.value_sums = [name for name in self.per_head if self._sums_values(name)]
        self.elementwise = [name for name in [*order, self.attended] if self._takes_vectors(name)]
        self.lanes: dict[str, str] = {}
        self.reductions: dict[str, str | None] = {}
        for name in self.per_rows:
            self._note_reduction(graph.stages[name])

    def _both_products(self) -> tuple[MatrixProduct, MatrixProduct, StageDefinition]:
        # Sums are products with rows of ones, which read nothing.
        proper = [p for p in self.products if p.lhs is not None and loads_of(p.lhs.value)]
        for scores in proper:
            for context in proper:
                weights = context.lhs
                if weights is not None and scores.name in self.graph.sources([weights.name]):
                    return scores, context, weights
        raise NotElementwise("the kernel has no two matrix products, one of the other's scores")

    def _copies(self) -> tuple[StageDefinition, StageDefinition, StageDefinition]:
        queries, keys, values = self.scores.lhs, self.scores.rhs, self.context.rhs
        if queries is None or keys is None or values is None:
            raise NotElementwise("a product reads no copy of queries, keys or values")
        return queries, keys, values

    def _parts(self) -> set[str]:
        read = [self.graph.stages[name] for name in self.graph.reads(self.values)]
        return {stage.name for stage in read if not isinstance(stage.value, ir.TensorLoad)}

    def _in_place(self) -> str:
        """Last stage that is computed entry by entry from the context, in the same order."""
        buffers, last = [self.context.stage.buffer], ""
        for stage in self.graph.stages.values():
            for load in loads_of(stage.value):
                if any(load.source.same_as(buffer) for buffer in buffers) and _same(
                    load.indices, stage.axes
                ):
                    last = stage.name
                    buffers.append(stage.buffer)
        if not last:
            raise NotElementwise("nothing is computed from the context of a head")
        return last

    def _operands(self) -> set[str]:
        """Names of what products read, but for the weights."""
        read = [stage for product in self.products for stage in (product.lhs, product.rhs)]
        return {stage.name for stage in read if stage is not None} - {self.weights.name}

    def _read_by_row(self, names: list[str], operands: set[str]) -> list[str]:
        """Names of what stages on rows read of their own row, operands of products left out."""
        found: list[str] = []
        todo = list(names)
        while todo:
            stage = self.graph.stages[todo.pop()]
            for load in loads_of(stage.value):
                part = self.graph.producer(load.source)
                own = any(place.same_as(axis) for place in load.indices for axis in _row(stage))
                if own and part is not None and part.name not in {*names, *found, *operands}:
                    found.append(part.name)
                    todo.append(part.name)
        return found

    def _has_keys(self, name: str) -> bool:
        stage = self.graph.stages[name]
        return not stage.reduced and stage.extents == self.scores.stage.extents

    def _sums_values(self, name: str) -> bool:
        stage = self.graph.stages[name]
        return bool(stage.reduced) and self.values.name in self.graph.reads(stage)

    def _takes_vectors(self, name: str) -> bool:
        stage = self.graph.stages[name]
        packed = any(product.rhs is stage for product in self.products)
        ones = any(product.lhs is stage for product in self.products) and not loads_of(stage.value)
        return not (stage.reduced or packed or ones or nodes_of(stage.value, tirx.Div))

    def _note_reduction(self, stage: StageDefinition) -> None:
        if not stage.reduced or any(product.stage is stage for product in self.products):
            return
        entries = None
        for name in self.graph.reads(stage):
            if name in self.reductions:
                self.lanes[stage.name] = name
                del self.reductions[name]
                return
            if not self.graph.stages[name].reduced:
                waits = self.graph.reads(self.graph.stages[name]) & {*self.reductions}
                entries = name if waits else None
        self.reductions[stage.name] = entries


def attention_products(func: tirx.PrimFunc) -> tuple[MatrixProduct, MatrixProduct] | None:
    """Products of queries and keys, and of weights and values; None of a kernel without."""
    try:
        stages = AttentionStages(StageGraph(func))
    except NotElementwise:
        return None
    return stages.scores, stages.context


def _same(places: Sequence[tirx.Expr], axes: Sequence[tirx.Var]) -> bool:
    return len(places) == len(axes) and all(map(ir.Expr.same_as, places, axes))


def _row(stage: StageDefinition) -> tuple[tirx.Var, ...]:
    """Axis of the rows of queries, where a stage has one."""
    return stage.axes[_ROW : _ROW + 1]


def _is_sum(value: tirx.Expr) -> bool:
    """Whether nothing but entries are added: that costs less than storing and loading the sum."""
    if isinstance(value, tirx.Add):
        return all(isinstance(x, ir.TensorLoad) or _is_sum(x) for x in (value.a, value.b))
    return False
