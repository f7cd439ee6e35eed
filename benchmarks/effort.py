"""How often each peer runs in a cell, and how long all of it takes.

Short runs repeat many times; long ones, whose single figures are steadier, few times. A run that
takes seconds joins every other round only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .models import Cell, ModelSpec

__all__ = ["Effort", "Turn", "estimate_seconds"]

# Fractions of the machine's limits that peers reach, for the estimate only.
_REACHED = {"int8": 0.6, "fp32": 0.7}
_LOAD_SECONDS = 1.5  # of one worker, on average: starting Python, importing, loading


@dataclass(frozen=True)
class Turn:
    """What a worker is told to do in one turn: seconds, warm-up seconds, least runs."""

    seconds: float
    warm_up: float
    least: int


@dataclass(frozen=True)
class Effort:
    """Settings of a measurement.

    Attributes
    ----------
    rounds : int
        Turns of each peer in a cell.
    seconds : float
        Least length of a turn.
    warm_up : float
        Seconds before the clock starts, for runs shorter than `long_ms`.
    least : int
        Least number of runs in a turn, for runs shorter than `long_ms`.
    long_ms : float
        Runs as long as this need no warm-up and no repetition within a turn: what they lose to
        cold caches at their start is a small part of them.
    rare_ms : float
        Runs as long as this take part in every other round.
    """

    rounds: int = 7
    seconds: float = 0.3
    warm_up: float = 0.1
    least: int = 3
    long_ms: float = 200.0
    rare_ms: float = 600.0

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.least < 1:
            raise ValueError("rounds and least must be at least 1")
        if self.seconds < 0 or self.warm_up < 0:
            raise ValueError("seconds and warm-up must not be negative")

    def turn(self, run_ms: float) -> Turn:
        """The turn of a peer whose run takes `run_ms`."""
        if run_ms >= self.long_ms:
            return Turn(self.seconds, 0.0, 1)
        return Turn(self.seconds, self.warm_up, self.least)

    def joins(self, round_number: int, run_ms: float) -> bool:
        """Whether a peer whose run takes `run_ms` takes part in a round, counted from 0."""
        return run_ms < self.rare_ms or round_number % 2 == 0

    def seconds_of(self, run_ms: float) -> float:
        """Seconds that a peer takes in a cell, loading not counted."""
        turn, run = self.turn(run_ms), run_ms * 1e-3
        # A run that has begun is finished: half of one over, on average.
        length = max(turn.least * run, turn.seconds + run / 2 if turn.seconds > run else 0.0)
        if turn.warm_up > 0:
            length += turn.warm_up + run / 2
        rounds = sum(self.joins(number, run_ms) for number in range(self.rounds))
        return rounds * length


def estimate_seconds(
    effort: Effort,
    work: Iterable[tuple[ModelSpec, Cell, int]],
    precisions: Iterable[str],
    ceilings: Mapping[tuple[str, int], float],
) -> float:
    """Estimate how long cells take, from the limits of the machine.

    Parameters
    ----------
    effort : Effort
        Settings.
    work : iterable of (ModelSpec, Cell, threads)
        The cells.
    precisions : iterable of str
        Precision of each peer, ``"int8"`` or ``"fp32"``.
    ceilings : mapping of (str, int) to float
        GMAC/s by precision and threads.

    Returns
    -------
    float
        Seconds, loading included.
    """
    kinds = list(precisions)
    total = 0.0
    for spec, cell, threads in work:
        for kind in kinds:
            speed = _REACHED[kind] * ceilings[kind, threads]
            run_ms = spec.macs(cell) / speed * 1e-6
            total += _LOAD_SECONDS + 2e-3 * run_ms + effort.seconds_of(run_ms)
    return total
