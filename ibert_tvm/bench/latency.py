"""Latency and throughput of a loaded library."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.random  # an interrupt is lost where its extensions are imported, so not on first use

from ..common.types import Ints

if TYPE_CHECKING:
    from ..model.tokenization import TokenizedBatch
    from ..runtime import Library
    from ..runtime.metadata import LibraryMetadata

# What a library is measured on: full rows of random tokens, or real texts.


@dataclass(frozen=True)
class Batch:
    """Inputs of one call.

    Attributes
    ----------
    inputs
        Arguments of `Library.run`; the first axis of each counts rows.
    tokens
        Tokens that are not padding.
    places
        Tokens including padding.
    """

    inputs: Mapping[str, np.ndarray]
    tokens: int
    places: int

    @property
    def rows(self) -> int:
        """Sequences."""
        return len(next(iter(self.inputs.values())))


def full_batch(metadata: LibraryMetadata, batch: int, seq_len: int, seed: int = 0) -> Batch:
    """Rows of random ids without padding, or random images for a model that takes images.

    Parameters
    ----------
    metadata
        Of the library; its vocabulary bounds the ids, and its padding id is left out.
    batch, seq_len
        Rows, and tokens per row.
    seed
        Of the values.
    """
    info = metadata.info
    random = np.random.default_rng(seed)
    places = batch * seq_len
    if info.image_size is not None:
        pixels = random.standard_normal((batch, *info.image_size), dtype=np.float32)
        return Batch({info.inputs[0]: pixels}, places, places)
    ids = random.integers(0, info.vocab_size, (batch, seq_len))
    ids = np.where(ids == info.pad_token_id, (ids + 1) % info.vocab_size, ids).astype(np.int32)
    return Batch({"input_ids": ids, "attention_mask": np.ones_like(ids)}, places, places)


def text_batches(
    metadata: LibraryMetadata, encoded: TokenizedBatch, batch: int, seq_len: int
) -> list[Batch]:
    """Texts in batches, in their order, padded to `seq_len`; the last ones that fill none are left.

    Parameters
    ----------
    metadata
        Of the library; gives the padding id.
    encoded
        The texts, none longer than `seq_len`.
    batch, seq_len
        Rows of each batch, and its padded length.

    Returns
    -------
    list of Batch
        At least one: where there are fewer texts than rows, they are repeated.
    """
    ids, mask = encoded.input_ids, encoded.attention_mask
    count = max(len(ids) // batch * batch, batch)
    rows = np.resize(np.arange(len(ids)), count)
    shape = (count, seq_len)
    padded: Ints = np.full(shape, metadata.info.pad_token_id, dtype=np.int32)
    real: Ints = np.zeros(shape, dtype=np.int32)
    length = min(seq_len, ids.shape[1])
    padded[:, :length] = ids[rows, :length]
    real[:, :length] = mask[rows, :length]
    parts: Sequence[slice] = [slice(start, start + batch) for start in range(0, count, batch)]
    return [
        Batch({"input_ids": padded[p], "attention_mask": real[p]}, int(real[p].sum()), real[p].size)
        for p in parts
    ]


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
