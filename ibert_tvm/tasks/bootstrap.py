"""Intervals of differences by resampling, paired: both models are judged on the same draws."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .measures import Measure

RESAMPLES = 10_000
LEVEL = 0.95
_ELEMENTS = 2**18
"""Counts that are made at a time: they stay in the cache, which the ranks of each draw need."""


def difference_intervals(
    pairs: Sequence[tuple[Measure, Measure]], seed: int = 0, resamples: int = RESAMPLES
) -> list[tuple[float, float] | None]:
    """Percentile intervals of the second measure less the first.

    Samples are drawn with replacement, as many as there are, and both measures are taken of the
    draw. The interval holds the middle `LEVEL` of the differences. Draws of which a measure has no
    value (a correlation, where all figures are equal) are left out.

    Parameters
    ----------
    pairs
        All of the same samples; at least one.
    seed
        Of the draws.
    resamples
        How many.

    Returns
    -------
    list of (float, float) or None
        Ends of each pair's interval, in points; None if no draw has a value.
    """
    samples = pairs[0][0].samples
    generator = np.random.default_rng(seed)
    differences = np.empty((len(pairs), resamples))
    step = max(1, _ELEMENTS // samples)
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        drawn = generator.integers(samples, size=(rows, samples))
        drawn *= rows
        drawn += np.arange(rows)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=rows * samples).reshape(samples, rows)
        weights = counts.astype(np.float64)
        for place, (first, second) in enumerate(pairs):
            differences[place, start : start + rows] = second.values(weights) - first.values(
                weights
            )
    ends: list[tuple[float, float] | None] = []
    for row in differences:
        known = row[~np.isnan(row)]
        if len(known):
            low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
            ends.append((float(low), float(high)))
        else:
            ends.append(None)
    return ends
