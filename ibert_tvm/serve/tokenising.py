"""Tokenising for many requests: piece by piece, short requests first, and none that was given up.

A tokenizer takes seconds for a mebibyte and cannot be interrupted. So a request is cut into pieces
of a few milliseconds, and between two pieces one that has less to do goes first: a request's turn
comes as if it had arrived later by the time that its characters may take. Long texts, each a piece
of its own, have a thread and a tokenizer of their own.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from ..common.errors import InputError
from ..model.tokenization import Tokenizer
from .batcher import ClosedError, Row

_PIECE = 8192
"""Characters that are tokenised at once, unless one text has more: about 10 ms."""
_SECONDS_PER_CHARACTER = 20e-6
"""By which a request lets others go first, several times what the slowest tokenizers take."""
_NO_LIMIT = 2**31 - 1

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
        self._short, self._long = _Lane(lambda: tokenizer), _Lane(tokenizer.another)

    def submit(self, texts: Sequence[Text], truncate: bool) -> Future[list[Row]]:
        """Queue the texts of a request.

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
        request = _Request(
            time.monotonic() + sum(sizes) * _SECONDS_PER_CHARACTER,
            next(_NUMBERS),
            texts,
            sizes,
            self._max_tokens if truncate else None,
            self._max_tokens,
        )
        (self._long if longest > _PIECE else self._short).put(request)
        return request.future

    def close(self) -> None:
        """Tokenise what waits, refuse what comes, and end the threads."""
        for lane in (self._short, self._long):
            lane.close()


_NUMBERS = itertools.count()


@dataclass(order=True)
class _Request:
    """Texts of a request that are not yet tokenised, in the order of turns."""

    turn: float
    number: int
    texts: Sequence[Text] = field(compare=False)
    sizes: Sequence[int] = field(compare=False)
    cut: int | None = field(compare=False)
    max_tokens: int = field(compare=False)
    rows: list[Row] = field(compare=False, default_factory=list)
    future: Future[list[Row]] = field(compare=False, default_factory=Future)

    def advance(self, tokenizer: Tokenizer) -> bool:
        """Tokenise a piece; whether that was the last."""
        start = end = len(self.rows)
        size = 0
        while end < len(self.texts) and (end == start or size + self.sizes[end] <= _PIECE):
            size += self.sizes[end]
            end += 1
        batch = tokenizer.encode(
            self.texts[start:end], self.cut or _NO_LIMIT, allow_empty=True, first=start
        )
        for row, length in enumerate(batch.attention_mask.sum(axis=1).tolist()):
            if length > self.max_tokens:
                raise InputError(
                    f"text {start + row} is too long",
                    why=f"a text has at most {self.max_tokens} tokens here",
                    todo="shorten it, or send truncate: true to have it cut off",
                )
            # Copies: a view would keep the padding to the longest of the piece.
            ids, types = batch.input_ids[row, :length], batch.token_type_ids[row, :length]
            self.rows.append((ids.copy(), types.copy()))
        return end == len(self.texts)


class _Lane:
    """A thread that tokenises, started when it is needed first."""

    def __init__(self, tokenizer: Callable[[], Tokenizer]) -> None:
        self._make = tokenizer
        self._changed = threading.Condition()
        self._waiting: list[_Request] = []
        self._thread: threading.Thread | None = None
        self._closed = False

    def put(self, request: _Request) -> None:
        with self._changed:
            if self._closed:
                raise ClosedError("the server is about to stop", todo="try another one")
            heapq.heappush(self._waiting, request)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="tokenise", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        tokenizer: Tokenizer | None = None
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                request = heapq.heappop(self._waiting)
            if request.future.cancelled():
                continue
            try:
                tokenizer = tokenizer or self._make()
                complete = request.advance(tokenizer)
            except Exception as error:  # the request's to see
                if request.future.set_running_or_notify_cancel():
                    request.future.set_exception(error)
                continue
            if not complete:
                with self._changed:
                    heapq.heappush(self._waiting, request)
            elif request.future.set_running_or_notify_cancel():
                request.future.set_result(request.rows)
