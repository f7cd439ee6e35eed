"""What can go wrong while counting instructions."""

from __future__ import annotations

__all__ = ["CountingError"]


class CountingError(Exception):
    """Counting is impossible, or its result would be wrong.

    Parameters
    ----------
    what, where, why, todo
        What failed, in which place, for which reason, and what to do about it.
    """

    def __init__(self, what: str, where: str, why: str, todo: str) -> None:
        self.what, self.where, self.why, self.todo = what, where, why, todo
        super().__init__(f"{what}\n  where: {where}\n  why: {why}\n  what to do: {todo}")
