"""Where the values of a function lie in its arena: offsets from lifetimes.

A program without runtime takes no memory at run time. All that a call needs beside its inputs, its
outputs and the weights is one block, the arena, in which every value has a fixed place; two values
share bytes only where no step of the program needs both.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Request:
    """Memory that is needed from one step to another, both included.

    Attributes
    ----------
    key
        What it is for; unique in a plan.
    nbytes
        Size, 0 or more.
    first, last
        Steps of the program, counted from 0.
    """

    key: Hashable
    nbytes: int
    first: int
    last: int

    def __post_init__(self) -> None:
        if self.nbytes < 0 or not 0 <= self.first <= self.last:
            raise ValueError(f"request {self.key}: {self.nbytes} bytes, {self.first}..{self.last}")

    def overlaps(self, other: Request) -> bool:
        """Whether a step needs both."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class ArenaPlan:
    """A place for every request.

    Attributes
    ----------
    offsets
        Offset of each request in bytes, by key; multiples of the alignment.
    nbytes
        Size of the arena, a multiple of the alignment.
    lower_bound
        The most that any step needs at once: no plan can be smaller.
    """

    offsets: Mapping[Hashable, int]
    nbytes: int
    lower_bound: int


def _aligned(nbytes: int, alignment: int) -> int:
    return -(-nbytes // alignment) * alignment


def _place(ordered: Sequence[Request], alignment: int) -> tuple[dict[Hashable, int], int]:
    """Put each request in the tightest gap between those placed before that live with it."""
    placed: list[tuple[int, int, Request]] = []  # offset, end, request; by offset
    offsets: dict[Hashable, int] = {}
    total = 0
    for request in ordered:
        size = _aligned(request.nbytes, alignment)
        best: tuple[int, int] | None = None  # bytes left over in the gap, offset
        end = 0
        for offset, stop, other in placed:
            if not request.overlaps(other):
                continue
            gap = offset - end
            if gap >= size and (best is None or gap - size < best[0]):
                best = (gap - size, end)
            end = max(end, stop)
        offset = end if best is None else best[1]
        offsets[request.key] = offset
        total = max(total, offset + size)
        if size:
            placed.append((offset, offset + size, request))
            placed.sort(key=lambda entry: entry[:2])
    return offsets, total


_Order = Callable[[Request], tuple[int, ...]]
# None is the best for every graph; planning takes milliseconds, so all are tried.
_ORDERS: tuple[_Order, ...] = (
    lambda r: (-r.nbytes, r.first),
    lambda r: (-r.nbytes * (r.last - r.first + 1), -r.nbytes),
    lambda r: (-(r.last - r.first), -r.nbytes),
    lambda r: (r.first, -r.nbytes),
    lambda r: (-r.last, -r.nbytes),
)


def plan_arena(requests: Sequence[Request], alignment: int) -> ArenaPlan:
    """Place requests so that those that live at the same time never share a byte.

    Greedy best fit in several orders (by size, by size times lifetime, by time), of which the
    smallest result is taken. The largest values first alone is what most compilers for
    microcontrollers do.

    Parameters
    ----------
    requests
        What is needed, and when.
    alignment
        Bytes that every offset is a multiple of: a power of two.

    Raises
    ------
    ValueError
        If the alignment is no power of two, or a key occurs twice.
    """
    if alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"alignment {alignment} is not a power of two")
    if len({request.key for request in requests}) != len(requests):
        raise ValueError("a key occurs twice")
    lower_bound = _most_at_once(requests, alignment)
    best: tuple[dict[Hashable, int], int] | None = None
    for order in _ORDERS:
        attempt = _place(sorted(requests, key=order), alignment)
        if best is None or attempt[1] < best[1]:
            best = attempt
        if best[1] == lower_bound:
            break
    offsets, nbytes = best or ({}, 0)
    return ArenaPlan(offsets, nbytes, lower_bound)


def _most_at_once(requests: Sequence[Request], alignment: int) -> int:
    """Bytes of the step that needs most."""
    changes: dict[int, int] = {}
    for request in requests:
        size = _aligned(request.nbytes, alignment)
        changes[request.first] = changes.get(request.first, 0) + size
        changes[request.last + 1] = changes.get(request.last + 1, 0) - size
    now = most = 0
    for step in sorted(changes):
        now += changes[step]
        most = max(most, now)
    return most
