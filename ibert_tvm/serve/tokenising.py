"""Tokenising for many requests: piece by piece, short requests first, and none that was given up.

A tokenizer takes seconds for a mebibyte and cannot be interrupted. So a request is cut into pieces
of a few milliseconds, and requests of one piece go first (see `turns`). Long texts, each a piece of
its own, have a thread of their own.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from ..common.errors import InputError
from ..model.tokenization import Tokenizer
from .batcher import RESTS, ClosedError, Row, Turns

_PIECE = 8192
"""Characters that are tokenised at once, unless one text has more: about 10 ms."""
_AT_ONCE = 1024
"""Characters that are tokenised where they are submitted: about 1 ms, as a thread takes to wake."""
_LEAST = 32
"""Characters that take as long as what every text takes, however short."""
_RESTED = 64
"""Long texts after each of which their thread rests, after a short one came."""

Text = str | tuple[str, str]


class Tokenising:
    """Tokenises for one model.

    Parameters
    ----------
    tokenizer
        Its tokenizer.
    max_tokens
        Tokens of a text.
    max_characters
        Characters of a text or pair.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        max_tokens: int,
        max_characters: int,
    ) -> None:
        self._max_tokens, self._max_characters = max_tokens, max_characters
        self._tokenizer = tokenizer
        self._short, self._long = _Lane(tokenizer), _Lane(tokenizer)

    def submit(self, texts: Sequence[Text], truncate: bool) -> Future[list[Row]]:
        """Queue the texts of a request; short ones are tokenised at once.

        Parameters
        ----------
        texts
            At least one.
        truncate
            Cut off what is too long for the model.

        Returns
        -------
        concurrent.futures.Future
            Gives the tokens of every text; an `InputError` if one cannot be taken. Cancelled, the
            rest is not tokenised.

        Raises
        ------
        InputError
            If a text has too many characters.
        ClosedError
            If `close` was called.
        """
        sizes = [len(text) if isinstance(text, str) else sum(map(len, text)) for text in texts]
        longest = max(sizes)
        if longest > self._max_characters:
            raise InputError(
                f"text {sizes.index(longest)} is too long",
                why=f"it has {longest} characters, and a text has at most {self._max_characters}",
                todo="cut it: the model reads at most "
                f"{self._max_tokens} tokens (see --max-characters)",
            )
        request = _Request(texts, _pieces(sizes), truncate, self._max_tokens)
        if longest > _PIECE:
            self._long.put(request)
            return request.future
        self._long.rests = _RESTED
        if max(sum(sizes), _LEAST * len(texts)) > _AT_ONCE:
            self._short.put(request)
        else:
            self._short.check_open()
            request.advance(self._tokenizer)
        return request.future

    def close(self) -> None:
        """Tokenise what waits, refuse what comes, and end the threads."""
        for lane in (self._short, self._long):
            lane.close()


def _pieces(sizes: Sequence[int]) -> deque[tuple[int, int]]:
    """How many texts are tokenised at once, and their characters."""
    pieces = deque([(0, 0)])
    for size in sizes:
        texts, characters = pieces[-1]
        if texts and characters + size > _PIECE:
            pieces.append((1, size))
        else:
            pieces[-1] = (texts + 1, characters + size)
    return pieces


@dataclass
class _Request:
    """Texts of a request that are not yet tokenised."""

    texts: Sequence[Text]
    pieces: deque[tuple[int, int]]
    truncate: bool
    max_tokens: int
    rows: list[Row] = field(default_factory=list)
    future: Future[list[Row]] = field(default_factory=Future)

    def advance(self, tokenizer: Tokenizer) -> bool:
        """Tokenise a piece; whether there is more to do."""
        try:
            self._tokenise(tokenizer)
        except Exception as error:  # the request's to see
            if self.future.set_running_or_notify_cancel():
                self.future.set_exception(error)
            return False
        if not self.pieces and self.future.set_running_or_notify_cancel():
            self.future.set_result(self.rows)
        return bool(self.pieces)

    def _tokenise(self, tokenizer: Tokenizer) -> None:
        start = len(self.rows)
        texts = self.texts[start : start + self.pieces.popleft()[0]]
        rows, cut = tokenizer.rows(texts, self.max_tokens, allow_empty=True, first=start)
        if cut and not self.truncate:
            raise InputError(
                f"text {start + cut[0]} is too long",
                why=f"a text has at most {self.max_tokens} tokens here",
                todo="shorten it, or send truncate: true to have it cut off",
            )
        self.rows += [(np.array(ids, np.int32), np.array(types, np.int32)) for ids, types in rows]


class _Lane:
    """A thread that tokenises, started when it is needed first."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._changed = threading.Condition()
        self._waiting = Turns[_Request](_PIECE)
        self._thread: threading.Thread | None = None
        self._closed = False
        self.rests = 0

    def put(self, request: _Request) -> None:
        with self._changed:
            self.check_open()
            self._put(request, len(request.pieces) > 1)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="tokenise", daemon=True)
                self._thread.start()
            self._changed.notify()

    def check_open(self) -> None:
        if self._closed:
            raise ClosedError("the server is about to stop", todo="try another one")

    def _put(self, request: _Request, large: bool) -> None:
        _, characters = request.pieces[0]
        self._waiting.put(request, characters, self._waiting.now + characters, large)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                large = self._waiting.large_is_next()
                request = self._waiting.first(large)
                if request is None:
                    return
                self._waiting.take(large)
            if request.future.cancelled():
                continue
            began = time.thread_time()
            if request.advance(self._tokenizer):
                with self._changed:
                    self._put(request, large)
            if self.rests:  # so that short texts and what computes have a processor
                self.rests -= 1
                with self._changed:
                    rest = RESTS * (time.thread_time() - began)
                    self._changed.wait_for(lambda: self._closed, rest)
