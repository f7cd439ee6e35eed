"""How many windows there are, and where they reach behind an edge: what convolutions share."""

from __future__ import annotations


def count(extent: int, width: int, stride: int, borders: int) -> int:
    """Return how many windows fit.

    Parameters
    ----------
    extent
        Of the axis.
    width, stride
        Of a window, and from one to the next; at least 1.
    borders
        What lies around the axis, at both ends together.

    Returns
    -------
    int
        0 where a window does not fit.
    """
    room = extent + borders - width
    return room // stride + 1 if room >= 0 and stride >= 1 else 0
