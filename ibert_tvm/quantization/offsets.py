"""Constants that attention's values do without, since the layer behind adds them again.

The weights with which attention averages its values sum to 1. So whatever is taken off a channel of
the values is missing in the context, and nothing else: the next layer's bias takes its product with
the weights, which is made of the float weights, so that this part is not even rounded. The values
then lie around 0, and 8 bits serve a smaller range.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ibert_tvm.relay_passes.lower.rule import FACTOR_BY_CHANNEL, MATMUL

from .observers import Statistics, phase_of

if TYPE_CHECKING:
    from ibert_tvm.relay_passes.lower import Requirement


def take_off_offsets(
    needed: Mapping[str, Requirement], statistics: Mapping[str, Statistics]
) -> dict[str, NDArray[np.float64]]:
    """Choose what is taken off the values, and take it off the statistics.

    Parameters
    ----------
    needed
        From `ibert_tvm.relay_passes.lower.requirements`.
    statistics
        Of the values and of the contexts; changed.

    Returns
    -------
    dict of str to numpy.ndarray
        By the canonical name of the layer that computes the values, float64 [channels]: the middle
        of what was seen of a channel.
    """
    offsets = {}
    for name, value in needed.items():
        context = _context(value, needed)
        if context is None:
            continue
        seen = statistics[name]
        offsets[name] = (seen.low + seen.high) / 2
        statistics[context].shift(offsets[name])
        seen.shift(offsets[name])
        # A range around 0 has no side to spare for what few tokens have not shown.
        seen.low, seen.high = -seen.channel_half_range, seen.channel_half_range
    return offsets


def move_onto_grid(
    name: str,
    needed: Mapping[str, Requirement],
    statistics: Mapping[str, Statistics],
    scale: NDArray[np.float64],
) -> NDArray[np.float64] | float:
    """Take a fraction of a step more off values, so that their first tokens' mean is not rounded.

    Parameters
    ----------
    name
        Of the values.
    needed
        As above.
    statistics
        Of the values and of the contexts; changed.
    scale
        Steps of the values, one or one per channel.

    Returns
    -------
    numpy.ndarray or float
        What is taken off besides, [channels]; 0 where no first tokens were seen.
    """
    phase = phase_of(statistics[name], scale)
    context = _context(needed[name], needed)
    if phase is None or context is None:
        return 0.0
    more = -phase * scale
    for shifted in (name, context):
        statistics[shifted].shift(more)
    return more


def _context(value: Requirement, needed: Mapping[str, Requirement]) -> str | None:
    """The mean of tokens of a layer's results, if all that reads it are layers."""
    whole = value.section == "weights" and not value.stream and not value.is_output
    if not whole or [reader.form for reader in value.readers] != [FACTOR_BY_CHANNEL]:
        return None
    mean = needed[value.readers[0].name]
    forms = {reader.form for reader in mean.readers}
    alone = forms == {MATMUL} and not mean.stream and not mean.is_output
    return mean.name if mean.need.averages and alone and mean.channels == value.channels else None
