"""Which compiled shapes to call for a batch of any size.

Compiled functions have fixed shapes. A batch is cut into calls so that as few padded tokens as
possible are computed; of two ways that cost the same, the one with fewer calls is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ibert_tvm.library_file import FunctionRecord

__all__ = ["Call", "plan_calls"]


@dataclass(frozen=True)
class Call:
    """One call: `rows` rows of the batch from `start`, padded to the function's shape."""

    function: FunctionRecord
    start: int
    rows: int


def plan_calls(functions: Sequence[FunctionRecord], batch: int, length: int) -> list[Call]:
    """Cut a batch into calls.

    Parameters
    ----------
    functions : sequence of FunctionRecord
        The compiled shapes; at least one has `seq_len >= length`.
    batch : int
        Number of rows, at least 1.
    length : int
        Tokens per row.

    Returns
    -------
    list of Call
        Calls that cover rows 0 to `batch - 1` in order, full calls first.
    """
    fitting = [f for f in functions if f.seq_len >= length]
    # cheapest[n] = (computed tokens, calls, function of the first call) for n rows.
    cheapest: list[tuple[int, int, FunctionRecord | None]] = [(0, 0, None)]
    for rows in range(1, batch + 1):
        options = []
        for function in fitting:
            tokens, calls, _ = cheapest[max(0, rows - function.batch)]
            options.append((tokens + function.batch * function.seq_len, calls + 1, function))
        cheapest.append(min(options, key=lambda option: option[:2]))
    chosen = []
    rows = batch
    while rows > 0:
        function = cheapest[rows][2]
        if function is None:  # cannot happen: only cheapest[0] has none
            break
        chosen.append(function)
        rows -= function.batch
    calls_in_order = []
    start = 0
    for function in sorted(chosen, key=lambda f: -f.batch):
        taken = min(function.batch, batch - start)
        calls_in_order.append(Call(function, start, taken))
        start += taken
    return calls_in_order
