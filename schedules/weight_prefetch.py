"""Asking for weights before they are needed.

The weights of a model do not fit a cache near the core: each panel of a column tile comes from the
last-level cache or from memory, the first rows of the tile wait for it, and the hardware's
prefetcher begins anew at every panel. While the rows of one tile pass over their panel, the next
panel is requested piece by piece. A core takes few requests at once and makes other loads wait for
the rest, so those of a piece are spread over the depth of the product.
"""

from __future__ import annotations

import math

import tvm_ffi
from tvm import s_tir, tirx

from .nodes import Block, Loop, changed, nodes_of, unmarked

_PANEL = "ibert.next_panel"
_CACHE_LINE = 64
_READ, _INTO_L2, _DATA = 0, 2, 1  # operands of LLVM's prefetch


def mark_panel_loop(
    sch: s_tir.Schedule,
    loop: Loop,
    block: Block,
    panel: int,
    tiles: int,
    runs: int = 1,
    widened: bool = False,
) -> None:
    """Say that a loop goes over column tiles and, inside them, over row tiles.

    Parameters
    ----------
    sch
        Schedule of a kernel.
    loop
        Its iteration i works on the rows of tile ``i % tiles`` and on panel ``i // tiles``.
    block
        The matrix product, which reads the packed weight last; or what widens half bytes for it,
        which reads these first.
    panel
        Blocks of the packed weight, along its first axis, that a column tile reads.
    tiles
        Number of row tiles.
    runs
        Panels of a column tile, equally far apart in the packed weight.
    widened
        Whether the block widens half bytes.
    """
    func = sch.mod["main"]
    weight = sch.get(block).reads[0 if widened else -1].source
    place = next(index for index, param in enumerate(func.params) if param.same_as(weight))
    sch.annotate(loop, _PANEL, [place, panel, tiles, runs, int(widened)])


def request_panels(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Put the requests into the loops that a rule marked; remove the marks."""

    def request(loop: tirx.For) -> tirx.For:
        if _PANEL not in loop.annotations:
            return loop
        place, panel, tiles, runs, widened = (int(value) for value in loop.annotations[_PANEL])
        weight = func.params[place]
        blocks, *inner = (int(size) for size in weight.shape)
        lines = math.ceil(panel * math.prod(inner) / (tiles * _CACHE_LINE))

        def requests(run: int, steps: int, step: tirx.Expr | int) -> tirx.Stmt:
            """Those of a step, of as many as the lines are spread over."""
            # Behind the last panel lies the next weight, or nothing: a request never faults.
            first = (loop.loop_var // tiles + 1) * panel + run * (blocks // runs)
            each = math.ceil(lines / steps)
            pause = 1 << (max(steps // lines, 1).bit_length() - 1)
            line = tirx.Var("line", "int32")
            place = (loop.loop_var % tiles) * lines + step // pause * each + line
            load = tirx.BufferLoad(weight, [first, 0, 0, place * _CACHE_LINE])
            operands = (tirx.address_of(load), _READ, _INTO_L2, _DATA)
            call = tirx.Evaluate(tirx.call_intrin("void", "tirx.prefetch", *operands))
            kind = tirx.ForKind.SERIAL if steps == 1 else tirx.ForKind.UNROLLED
            several = tirx.For(line, 0, each, kind, call)
            return several if pause == 1 else tirx.IfThenElse(step % pause == 0, several, None)

        operands = _written_from(loop.body, weight) if widened else [weight]
        depths = [depth for operand in operands for depth in _depth_loops(loop.body, operand)]

        def spread(one: tirx.For) -> tirx.For:
            for run, depth in enumerate(depths):
                if one.loop_var.same_as(depth.loop_var):
                    ahead = requests(run, int(one.extent), one.loop_var)
                    return changed(one, body=tirx.SeqStmt([ahead, one.body]))
            return one

        body = tvm_ffi.structural_map(loop.body, (tirx.For, spread))
        if isinstance(body, tirx.IfThenElse):  # Rows without tokens: nothing to spread it over.
            bursts = [requests(run, 1, 0) for run in range(runs)]
            rest = tirx.SeqStmt(bursts) if runs > 1 else bursts[0]
            body = tirx.IfThenElse(body.condition, body.then_case, rest)
        return changed(loop, body=body, annotations=unmarked(loop, _PANEL))

    return tvm_ffi.structural_map(func, (tirx.For, request))


def _written_from(tree: tirx.Stmt, weight: tirx.Buffer) -> list[tirx.Buffer]:
    """What blocks write that read a weight: the panel of each run."""
    found: list[tirx.Buffer] = []
    for block in nodes_of(tree, s_tir.SBlock):
        if any(region.source.same_as(weight) for region in block.reads):
            written = block.writes[0].source
            if not any(written.same_as(one) for one in found):
                found.append(written)
    return found


def _depth_loops(tree: tirx.Stmt, weight: tirx.Buffer) -> list[tirx.For]:
    """The innermost serial loops that read a weight: one of each run."""
    found = []
    for loop in nodes_of(tree, tirx.For):
        blocks = nodes_of(loop.body, s_tir.SBlock)
        reads = any(region.source.same_as(weight) for block in blocks for region in block.reads)
        if loop.kind == tirx.ForKind.SERIAL and reads and not _depth_loops(loop.body, weight):
            found.append(loop)
    return found
