"""What computes batches: a library in this process, or a process of its own that may die."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ibert_tvm.targets.process import ProcessEnded, ProcessError, ServiceProcess

from ..common.errors import IbertError, LibraryError
from ..common.types import Floats, Ints, Longs
from ..model.tokenization import TokenizedBatch
from ..runtime import Library

_logger = logging.getLogger(__name__)

_START_SECONDS = 120.0
"""A library of some gigabytes may have to come from a slow disk."""
_STOP_SECONDS = 10.0


class WorkerLostError(IbertError):
    """The process that computed a batch is gone; the batch may be computed by another one."""


@dataclass(frozen=True)
class Tokens:
    """Texts of a batch as tokens, without padding.

    Attributes
    ----------
    ids, type_ids
        int32 [tokens], one text behind the other.
    lengths
        Tokens of every text, int64 [texts].
    """

    ids: Ints
    type_ids: Ints
    lengths: Longs


Outputs = dict[str, Floats]
"""Rows [texts, ...] by output."""


class Runner(Protocol):
    """Computes batches, one at a time."""

    def start(self) -> None:
        """Make ready; again after a `WorkerLostError`. An `IbertError` if that fails."""
        return

    def run(self, tokens: Tokens) -> Outputs:
        """Compute a batch; `WorkerLostError` if this was lost on the way."""

    def is_alive(self) -> bool:
        """Whether a batch could be computed now."""
        return True

    def close(self) -> None:
        """Let go of everything."""
        return


def compute(library: Library, outputs: Sequence[str], tokens: Tokens) -> Outputs:
    """Run a library on texts of any lengths.

    Parameters
    ----------
    library
        What runs.
    outputs
        Names of outputs with one row per text.
    tokens
        The texts.

    Returns
    -------
    dict of str to numpy.ndarray
        float32 [texts, ...] each, as `Library.run_tokens` gives them.
    """
    shape = (len(tokens.lengths), int(tokens.lengths.max()))
    ids = np.full(shape, library.metadata.info.pad_token_id, np.int32)
    mask, types = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    real = np.arange(shape[1]) < tokens.lengths[:, None]
    ids[real], types[real], mask[real] = tokens.ids, tokens.type_ids, 1
    results = library.run_tokens(TokenizedBatch(ids, mask, types, ()))
    return {name: results[name] for name in outputs}


class LibraryRunner(Runner):
    """Runs a library in this process.

    Parameters
    ----------
    library
        What runs.
    outputs
        Outputs that are asked for.
    """

    def __init__(self, library: Library, outputs: Sequence[str]) -> None:
        self._library, self._outputs = library, outputs

    def run(self, tokens: Tokens) -> Outputs:
        return compute(self._library, self._outputs, tokens)


class ProcessRunner(Runner):
    """Runs a library in a process of its own: whatever ends that one, this one goes on.

    Its weights are pages of the mapped file, which all processes share.

    Parameters
    ----------
    library
        What to run; nothing of it is run here.
    name
        What errors call it.
    outputs
        Outputs that are asked for.
    threads
        As `load_library` takes.
    seconds
        A batch that takes longer is given up, and the process ended.
    """

    def __init__(
        self,
        library: Library,
        name: str,
        outputs: Sequence[str],
        threads: int | None,
        seconds: float,
    ) -> None:
        self._name = name
        path = str(library.metadata.path.absolute())
        self._load = (path, threads, library.device, tuple(outputs))
        self._digest = library.metadata.digest
        self._seconds = seconds
        self._process: ServiceProcess | None = None

    def start(self) -> None:
        """Start the process, which loads the library; the one before is ended.

        Raises
        ------
        LibraryError
            If it cannot be loaded, or the file is another one by now: no text may get a vector of
            another model than the text before.
        """
        self._end()
        process = ServiceProcess("ibert_tvm.serve.worker")
        try:
            digest = process.call("load", self._load, _START_SECONDS, 2 * _START_SECONDS)
        except (TimeoutError, ProcessEnded, ProcessError) as error:
            process.kill()
            raise LibraryError(
                "a worker did not start",
                where=self._name,
                why=str(error) or "it took too long",
                todo="see whether `ibert run` can run the library",
            ) from error
        if digest != self._digest:
            process.kill()
            raise LibraryError(
                "a worker did not start",
                where=self._name,
                why="the file is not the one that this server was started with",
                todo="start the server again",
            )
        self._process = process

    def run(self, tokens: Tokens) -> Outputs:
        """Compute a batch.

        Raises
        ------
        WorkerLostError
            If the process ended meanwhile, or was ended because it took too long.
        """
        if self._process is None:
            raise WorkerLostError("a worker is gone", where=self._name)
        values = (tokens.ids, tokens.type_ids, tokens.lengths)
        try:
            answer: Outputs = self._process.call("run", values, self._seconds, 2 * self._seconds)
        except (TimeoutError, ProcessEnded) as error:
            why = str(error) or f"it took longer than {self._seconds:g} s"
            self._end()
            raise WorkerLostError(
                "a worker was lost", where=self._name, why=why, todo="try again"
            ) from error
        return answer

    def is_alive(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and not self._process.has_ended()

    def close(self) -> None:
        """Let the process end."""
        process, self._process = self._process, None
        if process is not None and not process.leave(_STOP_SECONDS):
            process.kill()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()


def runners_of(
    library: Library, name: str, outputs: Sequence[str], workers: int, seconds: float
) -> list[Runner]:
    """What computes batches of a model.

    Parameters
    ----------
    library
        The model.
    name
        What errors call it.
    outputs
        Outputs that are asked for.
    workers
        Processes, which divide the library's threads among them; 0 to compute in this one.
    seconds
        The longest that a batch may take in a process.

    Returns
    -------
    list of Runner
        At least one, not yet started.
    """
    if workers == 0:
        return [LibraryRunner(library, outputs)]
    metadata = library.metadata
    # Others refuse a number: a GPU has none, and plain C functions run in the caller's thread.
    threaded = metadata.threads
    threads: Any = max(1, library.num_threads // workers) if threaded else None
    return [ProcessRunner(library, name, outputs, threads, seconds) for _ in range(workers)]
