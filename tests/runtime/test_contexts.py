"""Lending contexts to callers: reuse, the limit, turns, errors, and the end of a library."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from ibert_tvm.common.errors import LibraryError
from ibert_tvm.runtime.library import ContextPool
from tests.processes import PATIENCE, wait_until

_CLOSED = (
    "the library model.so is closed\n"
    "  why: `close` was called, or the block that it was loaded for has ended\n"
    "  what to do: load it again"
)


class _Engine:
    """Makes contexts that are numbers."""

    device = "cpu"

    def __init__(self, limit: int) -> None:
        self.max_contexts = limit
        self.made = 0
        self.failure: Exception | None = None

    def create_context(self) -> int:
        if self.failure is not None:
            raise self.failure
        self.made += 1
        return self.made


def _pool(engine: _Engine) -> ContextPool:
    return ContextPool(engine, "the library model.so")


def _start(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_one_caller_always_has_the_same_context() -> None:
    engine = _Engine(8)
    pool = _pool(engine)
    assert (engine.made, len(pool)) == (1, 1)
    for _ in range(5):
        with pool.lent() as context:
            assert context == 1
    assert (engine.made, len(pool)) == (1, 1)


def test_as_many_contexts_as_callers_and_the_last_one_is_lent_first() -> None:
    engine = _Engine(8)
    pool = _pool(engine)
    with pool.lent() as first:
        with pool.lent() as second, pool.lent() as third:
            assert (first, second, third) == (1, 2, 3)
        with pool.lent() as again:
            assert again == 2
    assert (engine.made, len(pool)) == (3, 3)


def test_at_the_limit_whoever_came_first_goes_on_first() -> None:
    engine = _Engine(1)
    pool = _pool(engine)
    order: list[str] = []

    def call(name: str) -> None:
        with pool.lent() as context:
            assert context == 1
            order.append(name)

    with pool.lent():
        threads = []
        for count, name in enumerate("abc", start=1):
            threads.append(_start(lambda name=name: call(name)))
            wait_until(lambda count=count: len(pool._waiting) == count)
    call("late")
    for thread in threads:
        thread.join(PATIENCE)
    assert order == ["a", "b", "c", "late"]
    assert engine.made == 1


def test_an_error_of_a_caller_gives_the_context_back() -> None:
    pool = _pool(_Engine(1))
    with pytest.raises(ZeroDivisionError), pool.lent():
        raise ZeroDivisionError
    with pool.lent() as context:
        assert context == 1


def test_a_context_that_cannot_be_made_takes_no_place() -> None:
    engine = _Engine(2)
    pool = _pool(engine)
    with pool.lent():
        engine.failure = MemoryError("no memory")
        with pytest.raises(MemoryError, match="no memory"), pool.lent():
            pass
        engine.failure = None
        with pool.lent() as second:
            assert second == 2
    assert len(pool) == 2


def test_a_caller_that_waits_makes_the_context_that_another_could_not() -> None:
    engine = _Engine(2)
    pool = _pool(engine)
    got: list[int] = []
    making, go_on = threading.Event(), threading.Event()

    def fail() -> int:
        making.set()
        assert go_on.wait(PATIENCE)
        del engine.create_context  # from now on the class's
        raise MemoryError("no memory")

    def unlucky() -> None:
        with pytest.raises(MemoryError), pool.lent():
            pass

    def call() -> None:
        with pool.lent() as context:
            got.append(context)

    with pool.lent():
        engine.create_context = fail  # type: ignore[method-assign]
        first = _start(unlucky)
        assert making.wait(PATIENCE)
        second = _start(call)
        wait_until(lambda: len(pool._waiting) == 1)
        go_on.set()
        first.join(PATIENCE)
        second.join(PATIENCE)
    assert got == [2]


def test_closing_waits_for_callers_and_refuses_all_others() -> None:
    pool = _pool(_Engine(1))
    events: list[str] = []

    def wait() -> None:
        with pytest.raises(LibraryError) as caught, pool.lent():
            pass
        events.append(str(caught.value))

    def close() -> None:
        pool.close()
        events.append("closed")

    with pool.lent():
        waiting = _start(wait)
        wait_until(lambda: len(pool._waiting) == 1)
        closing = _start(close)
        waiting.join(PATIENCE)  # is refused although nobody has given a context back
        with pytest.raises(LibraryError) as caught, pool.lent():
            pass
        assert str(caught.value) == _CLOSED
        assert events == [_CLOSED]
    closing.join(PATIENCE)
    assert events == [_CLOSED, "closed"]
    assert len(pool) == 0
    pool.close()


def test_many_callers_never_share_a_context() -> None:
    engine = _Engine(3)
    pool = _pool(engine)
    held: set[int] = set()
    failures: list[str] = []

    def call() -> None:
        for _ in range(300):
            with pool.lent() as context:
                if context in held:
                    failures.append(f"{context} is lent twice")
                held.add(context)
                time.sleep(0)
                held.remove(context)

    threads = [_start(call) for _ in range(8)]
    for thread in threads:
        thread.join(PATIENCE)
    assert failures == []
    assert engine.made == len(pool) <= 3
