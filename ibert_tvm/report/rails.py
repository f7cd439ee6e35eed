"""Lanes for the values of a program, as a version history is drawn: one row per step.

A value runs down its lane from the step that makes it to the last one that reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..common.strict_json import JsonObject

MOST_LANES = 12
"""Values beyond these are not drawn; rows name what they read anyway."""


@dataclass(frozen=True)
class Rail:
    """What is drawn beside one step.

    Attributes
    ----------
    lane
        Of the step; None where all are taken.
    passing
        Lanes that run through the row, those included that the step reads and others after it.
    read
        Lanes of what the step reads.
    goes_on
        Whether something below reads the step's value, or it is an output.
    """

    lane: int | None
    passing: tuple[int, ...]
    read: tuple[int, ...]
    goes_on: bool


def draw_rails(steps: Sequence[JsonObject], outputs: Sequence[str]) -> list[Rail]:
    """Give every step of `program_graph` a lane.

    Parameters
    ----------
    steps : sequence of dict
        In order of execution.
    outputs
        Values that run on to the end.
    """
    last: dict[str, int] = {}
    for index, step in enumerate(steps):
        for operand in step["operands"]:
            last[operand["value"]] = index
    last |= dict.fromkeys(outputs, len(steps))
    lanes: list[str | None] = [None] * MOST_LANES
    rails = []
    for index, step in enumerate(steps):
        reads = {operand["value"] for operand in step["operands"]}
        read = tuple(i for i, value in enumerate(lanes) if value in reads)
        passing = tuple(
            i for i, value in enumerate(lanes) if value is not None and last[value] > index
        )
        free = [i for i in read if i not in passing]
        free += [i for i, value in enumerate(lanes) if value is None]
        lane = free[0] if free else None
        for i in read:
            if i not in passing:
                lanes[i] = None
        goes_on = last.get(step["name"], -1) > index
        if lane is not None and goes_on:
            lanes[lane] = step["name"]
        rails.append(Rail(lane, passing, read, goes_on))
    return rails
