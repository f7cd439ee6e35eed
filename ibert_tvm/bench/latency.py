"""Latency and throughput of a loaded library."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..runtime import Library
    from .inputs import Batch


@dataclass(frozen=True)
class Latency:
    """Times of calls, in milliseconds, by batch.

    Attributes
    ----------
    times_ms
        All calls on each batch.
    tokens
        Real tokens of each batch.
    rows
        Sequences per batch.
    """

    times_ms: tuple[tuple[float, ...], ...]
    tokens: tuple[int, ...]
    rows: int

    @property
    def all_ms(self) -> list[float]:
        """Times of all calls, sorted."""
        return sorted(value for times in self.times_ms for value in times)

    @property
    def median_ms(self) -> float:
        """Median of all calls."""
        return statistics.median(self.all_ms)

    @property
    def min_ms(self) -> float:
        """The fastest call."""
        return self.all_ms[0]

    @property
    def p90_ms(self) -> float:
        """The time that nine calls of ten do not exceed."""
        times = self.all_ms
        return times[max(0, -(-9 * len(times) // 10) - 1)]

    def to_json(self) -> dict[str, float]:
        """All that the times say."""
        return {
            "runs": len(self.all_ms),
            "median_ms": self.median_ms,
            "min_ms": self.min_ms,
            "p90_ms": self.p90_ms,
            "sequences_per_second": self.sequences_per_second,
            "tokens_per_second": self.tokens_per_second,
        }

    @property
    def _seconds_per_pass(self) -> float:
        """Time of one call on every batch: the median of each, so that no outlier counts."""
        return sum(statistics.median(times) for times in self.times_ms) * 1e-3

    @property
    def sequences_per_second(self) -> float:
        """Rows per second."""
        return self.rows * len(self.times_ms) / self._seconds_per_pass

    @property
    def tokens_per_second(self) -> float:
        """Real tokens per second; padding does not count."""
        return sum(self.tokens) / self._seconds_per_pass


def measure_latency(
    library: Library, batches: Sequence[Batch], seconds: float, least: int = 10
) -> Latency:
    """Time the public call, input checks included, on each batch in turn.

    Parameters
    ----------
    library
        The library.
    batches
        All of the same number of rows.
    seconds
        How long to measure; a tenth of it, and one pass at least, is spent on warming up before.
    least
        Least number of calls altogether, and one on each batch, however long they take.
    """
    warm_until = time.perf_counter() + seconds / 10
    while True:
        for batch in batches:
            library.run(**batch.inputs, dequantize=False)
        if time.perf_counter() >= warm_until:
            break
    times: list[list[float]] = [[] for _ in batches]
    calls = 0
    end = time.perf_counter() + seconds
    while calls < max(least, len(batches)) or time.perf_counter() < end:
        index = calls % len(batches)
        start = time.perf_counter_ns()
        library.run(**batches[index].inputs, dequantize=False)
        times[index].append((time.perf_counter_ns() - start) * 1e-6)
        calls += 1
    return Latency(
        tuple(tuple(part) for part in times),
        tuple(batch.tokens for batch in batches),
        batches[0].rows,
    )
