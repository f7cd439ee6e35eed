"""Canonicalising a source once more, for what a short probe shape does not show."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Revisit:
    """Another walk over a source that was canonicalised at a shorter length.

    Windows and biases by distance are seen at the longest sequence that is compared. Tables of
    rotations have more positions than that; masks of as many queries and keys are not computed for
    them.

    Parameters
    ----------
    length
        Tokens of the probe shape.
    tables_only
        Whether the tables of rotations are all that is wanted. What scores meet is then taken for
        the padding mask alone.
    mask
        Of the source's inputs that which masks keys; None if none does.
    tables
        Tables of rotations for more positions, [positions, 2 * angles] each: what is found takes
        the one that it is the beginning of.
    """

    length: int
    tables_only: bool = False
    mask: str | None = None
    tables: tuple[NDArray[np.float32], ...] = ()
