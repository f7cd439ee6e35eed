"""Entries of a tensor at places that may lie outside of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..spec.values import select
from .domain import Domain, Entry, Index, T


@dataclass(frozen=True)
class Axis:
    """One axis along which windows are cut.

    Parameters
    ----------
    extent
        Entries that there are.
    before, after
        How far windows reach in front of the first, and behind the last.
    """

    extent: int
    before: int
    after: int

    def nearest(self, domain: Domain[T], place: Index) -> Index:
        """Return the place of the entry that is next to a place, which is there to be read."""
        place = domain.at_least(place, 0) if self.before else place
        return domain.at_most(place, self.extent - 1) if self.after else place


def filled(
    domain: Domain[T], found: Entry, places: Sequence[tuple[Axis, Index]], outside: int
) -> Entry:
    """Return `found`, or `outside` where one of the places is none of its axis."""
    for axis, place in places:
        if axis.before:
            found = select(domain.condition(place >= 0), found, outside)
        if axis.after:
            found = select(domain.condition(place < axis.extent), found, outside)
    return found
