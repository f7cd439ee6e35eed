"""Sums or maxima over the tokens of a sequence for every channel, on a GPU: pooling.

Strategy
--------
A block has the channels of a few warps' width; its warps share out the tokens, and combine
what each found through shared memory. Numbers of the sequence (how many tokens count) are
summed by every warp for itself: each lane takes some tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tvm import tirx

from ibert_tvm.targets import Gpu

from ..rule import GpuRule
from ..stages import Leaf, NotElementwise, StageGraph
from .elementwise import results_of
from .row_statistics import RowScalars
from .runs import Loads, Results, RunOfChannels
from .statements import WARP, call, guarded, launch, registers, sequence, serial, thread

_WARPS = 8
# A lane takes more than one channel where blocks are many.
_WIDTHS = (4, 2, 1)


class ColumnSumsRule(GpuRule):
    """Write kernels whose results [rows, channels] are reductions over a third axis."""

    name = "column sums"

    def write(self, func: tirx.PrimFunc, gpu: Gpu) -> tirx.PrimFunc:
        """See the module's strategy."""
        return func.with_body(_Kernel(StageGraph(func), gpu.multiprocessors).body())


@dataclass
class _Totals:
    """Statements of the reductions of a thread's channels, and how their results are read."""

    declarations: list[tirx.Stmt] = field(default_factory=list)
    clear: list[tirx.Stmt] = field(default_factory=list)
    add: list[tirx.Stmt] = field(default_factory=list)
    combine: list[tirx.Stmt] = field(default_factory=list)
    leaves: dict[tirx.Var, Leaf] = field(default_factory=dict)


class _Kernel:
    """One kernel under construction."""

    def __init__(self, graph: StageGraph, multiprocessors: int) -> None:
        self.graph = graph
        self.results = results_of(graph)
        if len(self.results[0].extents) != 2:
            raise NotElementwise("the results are not [rows, channels]")
        self.rows, self.channels = self.results[0].extents
        stages = list(graph.stages.values())
        self.scalars = [stage for stage in stages if stage.extents == (self.rows,)]
        self.sums = [stage for stage in stages if stage.reduced and len(stage.extents) == 2]
        others = [stage for stage in stages if stage.reduced and len(stage.extents) > 2]
        lengths = {stage.reduced_extents for stage in stages if stage.reduced}
        if not self.sums or others or len(lengths) != 1 or len(next(iter(lengths))) != 1:
            raise NotElementwise("there is no reduction over one axis for every row and channel")
        self.length = next(iter(lengths))[0]
        self.width = next(
            (
                width
                for width in _WIDTHS
                if self.channels % width == 0
                and self.rows * -(-self.channels // (width * WARP)) >= multiprocessors
            ),
            1,
        )
        self.groups = -(-self.channels // (self.width * WARP))
        self.warps = min(_WARPS, self.length)

    def body(self) -> tirx.Stmt:
        """The kernel, with its threads."""
        row, group = thread("blockIdx.y"), thread("blockIdx.x")
        lane, warp = thread("threadIdx.x"), thread("threadIdx.y")
        token = tirx.Var("token", "int32")
        turns = -(-self.length // self.warps)
        bounds = {row: self.rows, group: self.groups, warp: self.warps, lane: WARP}
        first = (group * WARP + lane) * self.width
        run = RunOfChannels(self.width, lambda _step: first, 1, {**bounds, token: turns})
        numbers = self._numbers(row, lane, bounds)
        place = token * self.warps + warp
        totals = self._totals(run, row, place)
        late = Loads(run, kept=False)
        known = late.leaves(self.graph)
        known |= {stage.buffer: numbers.leaves[stage.buffer] for stage in self.scalars}
        known |= totals.leaves
        outputs = Results(self.graph.evaluate(known), run, [row], self.results)

        inside = first < self.channels if self.channels % (self.width * WARP) else None
        some = place < self.length if self.length % self.warps else None
        over_tokens = serial(token, turns, guarded(some, sequence(totals.add)))
        stores = run.each_step(sequence([*late.copies, *outputs.entries]))
        last = warp == 0 if inside is None else tirx.all(warp == 0, inside)
        body = [
            *totals.declarations,
            *late.declarations,
            *outputs.declarations,
            *totals.clear,
            guarded(inside, over_tokens),
            *totals.combine,
            *numbers.statements,
            guarded(last, stores),
        ]
        return launch(sequence(body), bounds)

    def _totals(self, run: RunOfChannels, row: tirx.Var, place: tirx.Expr) -> _Totals:
        """Reductions of a lane's channels over the tokens of its warp, then of all warps."""
        loads = Loads(run, kept=False)
        leaves = loads.leaves(self.graph)
        totals = _Totals()
        for stage in self.sums:
            dtype = str(stage.buffer.ty.dtype)
            total = registers(stage.name, self.width, dtype)
            so_far = tirx.BufferLoad(total, [run.lane])
            totals.leaves[stage.buffer] = _reader(so_far)
            totals.declarations.append(tirx.AllocBuffer(total))
            nothing = tirx.BufferStore(total, stage.initial, [run.lane])
            totals.clear.append(run.each_lane(nothing))
            evaluation = self.graph.evaluate(leaves)
            value = evaluation.value(stage, [row, run.channel], [place])
            combined = tirx.max(so_far, value) if stage.combine == "max" else so_far + value
            more = evaluation.before(tirx.BufferStore(total, combined, [run.lane]))
            totals.add.append(run.each_lane(more))
            if self.warps > 1:
                shape = (self.warps * WARP * self.width,)
                shared = tirx.decl_buffer(shape, dtype, f"{stage.name}_of_warps", scope="shared")
                totals.declarations.append(tirx.AllocBuffer(shared))
                # TVM lets such arrays share memory: the first is done with at the next barrier.
                again = "true" if totals.combine else "false"
                function = f"ibert::{stage.combine}_of_warps_per_lane"
                name = f"{function}<{self.warps}, {self.width}, {again}>"
                totals.combine.append(tirx.Evaluate(call(name, total.data, shared.data)))
        totals.declarations += loads.declarations
        totals.add[:0] = loads.copies
        return totals

    def _numbers(self, row: tirx.Var, lane: tirx.Var, bounds: dict[tirx.Var, int]) -> RowScalars:
        """Numbers of the row, which every warp computes from all tokens."""
        width = next(width for width in _WIDTHS if self.length % width == 0)
        runs = self.length // width
        tokens = RunOfChannels(
            width,
            lambda step: (step * WARP + lane) * width,
            -(-runs // WARP),
            bounds,
            (lambda step: step * WARP + lane < runs) if runs % WARP else None,
        )
        loads = Loads(tokens, kept=False)
        leaves = loads.leaves(self.graph)
        numbers = RowScalars(self.graph, tokens, row, leaves, 1, loads)
        numbers.add(self.scalars, self.length)
        numbers.statements[:0] = loads.declarations
        return numbers


def _reader(entry: tirx.Expr) -> Leaf:
    """Read the same entry whatever the indices."""
    return lambda _indices: entry
