"""Tokenising for many requests: the same tokens, in an order that keeps nobody waiting."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ibert_tvm.common.errors import InputError
from ibert_tvm.model.tokenization import Tokenizer
from ibert_tvm.serve.batcher import ClosedError
from ibert_tvm.serve.tokenising import Tokenising
from tests.processes import PATIENCE
from tests.runtime.conftest import VOCABULARY

LONG = "big " * 2500  # longer than a piece
SLOW = "hello " + LONG
SHORT = "big " * 300  # longer than what is tokenised at once


@pytest.fixture
def tokenizer() -> Tokenizer:
    return Tokenizer({"vocab.txt": "\n".join(VOCABULARY).encode()}, len(VOCABULARY))


@pytest.fixture
def tokenising(tokenizer: Tokenizer) -> Iterator[Tokenising]:
    made = Tokenising(tokenizer, 16, 20000)
    yield made
    made.close()


def test_pieces_give_what_the_tokenizer_gives(tokenising: Tokenising, tokenizer: Tokenizer) -> None:
    texts: list[Any] = [*(["hello small world " * n for n in range(300)]), LONG, ("big", "hello")]
    rows = tokenising.submit(texts, True).result(PATIENCE)
    batch = tokenizer.encode(texts, 16, allow_empty=True)
    assert len(rows) == len(texts)
    for row, (ids, types) in enumerate(rows):
        real = batch.attention_mask[row] == 1
        np.testing.assert_array_equal(ids, batch.input_ids[row][real])
        np.testing.assert_array_equal(types, batch.token_type_ids[row][real])


@pytest.mark.parametrize(
    ("text", "truncate", "message"),
    [
        ("big " * 20, False, "text 700 is too long\n  why: a text has at most 16 tokens"),
        (LONG, False, "text 700 is too long\n  why: a text has at most 16 tokens"),
        ("a" * 20001, True, "text 700 is too long\n  why: it has 20001 characters"),
        ("big \ud83d", True, "text 700 is no Unicode text"),
    ],
)
def test_errors_name_the_text(
    tokenising: Tokenising, text: str, truncate: bool, message: str
) -> None:
    texts = [*["small world " * 3] * 700, text, "big"]
    with pytest.raises(InputError) as caught:
        tokenising.submit(texts, truncate).result(PATIENCE)
    assert str(caught.value).startswith(message)


class Held:
    """A tokenizer that waits for every piece, and notes what it is given."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.entered, self.go_on = threading.Semaphore(0), threading.Semaphore(0)
        self.seen: list[str] = []

    def rows(self, texts: list[str], *arguments: Any, **options: Any) -> Any:
        if texts == [LONG]:
            return self._tokenizer.rows(texts, *arguments, **options)
        self.seen.append(texts[0][:1])
        self.entered.release()
        self.go_on.acquire()
        return self._tokenizer.rows(texts, *arguments, **options)


def test_who_has_little_to_do_goes_first_and_nobody_waits_for_what_was_given_up(
    tokenizer: Tokenizer,
) -> None:
    held = Held(tokenizer)
    tokenising = Tokenising(held, 16, 20000)  # type: ignore[arg-type]
    large = [tokenising.submit([name + " world" * 1000] * 3, True) for name in "hg"]
    assert held.entered.acquire(timeout=PATIENCE)  # the first piece of the first
    small = tokenising.submit(["small " * 200], True)
    given_up = tokenising.submit(["b" * 2000], True)
    given_up.cancel()
    long = tokenising.submit([LONG], True)  # has a thread of its own
    assert len(long.result(PATIENCE)) == 1
    for _ in range(7):
        held.go_on.release()
    assert len(small.result(PATIENCE)) == 1
    assert [len(future.result(PATIENCE)) for future in large] == [3, 3]
    assert held.seen[:2] == ["h", "s"] and sorted(held.seen[2:]) == [*"ggghh"]
    assert held.seen[-2:] != ["h", "h"]  # large ones take turns
    tokenising.close()
    with pytest.raises(ClosedError):
        tokenising.submit(["small"], True)


def test_long_texts_leave_a_processor_to_short_ones_while_these_come(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, rows = [0], tokenizer.rows

    def slowly(texts: list[str], *arguments: Any, **options: Any) -> Any:
        now[0] += 1000 * (texts == [SLOW])
        return rows(texts, *arguments, **options)

    monkeypatch.setattr("ibert_tvm.serve.tokenising.time.thread_time", lambda: now[0])
    monkeypatch.setattr(tokenizer, "rows", slowly)
    tokenising = Tokenising(tokenizer, 16, 20000)
    for text in (LONG, LONG, SHORT, SLOW):
        tokenising.submit([text], True).result(PATIENCE)
    waiting = tokenising.submit([LONG], True)  # for 1000 s
    for _ in range(3):
        tokenising.submit([SHORT], True).result(PATIENCE)
    assert not waiting.done()
    tokenising.close()
    assert len(waiting.result(PATIENCE)) == 1


def test_very_short_texts_wait_for_no_thread(tokenizer: Tokenizer) -> None:
    held = Held(tokenizer)
    tokenising = Tokenising(held, 16, 20000)  # type: ignore[arg-type]
    waiting = tokenising.submit([SHORT], True)
    assert held.entered.acquire(timeout=PATIENCE)
    held.go_on.release()
    assert len(waiting.result(PATIENCE)) == 1
    held.go_on.release()
    assert tokenising.submit(["hello", "big"], True).done()
    held.go_on.release()
    refused = tokenising.submit(["hello " * 40], False)
    assert refused.done() and isinstance(refused.exception(), InputError)
    tokenising.close()
    with pytest.raises(ClosedError):
        tokenising.submit(["hello"], True)
