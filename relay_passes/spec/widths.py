"""Widths of integers: which bounds a type has, and the widest interval of a computation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

INT16 = (-(2**15), 2**15 - 1)
INT32 = (-(2**31), 2**31 - 1)
INT64 = (-(2**63), 2**63 - 1)


def fits(low: int, high: int, bounds: tuple[int, int]) -> bool:
    """Whether [low, high] lies within the bounds of a type."""
    return bounds[0] <= low and high <= bounds[1]


def bits_of(low: int, high: int) -> int:
    """Width in bits of the smallest signed integer type that holds [low, high]."""
    return max((low if low >= 0 else ~low).bit_length(), high.bit_length()) + 1


class Audit:
    """The widest interval seen while it was open.

    Attributes
    ----------
    bits : int
        Bits of the smallest signed type that holds every interval made so far.
    """

    def __init__(self) -> None:
        self.bits = 1


AUDIT: ContextVar[Audit | None] = ContextVar(
    "ibert_tvm.relay_passes.spec.widths.audit", default=None
)
"""What records the widths of intermediates at present."""


@contextmanager
def audit() -> Iterator[Audit]:
    """Record the width of every intermediate of the specification functions called inside."""
    current = Audit()
    token = AUDIT.set(current)
    try:
        yield current
    finally:
        AUDIT.reset(token)
