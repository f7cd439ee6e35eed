"""Why a schedule rule did not apply."""

from __future__ import annotations


class ScheduleError(Exception):
    """No rule could schedule a kernel.

    Parameters
    ----------
    what, where, why, todo
        What failed, in which kernel, for which reason, and what can be done about it.
    """

    def __init__(self, what: str, where: str, why: str, todo: str) -> None:
        self.what, self.where, self.why, self.todo = what, where, why, todo
        super().__init__(f"{what}\n  where: {where}\n  why: {why}\n  what to do: {todo}")
