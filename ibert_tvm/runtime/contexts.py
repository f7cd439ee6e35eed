"""The execution contexts of a library: as many as it has callers at a time, up to a limit."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from ..common.errors import LibraryError
from .engine import Engine, ExecutionContext


class ContextPool:
    """Lends contexts to callers.

    A caller gets the context that was used last, whose buffers are in the caches; one more is made
    where all are lent. At the limit callers wait, and whoever came first goes on first: a caller
    that comes back at once cannot overtake the others.

    Parameters
    ----------
    engine
        Makes contexts, the first one at once: what is wrong with the library shows here.
    owner
        What they belong to, for errors.

    Raises
    ------
    IbertError
        As `Engine.create_context` raises.
    """

    def __init__(self, engine: Engine, owner: str) -> None:
        self._engine: Engine | None = engine
        self._owner = owner
        self._lock = threading.Lock()
        self._none_lent = threading.Condition(self._lock)
        self._idle = [engine.create_context()]
        self._waiting: deque[_Caller] = deque()
        self._lent = 0

    def __len__(self) -> int:
        """How many contexts there are."""
        return len(self._idle) + self._lent

    @property
    def engine(self) -> Engine:
        """What makes the contexts.

        Raises
        ------
        LibraryError
            If `close` was called.
        """
        if self._engine is None:
            raise self._refusal()
        return self._engine

    @contextmanager
    def lent(self) -> Iterator[ExecutionContext]:
        """A context for the duration of a block; see `take`."""
        context = self.take()
        try:
            yield context
        finally:
            self.give_back(context)

    def take(self) -> ExecutionContext:
        """Lend a context, which `give_back` ends.

        Returns
        -------
        ExecutionContext
            Nobody else has it meanwhile.

        Raises
        ------
        LibraryError
            If `close` was called.
        IbertError
            As `Engine.create_context` raises; the next caller tries again.
        """
        context = self._enter()
        if context is not None:
            return context
        try:
            return self.engine.create_context()
        except BaseException:
            self.give_back(None)
            raise

    def give_back(self, context: ExecutionContext | None) -> None:
        """Take a context back, or None if it could not be made; who waits longest is next."""
        with self._lock:
            if self._waiting:
                caller = self._waiting.popleft()
                caller.context, caller.served = context, True
                caller.go_on()
                return
            self._lent -= 1
            if context is not None and self._engine is not None:
                self._idle.append(context)
            if self._lent == 0:
                self._none_lent.notify_all()

    def close(self) -> None:
        """Refuse callers from now on, wait for those that run, and let go of all that there is.

        Callers that wait for a context are refused, too. A second call does nothing.
        """
        with self._lock:
            self._engine = None
            while self._waiting:
                self._waiting.popleft().go_on()
            self._none_lent.wait_for(lambda: self._lent == 0)
            self._idle.clear()

    def _enter(self) -> ExecutionContext | None:
        """Wait until a context may be had; give one that there is, or None to make one."""
        with self._lock:
            if self._lent < self.engine.max_contexts:
                self._lent += 1
                return self._idle.pop() if self._idle else None
            caller = _Caller()
            self._waiting.append(caller)
        try:
            caller.wait()
        except BaseException:  # an interrupt from the keyboard
            with self._lock:
                if caller in self._waiting:
                    self._waiting.remove(caller)
            if caller.served:
                self.give_back(caller.context)
            raise
        if not caller.served:
            raise self._refusal()
        return caller.context

    def _refusal(self) -> LibraryError:
        return LibraryError(
            f"{self._owner} is closed",
            why="`close` was called, or the block that it was loaded for has ended",
            todo="load it again",
        )


class _Caller:
    """A caller that waits.

    Attributes
    ----------
    served
        Whether it may go on; one that goes on and may not is refused.
    context
        What it is given; None to make one.
    """

    def __init__(self) -> None:
        self.served = False
        self.context: ExecutionContext | None = None
        self._turn = threading.Lock()
        self._turn.acquire()

    def wait(self) -> None:
        """Wait for `go_on`."""
        self._turn.acquire()

    def go_on(self) -> None:
        """End its wait."""
        self._turn.release()
