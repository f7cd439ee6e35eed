"""The order in which requests have what they share, so that no small one waits for large ones."""

from __future__ import annotations

import heapq
import itertools
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Turns(Generic[Item]):
    """Parts of requests that wait.

    Parts of small requests go first, but a large one has its turn after some of these. Large ones
    share what is left by self-clocked fair queueing (Golestani, INFOCOM 1994): the turn of a part
    is that of the part taken last when its request came, and all that the request has up to there.

    Parameters
    ----------
    most_passed
        Most of small requests, in units of size, that goes before a large one that waits.

    Attributes
    ----------
    now
        Turn of the part that was taken last.
    """

    def __init__(self, most_passed: int) -> None:
        self.now = 0
        self._most_passed, self._passed = most_passed, 0
        self._waiting: tuple[list[tuple[int, int, int, Item]], ...] = ([], [])
        self._numbers = itertools.count()

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return any(self._waiting)

    def put(self, item: Item, size: int, turn: int, large: bool) -> None:
        """Let a part wait for its turn."""
        heapq.heappush(self._waiting[large], (turn, next(self._numbers), size, item))

    def large_is_next(self) -> bool:
        """Whether the next part is one of a large request."""
        small, large = self._waiting
        return bool(large) and (not small or self._passed >= self._most_passed)

    def first(self, large: bool) -> Item | None:
        """The first part of small or of large requests."""
        return self._waiting[large][0][-1] if self._waiting[large] else None

    def take(self, large: bool) -> None:
        """Take that part out."""
        turn, _, size, _ = heapq.heappop(self._waiting[large])
        self.now = max(self.now, turn)
        self._passed = 0 if large else self._passed + size

    def clear(self) -> list[Item]:
        """Take all out."""
        items = [part[-1] for parts in self._waiting for part in parts]
        for parts in self._waiting:
            parts.clear()
        return items
