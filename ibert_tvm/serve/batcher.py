"""Dynamic batching: texts of many requests, computed together.

Nothing waits for a batch to fill: while one is computed others gather, and the next takes what is
there, up to so many tokens. Libraries that pack tokens compute no padding, so a batch of mixed
lengths costs its tokens; for others `Library.run_tokens` keeps the short ones apart.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import IbertError, InputError
from ..runtime import Library
from ..tokenization import TokenizedBatch

_logger = logging.getLogger(__name__)


class OverloadedError(IbertError):
    """More is waiting than the server takes; the client may try again later."""


class ClosedError(IbertError):
    """The server is about to stop."""


class Batcher:
    """Runs a library for many callers, in one thread of its own.

    Parameters
    ----------
    library : Library
        What runs.
    output : str
        The output that callers get, one row per text.
    batch_tokens : int
        Most tokens of a batch; a longer text is a batch of its own.
    queue_tokens : int
        Most tokens that wait.
    observe : callable, optional
        Called with texts and tokens of every batch that was computed.
    """

    def __init__(
        self,
        library: Library,
        output: str,
        batch_tokens: int,
        queue_tokens: int,
        observe: Callable[[int, int], None] = lambda _texts, _tokens: None,
    ) -> None:
        self._library, self._output = library, output
        self._batch_tokens, self._queue_tokens = batch_tokens, queue_tokens
        self._observe = observe
        self._pad_id = library.metadata.info.pad_token_id
        self._changed = threading.Condition()
        self._waiting: deque[_Text] = deque()
        self._tokens = 0
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="ibert-batcher", daemon=True)
        self._thread.start()

    @property
    def waiting_tokens(self) -> int:
        """Tokens that wait."""
        return self._tokens

    def submit(self, batch: TokenizedBatch) -> Future[NDArray[np.float32]]:
        """Queue the texts of one request.

        Parameters
        ----------
        batch : TokenizedBatch
            Its texts; at least one.

        Returns
        -------
        concurrent.futures.Future
            Gives the output, float32 [texts, ...]. Cancelled, it is not computed any more.

        Raises
        ------
        OverloadedError
            If too many tokens wait.
        InputError
            If it has more tokens than may ever wait.
        ClosedError
            If `close` was called.
        """
        lengths = batch.attention_mask.sum(axis=1)
        total = int(lengths.sum())
        if total > self._queue_tokens:
            raise InputError(
                "the request is too large",
                why=f"it has {total} tokens, and {self._queue_tokens} may wait at a time",
                todo="send its texts in several requests",
            )
        job = _Job(len(lengths))
        texts = [
            _Text(job, row, batch.input_ids[row, :length], batch.token_type_ids[row, :length])
            for row, length in enumerate(lengths)
        ]
        with self._changed:
            if self._closed:
                raise ClosedError("the server is about to stop", todo="try another one")
            if self._tokens + total > self._queue_tokens:
                raise OverloadedError(
                    "too much is waiting",
                    why=f"{self._tokens} tokens are, and {self._queue_tokens} may",
                    todo="try again later",
                )
            self._tokens += total
            self._waiting.extend(texts)
            self._changed.notify()
        return job.future

    def close(self) -> None:
        """Compute what waits, refuse what comes, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while texts := self._next():
            try:
                values = self._compute(texts)
            except Exception as error:  # the callers' to see; the server goes on
                _logger.exception("a batch of %d texts failed", len(texts))
                for text in texts:
                    text.job.fail(error)
                continue
            self._observe(len(texts), sum(len(text.ids) for text in texts))
            for text, value in zip(texts, values, strict=True):
                text.job.put(text.row, value)

    def _next(self) -> list[_Text]:
        """Wait for texts; none when there will be no more."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return []
                texts: list[_Text] = []
                tokens = 0
                while self._waiting:
                    size = len(self._waiting[0].ids)
                    if texts and tokens + size > self._batch_tokens:
                        break
                    text = self._waiting.popleft()
                    self._tokens -= size
                    if not text.job.future.cancelled():
                        texts.append(text)
                        tokens += size
                if texts:
                    return texts

    def _compute(self, texts: Sequence[_Text]) -> NDArray[np.float32]:
        length = max(len(text.ids) for text in texts)
        ids = np.full((len(texts), length), self._pad_id, np.int32)
        mask, types = np.zeros_like(ids), np.zeros_like(ids)
        for row, text in enumerate(texts):
            ids[row, : len(text.ids)] = text.ids
            types[row, : len(text.ids)] = text.types
            mask[row, : len(text.ids)] = 1
        outputs = self._library.run_tokens(TokenizedBatch(ids, mask, types, ()))
        result: NDArray[np.float32] = outputs[self._output]
        return result


class _Job:
    """The texts of one request, and where their results come together."""

    def __init__(self, texts: int) -> None:
        self.future: Future[NDArray[np.float32]] = Future()
        self._rows: list[Any] = [None] * texts
        self._missing = texts

    def put(self, row: int, value: NDArray[np.float32]) -> None:
        self._rows[row] = value
        self._missing -= 1
        if not self._missing and self.future.set_running_or_notify_cancel():
            self.future.set_result(np.stack(self._rows))

    def fail(self, error: Exception) -> None:
        if not self.future.done() and self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


class _Text:
    """One text of a request."""

    __slots__ = ("ids", "job", "row", "types")

    def __init__(
        self, job: _Job, row: int, ids: NDArray[np.int32], types: NDArray[np.int32]
    ) -> None:
        self.job, self.row, self.ids, self.types = job, row, ids, types
