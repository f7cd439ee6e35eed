"""Dynamic batching: texts of many requests, computed together.

Nothing waits for a batch to fill: while one is computed others gather, and the next takes what is
there, up to so many tokens. Libraries that pack tokens compute no padding, so a batch of mixed
lengths costs its tokens; for others `Library.run_tokens` keeps the short ones apart.

Texts of small requests go before those of large ones. While small ones come, these are computed a
slice at a time, so that the next small one waits for no more than that, and rest after each slice
for as long as it took: processors are then free for all else that a small one needs.

What computes a batch may be lost on the way. Its texts are then computed again, each alone; one
that is lost twice is the likely reason, and its request is told to try again.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from ..common.errors import IbertError, InputError
from ..common.types import Floats, Ints
from .runners import Runner, Tokens, WorkerLostError

# The order in which requests have what they share, so that no small one waits for large ones.

Item = TypeVar("Item")


class Turns(Generic[Item]):
    """Parts of requests that wait.

    Parts of small requests go first, but a large one has its turn after some of these. Large ones
    share what is left by self-clocked fair queueing (Golestani, INFOCOM 1994): the turn of a part
    is that of the part taken last when its request came, and all that the request has up to there.

    Parameters
    ----------
    most_passed
        Most of small requests, in units of size, that goes before a large one that waits.

    Attributes
    ----------
    now
        Turn of the part that was taken last.
    sizes
        Of all parts of small and of large requests.
    """

    def __init__(self, most_passed: int) -> None:
        self.now = 0
        self._most_passed, self._passed = most_passed, 0
        self._waiting: tuple[list[tuple[int, int, int, Item]], ...] = ([], [])
        self.sizes = [0, 0]
        self._numbers = itertools.count()

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return any(self._waiting)

    def put(self, item: Item, size: int, turn: int, large: bool) -> None:
        """Let a part wait for its turn."""
        heapq.heappush(self._waiting[large], (turn, next(self._numbers), size, item))
        self.sizes[large] += size

    def large_is_next(self) -> bool:
        """Whether the next part is one of a large request."""
        small, large = self._waiting
        return bool(large) and (not small or self._passed >= self._most_passed)

    def first(self, large: bool) -> Item | None:
        """The first part of small or of large requests."""
        return self._waiting[large][0][-1] if self._waiting[large] else None

    def take(self, large: bool) -> None:
        """Take that part out."""
        turn, _, size, _ = heapq.heappop(self._waiting[large])
        self.sizes[large] -= size
        self.now = max(self.now, turn)
        self._passed = 0 if large else self._passed + size

    def clear(self) -> list[Item]:
        """Take all out."""
        items = [part[-1] for parts in self._waiting for part in parts]
        for parts in self._waiting:
            parts.clear()
        self.sizes = [0, 0]
        return items


_logger = logging.getLogger(__name__)

_TRIES = 2
"""How often a text is computed, if what computes it is lost."""
_SMALL, _SLICE = 512, 128
"""Tokens that a small request has at most, and a slice of large ones."""
_SLICED = 512
"""Slices of large requests after a small one came, before a whole batch of these is computed."""
RESTS = 3
"""For how many times as long as a piece of a large request took the next one waits."""
_MOST_PASSED = 512
"""Tokens of small requests that go before a large one which waits."""
_LOOK_SECONDS = 1.0
"""How long a worker that has nothing to do may be gone before that is seen."""
_PAUSES = (0.1, 5.0)
"""Seconds before a worker that did not start is started again: at first, and at most."""


Row = tuple[Ints, Ints]
"""Ids and types of a text's tokens."""


class OverloadedError(IbertError):
    """More is waiting than the server takes; the client may try again later."""


class ClosedError(IbertError):
    """The server is about to stop."""


class UnavailableError(IbertError):
    """There is nothing that computes; the server tries to start it again."""


class Batcher:
    """Computes for many callers, in one thread for everything that computes.

    Parameters
    ----------
    runners
        What computes, started here.
    batch_tokens
        Most tokens of a batch; a longer text is a batch of its own.
    queue_tokens
        Most tokens that wait.
    observe
        Called with texts and tokens of every batch that was computed.
    restarted
        Called whenever a runner that was lost is started again.

    Raises
    ------
    IbertError
        If a runner does not start.
    """

    def __init__(
        self,
        runners: Sequence[Runner],
        batch_tokens: int,
        queue_tokens: int,
        observe: Callable[[int, int], None] = lambda _texts, _tokens: None,
        restarted: Callable[[], None] = lambda: None,
    ) -> None:
        self._runners = tuple(runners)
        self._batch_tokens, self._queue_tokens = batch_tokens, queue_tokens
        self._observe, self._restarted = observe, restarted
        self._changed = threading.Condition()
        self._waiting = Turns[_Text](_MOST_PASSED)
        self._slices_left = 0
        self._rested = 0.0  # when large ones have
        self._closed = False
        self._failing: set[Runner] = set()
        try:
            for runner in self._runners:
                runner.start()
        except BaseException:
            self._close_runners()
            raise
        self._threads = [
            threading.Thread(target=self._work, args=(runner,), name="ibert-batcher", daemon=True)
            for runner in self._runners
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting_tokens(self) -> int:
        """Tokens that wait."""
        return sum(self._waiting.sizes)

    @property
    def alive(self) -> int:
        """How many runners could compute now."""
        return sum(runner.is_alive() for runner in self._runners)

    def submit(self, rows: Sequence[Row], output: str) -> Future[Floats]:
        """Queue the texts of one request.

        Parameters
        ----------
        rows
            Its texts; at least one.
        output
            Which output it gets.

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
        UnavailableError
            If nothing computes, and the last attempt to start it failed.
        ClosedError
            If `close` was called.
        """
        total = sum(len(ids) for ids, _ in rows)
        if total > self._queue_tokens:
            raise InputError(
                "the request is too large",
                why=f"it has {total} tokens, and {self._queue_tokens} may wait at a time",
                todo="send its texts in several requests",
            )
        job = _Job(len(rows), output, large=total > _SMALL)
        with self._changed:
            if self._closed:
                raise _closed()
            if len(self._failing) == len(self._runners):
                raise _unavailable()
            if self.waiting_tokens + total > self._queue_tokens:
                raise OverloadedError(
                    "too much is waiting",
                    why=f"{self.waiting_tokens} tokens are, and {self._queue_tokens} may",
                    todo="try again later",
                )
            if not job.large:
                self._slices_left = _SLICED
            turn = self._waiting.now
            for row, (ids, types) in enumerate(rows):
                turn += len(ids)
                self._put(_Text(job, row, ids, types), turn)
            self._changed.notify_all()
        return job.future

    def _put(self, text: _Text, turn: int) -> None:
        self._waiting.put(text, len(text.ids), turn, text.job.large)

    def close(self) -> None:
        """Compute what waits, refuse what comes, and end the threads and the runners."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._refuse_waiting(_closed())
        self._close_runners()

    def _close_runners(self) -> None:
        for runner in self._runners:
            runner.close()

    def _work(self, runner: Runner) -> None:
        """The thread of a runner."""
        while True:
            texts = self._next(runner)
            if texts is None:
                return
            if not texts:  # it ended while it had nothing to do
                if not self._start_again(runner):
                    return
                continue
            began = time.monotonic()
            try:
                self._compute(runner, texts)
            except WorkerLostError as error:
                self._again([text for text in texts if not text.done], error)
                if not self._start_again(runner):
                    return
            finally:
                if texts[0].job.large:
                    self._rest_after(time.monotonic() - began)

    def _compute(self, runner: Runner, texts: Sequence[_Text]) -> None:
        """Compute a batch; one that fails in halves, so that a text that cannot be fails alone."""
        try:
            outputs = runner.run(_packed(texts))
        except WorkerLostError:
            raise
        except Exception as error:  # the caller's to see; the server goes on
            if len(texts) == 1:
                _logger.exception("a text of %d tokens failed", len(texts[0].ids))
                texts[0].job.fail(error)
                texts[0].done = True
                return
        else:
            self._observe(len(texts), sum(len(text.ids) for text in texts))
            for row, text in enumerate(texts):
                text.job.put(text.row, outputs[text.job.output][row])
                text.done = True
            return
        middle = len(texts) // 2
        self._compute(runner, texts[:middle])
        self._compute(runner, texts[middle:])

    def _next(self, runner: Runner) -> list[_Text] | None:
        """Wait for texts: None when there will be no more, none when the runner is gone."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._waiting or self._closed, _LOOK_SECONDS)
                if self._closed and not self._waiting:
                    return None
                if not runner.is_alive():
                    return []
                if (rest := self._rest()) > 0:
                    self._changed.wait(min(rest, _LOOK_SECONDS))
                    continue
                texts = self._batch()
                if self._waiting:  # for another runner
                    self._changed.notify_all()
                if texts:
                    return texts

    def _rest_after(self, seconds: float) -> None:
        """Let large ones rest after a slice that took so long."""
        with self._changed:
            self._rested = time.monotonic() + RESTS * seconds
            self._changed.notify_all()

    def _rest(self) -> float:
        """For how many seconds what waits is not computed, because it is of large requests."""
        if self._closed or not self._slices_left or self._waiting.first(large=False) is not None:
            return 0.0
        return self._rested - time.monotonic()

    def _batch(self) -> list[_Text]:
        """Take texts in their turns, as many as are computed at once."""
        # A share: what one runner took alone, the others would wait for.
        large = self._waiting.large_is_next()
        most = min(self._batch_tokens, -(-self._waiting.sizes[large] // len(self._runners)))
        slicing = large and self._slices_left > 0
        if slicing:
            self._slices_left -= 1
            most = min(most, _SLICE)
        texts: list[_Text] = []
        tokens = 0
        while (text := self._waiting.first(large)) is not None:
            size = len(text.ids)
            # What was lost before may be the reason for it, and is computed alone.
            alone = any(one.tries for one in (*texts[:1], text))
            if texts and (alone or tokens + size > most):
                break
            self._waiting.take(large)
            if not text.job.future.done():  # given up, or failed with another of its texts
                texts.append(text)
                tokens += size
        if slicing and texts:
            self._rested = math.inf  # one at a time, until `_rest_after`
        return texts

    def _again(self, texts: Sequence[_Text], error: WorkerLostError) -> None:
        """Put texts back to the front, or fail those that were there before."""
        _logger.warning("%d texts are computed again: %s", len(texts), error)
        with self._changed:
            for text in texts:
                text.tries += 1
                if text.tries < _TRIES:
                    self._put(text, 0)
            self._changed.notify_all()
        for text in texts:
            if text.tries >= _TRIES:
                text.job.fail(error)

    def _start_again(self, runner: Runner) -> bool:
        """Start a runner that was lost, however often that takes; False when that is too late."""
        pause, longest = _PAUSES
        while True:
            self._restarted()
            try:
                runner.start()
            except IbertError as error:
                _logger.error("%s", error)
            else:
                with self._changed:
                    self._failing.discard(runner)
                return True
            with self._changed:
                self._failing.add(runner)
                none = len(self._failing) == len(self._runners)
            if none:
                self._refuse_waiting(_unavailable())
            with self._changed:
                if self._changed.wait_for(lambda: self._closed, pause):
                    return False
            pause = min(2 * pause, longest)

    def _refuse_waiting(self, error: IbertError) -> None:
        with self._changed:
            texts = self._waiting.clear()
        for text in texts:
            text.job.fail(error)


def _closed() -> ClosedError:
    return ClosedError("the server is about to stop", todo="try another one")


def _unavailable() -> UnavailableError:
    return UnavailableError(
        "the model cannot be computed now",
        why="its workers do not start; the server's log says why, and it goes on trying",
        todo="try again later",
    )


def _packed(texts: Sequence[_Text]) -> Tokens:
    return Tokens(
        np.concatenate([text.ids for text in texts]),
        np.concatenate([text.types for text in texts]),
        np.array([len(text.ids) for text in texts], np.int64),
    )


class _Job:
    """The texts of one request, and where their results come together from several threads."""

    def __init__(self, texts: int, output: str, large: bool) -> None:
        self.future: Future[Floats] = Future()
        self.output, self.large = output, large
        self._rows: list[Any] = [None] * texts
        self._missing = texts
        self._lock = threading.Lock()

    def put(self, row: int, value: Floats) -> None:
        with self._lock:
            self._rows[row] = value
            self._missing -= 1
            complete = not self._missing
        # Where one text failed another is missing for ever: the future is set once.
        if complete and self.future.set_running_or_notify_cancel():
            self.future.set_result(np.stack(self._rows))

    def fail(self, error: Exception) -> None:
        with self._lock:
            if not self.future.done() and self.future.set_running_or_notify_cancel():
                self.future.set_exception(error)


@dataclass(slots=True)
class _Text:
    """One text of a request."""

    job: _Job
    row: int
    ids: Ints
    types: Ints
    tries: int = 0
    done: bool = False
