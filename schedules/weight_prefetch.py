"""Asking for weights before they are needed.

The weights of a model do not fit a cache near the core: each panel of a column tile comes from the
last-level cache or from memory, the first rows of the tile wait for it, and the hardware's
prefetcher begins anew at every panel. While the rows of one tile pass over their panel, the next
panel is requested piece by piece.
"""

from __future__ import annotations

import math

import tvm_ffi
from tvm import s_tir, tirx

from .nodes import Block, Loop, changed, unmarked

_PANEL = "ibert.next_panel"
_CACHE_LINE = 64
# With few row tiles the requests for a panel come in a burst, which keeps other loads waiting.
_FEWEST_TILES = 8
_READ, _INTO_L2, _DATA = 0, 2, 1  # operands of LLVM's prefetch


def mark_panel_loop(
    sch: s_tir.Schedule, loop: Loop, block: Block, panel: int, tiles: int, runs: int = 1
) -> None:
    """Say that a loop goes over column tiles and, inside them, over row tiles.

    With few row tiles nothing is marked.

    Parameters
    ----------
    sch
        Schedule of a kernel.
    loop
        Its iteration i works on the rows of tile ``i % tiles`` and on panel ``i // tiles``.
    block
        The matrix product; what it reads last is the packed weight.
    panel
        Blocks of the packed weight, along its first axis, that a column tile reads.
    tiles
        Number of row tiles.
    runs
        Panels of a column tile, equally far apart in the packed weight.
    """
    if tiles < _FEWEST_TILES:
        return
    func = sch.mod["main"]
    weight = sch.get(block).reads[-1].source
    place = next(index for index, param in enumerate(func.params) if param.same_as(weight))
    sch.annotate(loop, _PANEL, [place, panel, tiles, runs])


def request_panels(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Put the requests into the loops that a rule marked; remove the marks."""

    def request(loop: tirx.For) -> tirx.For:
        if _PANEL not in loop.annotations:
            return loop
        place, panel, tiles, runs = (int(value) for value in loop.annotations[_PANEL])
        weight = func.params[place]
        blocks, *inner = (int(size) for size in weight.shape)
        lines = math.ceil(panel * math.prod(inner) / (tiles * _CACHE_LINE))
        line, run = tirx.Var("line", "int32"), tirx.Var("run", "int32")
        # Behind the last panel lies the next weight, or nothing: a request never faults.
        next_panel = (loop.loop_var // tiles + 1) * panel
        if runs > 1:
            next_panel = next_panel + run * (blocks // runs)
        byte = ((loop.loop_var % tiles) * lines + line) * _CACHE_LINE
        address = tirx.address_of(tirx.BufferLoad(weight, [next_panel, 0, 0, byte]))
        call = tirx.call_intrin("void", "tirx.prefetch", address, _READ, _INTO_L2, _DATA)
        requests = tirx.For(line, 0, lines, tirx.ForKind.SERIAL, tirx.Evaluate(call))
        if runs > 1:
            requests = tirx.For(run, 0, runs, tirx.ForKind.SERIAL, requests)
        body = tirx.SeqStmt([requests, loop.body])
        return changed(loop, body=body, annotations=unmarked(loop, _PANEL))

    return tvm_ffi.structural_map(func, (tirx.For, request))
