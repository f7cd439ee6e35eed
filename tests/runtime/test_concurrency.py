"""Calls from several threads on one library: exact, independent, and done before it closes."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ibert_tvm.common.errors import InputError, LibraryError
from ibert_tvm.runtime import Library, load_library
from tests.processes import PATIENCE

from .conftest import VOCABULARY, TinyModel

CALLERS = 6
CONTEXTS = 3


@pytest.fixture
def library(library_path: Path) -> Library:
    loaded = load_library(library_path, num_threads=2)
    loaded.engine.max_contexts = CONTEXTS  # whatever this machine has
    return loaded


def _inputs(batch: int, length: int, seed: int) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(seed)
    return {
        "input_ids": rng.integers(0, len(VOCABULARY), (batch, length)),
        "attention_mask": rng.integers(0, 2, (batch, length)),
        "token_type_ids": rng.integers(0, 2, (batch, length)),
    }


def _check(library: Library, tiny: TinyModel, batch: int, length: int, seed: int) -> None:
    inputs = _inputs(batch, length, seed)
    outputs = library.run(**inputs, dequantize=False)
    for name, expected in tiny.reference(*inputs.values()).items():
        np.testing.assert_array_equal(outputs[name].values, expected)


def _in_threads(work: Callable[[int], None], count: int = CALLERS) -> list[BaseException]:
    """Run `work(number)` in threads; return what they raised."""
    failures: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    return failures


def test_every_caller_gets_its_own_answers(library: Library, tiny: TinyModel) -> None:
    """Of all shapes, with wrong calls in between, which harm nobody."""

    def work(number: int) -> None:
        for turn in range(25):
            batch, length = 1 + (number + turn) % 5, 1 + (7 * number + turn) % 16
            _check(library, tiny, batch, length, seed=1000 * number + turn)
            if turn % 5 == number % 5:
                with pytest.raises(InputError):
                    library.run([[len(VOCABULARY)]])

    assert _in_threads(work) == []
    assert len(library.contexts) <= CONTEXTS


def test_an_error_in_the_middle_of_a_call_gives_its_context_back(
    library: Library, tiny: TinyModel
) -> None:
    with library.contexts.lent() as context:
        functions = context.functions
    function, calls = functions["main_b1_s8"], itertools.count()

    def broken(*arguments: Any) -> Any:
        if next(calls) % 2:
            raise MemoryError("no memory")
        return function(*arguments)

    functions["main_b1_s8"] = broken

    def work(number: int) -> None:
        for turn in range(20):
            try:
                _check(library, tiny, 1, 8, seed=100 * number + turn)
            except MemoryError:
                _check(library, tiny, 1, 16, seed=100 * number + turn)

    assert _in_threads(work) == []
    assert next(calls) > 2
    assert len(library.contexts) <= CONTEXTS


def test_texts_of_several_lengths_are_encoded_at_the_same_time(library: Library) -> None:
    texts = ["hello small world " * 5]
    expected = {limit: library.encode(texts, limit).input_ids for limit in (4, 9, 16)}

    def work(number: int) -> None:
        limit = (4, 9, 16)[number % 3]
        for _ in range(100):
            np.testing.assert_array_equal(library.encode(texts, limit).input_ids, expected[limit])

    assert _in_threads(work) == []


def test_closing_lets_running_calls_end(library: Library, tiny: TinyModel) -> None:
    started = threading.Barrier(CALLERS + 1)
    ended: list[str] = []

    def work(number: int) -> None:
        _check(library, tiny, 1, 8, seed=number)
        started.wait(PATIENCE)
        for turn in itertools.count():
            try:
                _check(library, tiny, 4, 8, seed=1000 * number + turn)
            except LibraryError as error:
                ended.append(str(error))
                return

    threads = [threading.Thread(target=work, args=(number,)) for number in range(CALLERS)]
    for thread in threads:
        thread.start()
    started.wait(PATIENCE)
    library.close()
    assert len(library.contexts) == 0
    for thread in threads:
        thread.join(PATIENCE)
    message = (
        f"the library {library.metadata.path} is closed\n"
        "  why: `close` was called, or the block that it was loaded for has ended\n"
        "  what to do: load it again"
    )
    assert ended == [message] * CALLERS


def test_a_library_is_closed_at_the_end_of_its_block(library_path: Path) -> None:
    with load_library(library_path, num_threads=1) as library:
        library.run([[4, 5]])
    with pytest.raises(LibraryError, match=r"is closed\n"):
        library.run([[4, 5]])


@pytest.mark.parametrize(
    ("wanted", "shares"),
    [(4, [4, 2, 1, 1, 1]), (2, [2, 2, 1, 1, 1]), (1, [1, 1, 1, 1, 1]), (8, [8, 4, 2, 2, 1])],
)
def test_callers_divide_the_processors(
    library: Library, monkeypatch: pytest.MonkeyPatch, wanted: int, shares: list[int]
) -> None:
    pool = library.engine.pool
    monkeypatch.setattr(pool, "_processors", 4)
    with ExitStack() as stack:
        assert [stack.enter_context(pool.used(wanted)) for _ in shares] == shares
    with pool.used(wanted) as count:
        assert count == wanted
