"""Skipping the rows of a kernel that hold no token.

Where the tokens of a padded batch are packed (`relay_passes.passes.pack_tokens`), the first rows of
every activation hold tokens and the others nothing. How many there are is known at run time only,
so shapes and schedules stay those of the whole batch, and each iteration of the loop over tiles of
rows is skipped if its first row holds no token.
"""

from __future__ import annotations

import tvm_ffi
from tvm import s_tir, tirx

from .errors import ScheduleError

ROW_COUNT = "ibert.row_count"
"""Attribute of a kernel that emission sets: position of the parameter whose last entry counts the
rows in use. Rows behind them may hold anything; nothing reads what is computed from them."""
_ROWS = "ibert.rows"


def mark_row_loop(
    sch: s_tir.Schedule, loop: s_tir.schedule.LoopRV, tile: int = 1, tiles: int | None = None
) -> None:
    """Say which rows a loop goes over, so that it can be guarded; for schedule rules.

    A tile that is begun is computed whole. Operations that must not see arbitrary operands, such
    as a division, therefore need a loop over single rows.

    Parameters
    ----------
    sch
        Schedule of a kernel, packed or not.
    loop
        A loop whose iteration i works on the rows from ``(i % tiles) * tile``.
    tile
        Rows per iteration.
    tiles
        Number of tiles, where the loop is fused from an outer one and that over tiles.
    """
    count = int(sch.get(loop).extent) if tiles is None else tiles
    sch.annotate(loop, _ROWS, [count, tile])


def guard_rows(func: tirx.PrimFunc, name: str) -> tirx.PrimFunc:
    """Guard the loops that `mark_row_loop` marked, in a kernel that is told the count of rows.

    Parameters
    ----------
    func
        Scheduled kernel.
    name
        Its name, for messages.

    Returns
    -------
    tirx.PrimFunc
        Without marks.

    Raises
    ------
    ScheduleError
        If the kernel is told the count and its rule marked no loop: it would work on rows without a
        token for nothing.
    """
    counted = func.attrs is not None and ROW_COUNT in func.attrs
    count = None
    if counted:
        starts = func.params[int(func.attrs[ROW_COUNT])]
        count = tirx.BufferLoad(starts, [int(starts.shape[0]) - 1])
    found = 0

    def guard(loop: tirx.For) -> tirx.For:
        nonlocal found
        if _ROWS not in loop.annotations:
            return loop
        found += 1
        tiles, tile = (int(size) for size in loop.annotations[_ROWS])
        body = loop.body
        if count is not None:
            first = (loop.loop_var if tiles == int(loop.extent) else loop.loop_var % tiles) * tile
            body = tirx.IfThenElse(first < count, body, None)
        rest = {key: value for key, value in loop.annotations.items() if key != _ROWS}
        return tirx.For(
            loop.loop_var,
            loop.min,
            loop.extent,
            loop.kind,
            body,
            loop.thread_binding,
            rest,
            loop.step,
            loop.span,
        )

    guarded = tvm_ffi.structural_map(func, (tirx.For, guard))
    if counted and not found:
        raise ScheduleError(
            what="the rule marks no loop over rows",
            where=f"kernel {name}",
            why="a kernel on packed tokens skips the rows that hold none",
            todo="call schedules.row_guard.mark_row_loop in the rule",
        )
    return guarded
