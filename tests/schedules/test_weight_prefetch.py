"""Requests for the next weights: every line of a panel, spread over the tile before it."""

from __future__ import annotations

import itertools
import math

import pytest
from tvm import ir, sym, tirx

from ibert_tvm.schedules.nodes import calls_of, nodes_of, substituted
from ibert_tvm.targets import get_target
from tests.schedules.linear_kernels import linear_kernel, weight_of

_LINE = 64


def _requests(func: tirx.PrimFunc) -> list[tuple[int, ...]]:
    """Tile, step of the depth, block and byte of every request, in order."""
    (tiles,) = (one for one in nodes_of(func, tirx.For) if one.kind == tirx.ForKind.PARALLEL)
    requesting = [one for one in nodes_of(tiles, tirx.For) if calls_of(one, "tirx.prefetch")]
    each, depth, *_ = requesting  # innermost first
    conditions = [
        one.condition
        for one in nodes_of(depth, tirx.IfThenElse)
        if calls_of(one.then_case, "tirx.prefetch")
    ]
    (call,) = calls_of(each, "tirx.prefetch")
    (load,) = nodes_of(call, ir.TensorLoad)
    found = []
    analyzer = sym.Analyzer()
    loops = (tiles, depth, each)
    for place in itertools.product(*(range(int(loop.extent)) for loop in loops)):
        values = {
            loop.loop_var: tirx.const(at, "int32") for loop, at in zip(loops, place, strict=True)
        }
        if all(analyzer.can_prove(substituted(one, values)) for one in conditions):
            block, *_, byte = (
                int(analyzer.simplify(substituted(one, values))) for one in load.indices
            )
            found.append((*place[:2], block, byte))
    return found


@pytest.mark.parametrize("rows", [8, 16, 64, 200], ids=lambda rows: f"{rows} rows")
def test_every_line_of_the_next_panel_is_requested_in_time(rows: int) -> None:
    target = get_target("x86-avx512-vnni")
    func = linear_kernel(target, rows, weight_of(96, 96), target.dot.lhs_dtype)
    _blocks, steps, *_ = (int(size) for size in func.params[1].shape)
    requests = _requests(func)
    tiles = rows // 8
    panel = 3  # vectors of a column tile
    for column in (0, 1):
        ahead = {
            (block, byte // _LINE)
            for tile, _step, block, byte in requests
            if tile // tiles == column
        }
        assert {(panel * (column + 1), line) for line in range(panel * steps)} <= ahead
    # A core takes a few tens of requests at once; more keep its other loads waiting.
    per_step = [len(list(group)) for _, group in itertools.groupby(requests, lambda one: one[:2])]
    assert max(per_step) == math.ceil(panel / tiles)
