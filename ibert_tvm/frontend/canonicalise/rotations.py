"""Recognition of rotary embeddings by their numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...common.types import Doubles, Floats, Longs
from .mismatch import Mismatch

# Of cosines and sines that stand for one angle: they are computed once, or in two ways, in float32.
_TOLERANCE = 1e-5


@dataclass(frozen=True, eq=False)
class Term:
    """One channel of a head for each lane, times a factor for each position.

    Parameters
    ----------
    channels
        int64 [lanes], places on the axis of the head.
    factors
        float64 [positions or 1, lanes].
    """

    channels: Longs
    factors: Doubles

    def at(self, lanes: Longs) -> Term:
        """Return the term of some lanes."""
        return Term(self.channels[lanes], self.factors[:, lanes])

    def among(self, first: int, last: int, positions: int) -> Term:
        """Return it at some positions, and nothing at the others."""
        factors = np.zeros((positions, self.channels.size))
        factors[first:last] = self.factors
        return Term(self.channels, factors)


@dataclass(frozen=True)
class Rotation:
    """What a rotation does to the channels of each head.

    Parameters
    ----------
    table
        float32, [positions, 2 * angles]: cosines, then sines.
    amplitude
        Factor of all channels besides.
    interleaved
        Whether channels 2i and 2i + 1 are a pair; otherwise i and i + angles.
    """

    table: Floats
    amplitude: float
    interleaved: bool


def fit_rotation(terms: tuple[Term, ...], lanes: int, positions: int) -> Rotation | None:
    """Tell which rotation sums of channels are.

    Parameters
    ----------
    terms
        What each lane adds up; channels below `lanes`.
    lanes
        Lanes of a head, and channels.
    positions
        Positions for which factors are known.

    Returns
    -------
    Rotation or None
        None if every lane is its own channel.

    Raises
    ------
    Mismatch
        If it is no rotation.
    """
    factors = _by_pair(terms, positions)
    crossed = [pair for pair in factors if pair[0] != pair[1]]
    own = np.zeros((lanes, positions))
    for lane in range(lanes):
        own[lane] = factors.get((lane, lane), 0.0)
    if not crossed:
        if np.array_equal(own, np.ones_like(own)):
            return None
        raise Mismatch(
            "channels are multiplied by numbers that differ between positions, and not turned in "
            "pairs: positions may only be added to embeddings, or turn queries and keys"
        )
    distances = {abs(lane - channel) for lane, channel in crossed}
    if len(distances) > 1:
        raise Mismatch(
            f"channels that lie {', '.join(map(str, sorted(distances)))} apart are mixed by "
            "position; a rotation turns pairs of channels that are all as far apart"
        )
    (distance,) = distances
    interleaved = distance == 1 and lanes > 2
    first = [min(pair) for pair in crossed]
    angles = lanes // 2 if interleaved else distance
    fits = all(lane % 2 == 0 for lane in first) if interleaved else max(first) < distance
    if not fits or 2 * angles > lanes or (interleaved and lanes % 2):
        raise Mismatch(
            f"channels {first[0]} and {first[0] + distance} of a head of {lanes} are mixed by "
            "position; a rotation pairs channel i with i + R/2 for the first R channels, or 2i "
            "with 2i + 1"
        )
    one = np.arange(angles) * (2 if interleaved else 1)
    other = one + distance
    none = np.zeros(positions)
    sine = np.stack([factors.get((int(b), int(a)), none) for a, b in zip(one, other, strict=True)])
    minus = np.stack([factors.get((int(a), int(b)), none) for a, b in zip(one, other, strict=True)])
    cosine, rest = own[one], own[2 * angles :]
    largest = float(np.sqrt(cosine**2 + sine**2).max())
    near = _TOLERANCE * largest
    if np.abs(cosine - own[other]).max() > near or np.abs(sine + minus).max() > near:
        raise Mismatch(
            "pairs of channels are mixed by position, but not turned: that is y = x cos - z sin "
            "and z cos + x sin"
        )
    amplitude = _amplitude(largest, rest)
    table = np.concatenate([cosine, sine]).T / amplitude
    return Rotation(table.astype(np.float32), amplitude, interleaved)


def _amplitude(largest: float, rest: Doubles) -> float:
    """Factor of all channels: of the rotated ones, unless the others have another one, 1."""
    if rest.size and np.array_equal(rest, np.ones_like(rest)):
        return 1.0
    if np.any(np.abs(rest - largest) > _TOLERANCE * largest):
        raise Mismatch(
            "channels of a head that are not turned are multiplied by other numbers than 1"
        )
    return largest if abs(largest - 1.0) > _TOLERANCE else 1.0


def _by_pair(terms: tuple[Term, ...], positions: int) -> dict[tuple[int, int], Doubles]:
    """Factors [positions] by lane and channel, without those that are 0 at every position."""
    sums: dict[tuple[int, int], Doubles] = {}
    for term in terms:
        wide = np.broadcast_to(term.factors, (positions, term.channels.size))
        for lane, channel in enumerate(term.channels.tolist()):
            sums[lane, channel] = sums.get((lane, channel), 0.0) + wide[:, lane]
    return {pair: factor for pair, factor in sums.items() if np.any(factor != 0.0)}
