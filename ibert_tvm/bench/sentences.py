"""Strings in, vectors out: `Encoder` with a library, beside sentence-transformers' own model.

Both do all that a user waits for (tokenising, sorting by length, batches), with as many threads,
and take turns, so that a change of the machine's speed touches both alike.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..common.strict_json import JsonDict
from ..encoder import Encoder
from ..runtime import Library

_LEAST_ROUNDS = 3
_BATCH_SIZE = 32


@dataclass(frozen=True)
class Rate:
    """How fast the texts were turned into vectors.

    Attributes
    ----------
    name
        ``ibert`` or ``sentence-transformers``.
    threads
        Threads that it was given.
    texts
        Texts of a round.
    seconds
        Of every round.
    """

    name: str
    threads: int
    texts: int
    seconds: tuple[float, ...]

    @property
    def per_second(self) -> float:
        """Texts per second, by the median round."""
        return self.texts / statistics.median(self.seconds)

    def to_json(self, first: Rate) -> JsonDict:
        """What was measured, and how many times as fast the first one is."""
        return {
            "name": self.name,
            "threads": self.threads,
            "texts": self.texts,
            "rounds": len(self.seconds),
            "texts_per_second": self.per_second,
            "times_as_fast": first.per_second / self.per_second,
        }


def measure_sentences(
    library: Library, texts: Sequence[str], seconds: float, against: Path | None = None
) -> list[Rate]:
    """Time both on all texts, in turns.

    Parameters
    ----------
    library
        Gives vectors; its number of threads is that of both.
    texts
        What a round encodes.
    seconds
        How long to measure each; three rounds at least.
    against
        Folder of the float model, for sentence-transformers.

    Returns
    -------
    list of Rate
        The library's, and the float model's if there is one.
    """
    encoder = Encoder(library)
    given = list(texts)
    calls: dict[str, Callable[[], object]] = {
        "ibert": lambda: encoder.encode(given, batch_size=_BATCH_SIZE, show_progress_bar=False)
    }
    with _torch_threads(library.num_threads if against is not None else None):
        if against is not None:
            from sentence_transformers import SentenceTransformer

            model = SentenceTransformer(str(against), device="cpu")
            # Both cut long texts off at the same length, so that both compute as many tokens.
            model.max_seq_length = min(
                model.max_seq_length or encoder.max_seq_length, encoder.max_seq_length
            )
            calls["sentence-transformers"] = lambda: model.encode(
                given, batch_size=_BATCH_SIZE, show_progress_bar=False
            )
        for call in calls.values():  # first calls make buffers and choose kernels
            call()
        times: dict[str, list[float]] = {name: [] for name in calls}
        while any(len(store) < _LEAST_ROUNDS or sum(store) < seconds for store in times.values()):
            # In alternating order: the second one finds other caches.
            names = list(calls) if len(times["ibert"]) % 2 == 0 else list(calls)[::-1]
            for name in names:
                started = time.perf_counter()
                calls[name]()
                times[name].append(time.perf_counter() - started)
    return [
        Rate(name, library.num_threads, len(given), tuple(store)) for name, store in times.items()
    ]


@contextmanager
def _torch_threads(count: int | None) -> Iterator[None]:
    """Give torch so many threads in the block; with None it is not imported."""
    if count is None:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
