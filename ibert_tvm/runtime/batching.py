"""Which compiled shapes to call for a batch of any size.

Compiled functions have fixed shapes. A batch is cut into calls so that as few padded tokens as
possible are computed; of two ways that cost the same, the one with fewer calls is taken. Functions
that pack tokens compute no padding, so for them it is the calls that count: every one reads all
weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .metadata import FunctionRecord


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
    functions
        The compiled shapes; at least one has `seq_len >= length`.
    batch
        Number of rows, at least 1.
    length
        Tokens per row.

    Returns
    -------
    list of Call
        Calls that cover rows 0 to `batch - 1` in order, full calls first.
    """
    fitting = [f for f in functions if f.seq_len >= length]
    # For n rows: cheapest[n] = (computed tokens, calls, tokens there is room for), and
    # first[n - 1] = function of the first call.
    cheapest = [(0, 0, 0)]
    first: list[FunctionRecord] = []
    for rows in range(1, batch + 1):
        options = []
        for index, function in enumerate(fitting):
            tokens, calls, room = cheapest[max(0, rows - function.batch)]
            size = function.batch * function.seq_len
            computed = min(rows, function.batch) * length if function.packed else size
            options.append((tokens + computed, calls + 1, room + size, index))
        tokens, calls, room, index = min(options)
        cheapest.append((tokens, calls, room))
        first.append(fitting[index])
    chosen = []
    rows = batch
    while rows > 0:
        chosen.append(first[rows - 1])
        rows -= first[rows - 1].batch
    calls_in_order = []
    start = 0
    for function in sorted(chosen, key=lambda f: -f.batch):
        taken = min(function.batch, batch - start)
        calls_in_order.append(Call(function, start, taken))
        start += taken
    return calls_in_order
