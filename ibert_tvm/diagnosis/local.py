"""Errors of places by themselves: on the operands that the integer model has there."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..common.types import Doubles, Longs
from .places import Place


@dataclass
class LocalErrors:
    """Sums over the real tokens of one place.

    Attributes
    ----------
    signal, rounding, computing, clipped, entries
        By text: squares of the values, of the errors of rounding and of operators; entries beyond
        the range, and all.
    total
        Squares of the difference to the float model.
    reference
        Squares of the float model's values.
    channels
        Sum of the operators' errors by channel.
    tokens
    """

    texts: int
    signal: Doubles = field(init=False)
    rounding: Doubles = field(init=False)
    computing: Doubles = field(init=False)
    clipped: Longs = field(init=False)
    entries: Longs = field(init=False)
    total: float = 0.0
    reference: float = 0.0
    channels: Doubles = field(default_factory=lambda: np.zeros(1))
    tokens: int = 0

    def __post_init__(self) -> None:
        for name in ("signal", "rounding", "computing"):
            setattr(self, name, np.zeros(self.texts))
        for name in ("clipped", "entries"):
            setattr(self, name, np.zeros(self.texts, np.int64))

    def add(
        self,
        text: int,
        place: Place,
        source: Doubles,
        rounded: Doubles,
        result: Doubles,
        original: Doubles,
    ) -> None:
        """Take in a text: its real tokens [tokens, channels].

        Parameters
        ----------
        text
            Its number.
        place
            The place.
        source, rounded, result
            What float arithmetic makes of the operands, that rounded, and what the integer
            operators make of them.
        original
            Of the float model.
        """
        error = result - rounded
        self.signal[text] += np.square(source).sum()
        self.rounding[text] += np.square(rounded - source).sum()
        self.computing[text] += np.square(error).sum()
        low, high = place.reach
        steps = place.steps(source)
        self.clipped[text] += int(((steps < low - 0.5) | (steps >= high + 0.5)).sum())
        self.entries[text] += source.size
        self.total += float(np.square(result - original).sum())
        self.reference += float(np.square(original).sum())
        self.channels = self.channels + error.sum(axis=0)
        self.tokens += len(source)

    def error(self, rounding: bool) -> Doubles:
        """Squares of one of the two errors, by text."""
        return self.rounding if rounding else self.computing

    def noise(self, rounding: bool) -> float:
        """One of the two errors over the values, of all texts."""
        return ratio(float(self.error(rounding).sum()), float(self.signal.sum()))

    @property
    def constant(self) -> float:
        """Share of the operators' squared error that is the same for all tokens."""
        square = float(self.computing.sum())
        same = float(np.square(self.channels).sum()) / max(self.tokens, 1)
        return same / square if square > 0 else 0.0

    @property
    def mean_error(self) -> Doubles:
        """Of the operators, by channel."""
        return self.channels / max(self.tokens, 1)

    @property
    def clipped_share(self) -> float:
        """Of all entries."""
        return float(self.clipped.sum() / max(int(self.entries.sum()), 1))


def ratio(error: float, signal: float) -> float:
    """Noise over signal, 0 where there is neither."""
    return error / signal if signal > 0 else float(error > 0)


def decibels(error: float, signal: float) -> float | None:
    """Signal over noise; None where one of them is nothing."""
    return float(10 * np.log10(signal / error)) if error > 0 and signal > 0 else None
