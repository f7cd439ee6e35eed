"""Processes that run one library, for many texts: `Encoder.start_multi_process_pool`."""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import repeat
from typing import Any

from ..common.errors import LibraryError
from ..runtime import Library, load_library
from ..runtime.threads import default_threads
from .batches import Part, Text, run_batches

_LARGEST_CHUNK = 5000
_CHUNKS = 10
"""Of a process: enough that all end at about the same time. Both are sentence-transformers'."""
_library: Library | None = None
"""Of a process of the pool."""


def opened_again(path: str, digest: str, options: Mapping[str, Any]) -> Library:
    """Load the library that another process has loaded.

    Parameters
    ----------
    path
        Its file.
    digest
        Of its content.
    options
        Of `load_library`.

    Raises
    ------
    LibraryError
        If it is another one now, or as `load_library` raises.
    """
    library = load_library(path, **options)
    if library.metadata.digest != digest:
        library.close()
        raise LibraryError(
            "the encoder cannot be unpickled",
            where=path,
            why="the file is not the one that it was pickled with",
            todo="make the encoder anew: Encoder(PATH)",
        )
    return library


class Pool(ProcessPoolExecutor):
    """Processes with a library each; its file is in memory once.

    Parameters
    ----------
    library
        What runs.
    devices
        A device for each process; by default as many processes as there are processors. They divide
        the processors among them.
    """

    def __init__(self, library: Library, devices: Sequence[str] | None = None) -> None:
        processors = default_threads()
        given = list(map(str, devices or [library.device] * processors))
        self.processes = len(given)
        several = library.device == "cpu" and library.metadata.threads
        threads = max(1, processors // len(given)) if several else None
        context = multiprocessing.get_context("spawn")
        waiting = context.SimpleQueue()
        for device in given:
            waiting.put(device)
        place = str(library.metadata.path.absolute()), library.metadata.digest
        super().__init__(self.processes, context, _open, (*place, threads, waiting))

    def run(
        self, texts: Sequence[Text], batch_size: int, max_length: int, chunk_size: int | None = None
    ) -> Iterator[Part]:
        """Run texts as `run_batches` does, `chunk_size` of them at a time in a process."""
        wanted = math.ceil(len(texts) / self.processes / _CHUNKS)
        size = chunk_size or max(1, min(wanted, _LARGEST_CHUNK))
        starts = range(0, len(texts), size)
        chunks = [texts[start : start + size] for start in starts]
        results = self.map(_run, chunks, repeat(batch_size), repeat(max_length))
        for start, parts in zip(starts, results, strict=True):
            for part in parts:
                yield replace(part, rows=part.rows + start)


def _open(path: str, digest: str, threads: int | None, devices: Any) -> None:
    global _library
    _library = opened_again(path, digest, {"num_threads": threads, "device": devices.get()})


def _run(texts: Sequence[Text], batch_size: int, max_length: int) -> list[Part]:
    assert _library is not None and _library.tokenizer is not None
    return list(run_batches(_library, _library.tokenizer, texts, batch_size, max_length))
