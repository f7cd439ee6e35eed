"""Batches that are lost on the way: every request is answered with its own rows, or told so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace

import numpy as np
import pytest

from ibert_tvm.common.errors import LibraryError
from ibert_tvm.serve.batcher import RESTS, Batcher, ClosedError, Row, UnavailableError
from ibert_tvm.serve.runners import Outputs, Tokens, WorkerLostError
from tests.processes import PATIENCE, wait_until
from tests.snapshots import Messages


class Sums:
    """Computes the sum of a text's ids, and is lost whenever it is told to be."""

    def __init__(self) -> None:
        self.losses = 0
        self.failing_starts = 0
        self.poison: int | None = None
        self.refused: int | None = None
        self.alive = False
        self.batches: list[list[int]] = []
        self.gate: threading.Event | None = None
        self.entered = threading.Event()

    def start(self) -> None:
        if self.failing_starts:
            self.failing_starts -= 1
            raise LibraryError("a worker did not start")
        self.alive = True

    def run(self, tokens: Tokens) -> Outputs:
        self.entered.set()
        if self.gate is not None:
            self.gate.wait(PATIENCE)
        self.batches.append(tokens.ids.tolist())
        if self.refused in tokens.ids.tolist():
            raise ValueError("a text that cannot be computed")
        if self.losses or self.poison in tokens.ids.tolist():
            self.losses = max(0, self.losses - 1)
            self.alive = False
            raise WorkerLostError("a worker was lost")
        texts = np.split(tokens.ids, np.cumsum(tokens.lengths)[:-1])
        return {"sum": np.array([[text.sum()] for text in texts], np.float32)}

    def is_alive(self) -> bool:
        return self.alive

    def close(self) -> None:
        self.alive = False


def texts(*rows: list[int]) -> list[Row]:
    return [(np.array(row, np.int32), np.zeros(len(row), np.int32)) for row in rows]


Make = Callable[..., Batcher]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setattr("ibert_tvm.serve.batcher._PAUSES", (0.01, 0.01))
    monkeypatch.setattr("ibert_tvm.serve.batcher._LOOK_SECONDS", 0.01)
    batchers = []

    def make(*runners: Sums, batch: int = 100, queue: int = 1000, **hooks: object) -> Batcher:
        batchers.append(Batcher(runners, batch, queue, **hooks))  # type: ignore[arg-type]
        return batchers[-1]

    yield make
    for batcher in batchers:
        batcher.close()


def sums(future: Future[np.ndarray]) -> list[float]:
    return [row[0] for row in future.result(PATIENCE).tolist()]


def test_a_lost_batch_is_computed_again(made: Make) -> None:
    runner, lost = Sums(), []
    batcher = made(runner, restarted=lambda: lost.append(1))
    runner.losses = 1
    assert sums(batcher.submit(texts([1, 2], [3], [4, 5, 6]), "sum")) == [3, 3, 15]
    assert runner.batches == [[1, 2, 3, 4, 5, 6], [1, 2], [3], [4, 5, 6]]  # one may be the reason
    assert (lost, batcher.waiting_tokens, batcher.alive) == ([1], 0, 1)


def test_what_is_lost_twice_is_refused_and_the_next_is_answered(made: Make) -> None:
    runner = Sums()
    runner.poison = 7
    batcher = made(runner)
    with pytest.raises(WorkerLostError):
        batcher.submit(texts([1], [7]), "sum").result(PATIENCE)
    assert sums(batcher.submit(texts([2], [3]), "sum")) == [2, 3]
    assert runner.batches == [[1, 7], [1], [7], [2, 3]]
    assert batcher.waiting_tokens == 0


@pytest.mark.parametrize("kind", ["poison", "refused"])
def test_a_text_that_cannot_be_computed_fails_alone(made: Make, kind: str) -> None:
    runner = Sums()
    setattr(runner, kind, 7)
    runner.gate = threading.Event()
    batcher = made(runner)
    held = batcher.submit(texts([0]), "sum")  # the others come together meanwhile
    assert runner.entered.wait(PATIENCE)
    answers = [batcher.submit(texts([n], [10 * n]), "sum") for n in range(1, 13)]
    runner.gate.set()
    assert sums(held) == [0]
    for n, answer in enumerate(answers, 1):
        if n == 7:
            with pytest.raises(WorkerLostError if kind == "poison" else ValueError):
                answer.result(PATIENCE)
        else:
            assert sums(answer) == [n, 10 * n]
    assert sum(7 in batch for batch in runner.batches) <= 6  # of 24 texts
    assert batcher.waiting_tokens == 0


def test_nobody_waits_for_what_does_not_start(messages: Messages, made: Make) -> None:
    runner = Sums()
    batcher = made(runner)
    runner.losses, runner.failing_starts = 1, 5
    with messages.raises(UnavailableError):
        batcher.submit(texts([1]), "sum").result(PATIENCE)

    def answered() -> bool:  # it is alive a moment before requests are taken
        try:
            return sums(batcher.submit(texts([4, 5]), "sum")) == [9]
        except UnavailableError:
            return False

    wait_until(answered)


def test_one_of_two_takes_over(made: Make) -> None:
    first, second = Sums(), Sums()
    batcher = made(first, second)
    for runner in (first, second):
        runner.gate = threading.Event()
    answer = batcher.submit(texts([1], [2], [3], [4]), "sum")
    first.losses, first.failing_starts = 1, 10**6
    assert all(runner.entered.wait(PATIENCE) for runner in (first, second))
    for runner in (first, second):
        assert runner.gate is not None
        runner.gate.set()
    assert sums(answer) == [1, 2, 3, 4]
    assert batcher.alive == 1
    first.failing_starts = 0


def test_two_divide_what_waits(made: Make) -> None:
    runners = [Sums(), Sums()]
    batcher = made(*runners)
    for runner in runners:
        runner.gate = threading.Event()
    answers = [batcher.submit(texts(*[[n] for n in range(m, m + 8)]), "sum") for m in range(50)]
    assert all(runner.entered.wait(PATIENCE) for runner in runners)
    for runner in runners:
        assert runner.gate is not None
        runner.gate.set()
    for m, answer in enumerate(answers):
        assert sums(answer) == list(range(m, m + 8))
    assert all(runner.batches for runner in runners)


def test_one_that_ends_while_it_has_nothing_to_do_is_started(made: Make) -> None:
    runner, lost = Sums(), threading.Event()
    batcher = made(runner, restarted=lost.set)
    runner.alive = False
    assert lost.wait(PATIENCE)
    wait_until(lambda: batcher.alive)
    assert sums(batcher.submit(texts([5]), "sum")) == [5]


def test_stopping_computes_what_waits_and_waits_for_nothing_that_does_not_start(made: Make) -> None:
    runner = Sums()
    batcher = made(runner, batch=1)
    runner.gate = threading.Event()
    answers = [batcher.submit(texts([n]), "sum") for n in range(3)]
    closing = threading.Thread(target=batcher.close)
    closing.start()
    runner.gate.set()
    closing.join(PATIENCE)
    assert [sums(answer) for answer in answers] == [[0], [1], [2]]
    with pytest.raises(ClosedError):
        batcher.submit(texts([1]), "sum")

    broken = Sums()
    batcher = made(broken)
    broken.losses, broken.failing_starts = 1, 10**6
    with pytest.raises(UnavailableError):
        batcher.submit(texts([1]), "sum").result(PATIENCE)
    batcher.close()
    assert batcher.alive == 0


def test_a_runner_that_does_not_start_at_all() -> None:
    good, bad = Sums(), Sums()
    bad.failing_starts = 1
    with pytest.raises(LibraryError, match="a worker did not start"):
        Batcher([good, bad], 10, 10)
    assert not good.alive


def held(runner: Sums, batcher: Batcher) -> Future[np.ndarray]:
    """A batch that is computed until the runner's gate is set."""
    runner.gate = threading.Event()
    first = batcher.submit(texts([0]), "sum")
    assert runner.entered.wait(PATIENCE)
    return first


def test_a_small_request_waits_for_a_slice_of_a_large_one(made: Make) -> None:
    runner = Sums()
    batcher = made(runner, batch=4096, queue=100_000)
    first = held(runner, batcher)
    assert runner.gate is not None
    large = batcher.submit(texts(*([1] * 100 for _ in range(500))), "sum")
    small = batcher.submit(texts([2], [3]), "sum")
    runner.gate.set()
    assert sums(first) == [0] and sums(small) == [2, 3]
    assert sums(large) == [100] * 500
    assert runner.batches[:2] == [[0], [2, 3]]
    assert {len(batch) for batch in runner.batches[2:]} == {100}


def test_large_requests_alone_have_whole_batches(made: Make) -> None:
    runner = Sums()
    batcher = made(runner, batch=1600, queue=10**6)
    for _ in range(2):
        assert sums(batcher.submit(texts(*([1] * 400 for _ in range(400))), "sum")) == [400] * 400
    sizes = [len(batch) for batch in runner.batches]
    assert sizes == [1600] * 200


def test_slices_end_when_no_small_request_comes_any_more(
    made: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ibert_tvm.serve.batcher._SLICED", 2)
    runner = Sums()
    batcher = made(runner, batch=1600, queue=100_000)
    batcher.submit(texts([1]), "sum").result(PATIENCE)
    batcher.submit(texts(*([1] * 200 for _ in range(18))), "sum").result(PATIENCE)
    assert [len(batch) for batch in runner.batches] == [1, 200, 200, 1600, 1600]


def test_large_requests_rest_for_longer_than_a_slice_took(
    made: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    class Slow(Sums):
        def run(self, tokens: Tokens) -> Outputs:
            nonlocal now
            now += 1000.0 * tokens.ids[0]
            return super().run(tokens)

    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr("ibert_tvm.serve.batcher.time", clock)

    def computed(count: int) -> list[int]:
        """First ids of all batches, once there are so many."""
        wait_until(lambda: len(runner.batches) >= count)
        return [batch[0] for batch in runner.batches]

    runner = Slow()
    batcher = made(runner, batch=1024, queue=100_000)
    assert sums(batcher.submit(texts([0]), "sum")) == [0]
    large = batcher.submit(texts(*([1] * 200 for _ in range(3))), "sum")
    assert computed(2) == [0, 1]
    assert sums(batcher.submit(texts([0]), "sum")) == [0]
    now += 1000.0 * (RESTS - 1)
    assert sums(batcher.submit(texts([0]), "sum")) == [0]
    assert computed(4) == [0, 1, 0, 0]
    now += 1000.0
    assert computed(5) == [0, 1, 0, 0, 1]
    batcher.close()  # which lets nothing rest
    assert sums(large) == [200] * 3


def test_a_slice_is_computed_by_one_of_two_and_small_requests_by_both(made: Make) -> None:
    runners = [Sums(), Sums()]
    batcher = made(*runners, batch=4096, queue=100_000)
    assert sums(batcher.submit(texts([1]), "sum")) == [1]
    for runner in runners:
        runner.gate = threading.Event()
        runner.entered.clear()
    large = batcher.submit(texts(*([1] * 100 for _ in range(9))), "sum")
    wait_until(lambda: any(runner.entered.is_set() for runner in runners))
    busy, free = sorted(runners, key=lambda runner: not runner.entered.is_set())
    small = batcher.submit(texts(*([2] * 10 for _ in range(6))), "sum")
    assert free.entered.wait(PATIENCE)
    assert busy.gate is not None and free.gate is not None
    free.gate.set()
    answers = sums(small)
    busy.gate.set()
    assert answers == [20] * 6 and sums(large) == [100] * 9
    assert next(batch for batch in free.batches if batch[0] == 2) == [2] * 30  # half of them


def test_large_requests_that_are_given_up_do_not_stop_others(made: Make) -> None:
    runner = Sums()
    batcher = made(runner, batch=4096, queue=100_000)
    first = held(runner, batcher)
    large = [batcher.submit(texts(*([1] * 100 for _ in range(9))), "sum") for _ in range(3)]
    large[0].cancel()
    assert runner.gate is not None
    runner.gate.set()
    assert sums(first) == [0]
    assert [sums(answer) for answer in large[1:]] == [[100] * 9] * 2


def test_small_requests_without_end_let_a_large_one_go_on(made: Make) -> None:
    runner = Sums()
    batcher = made(runner, batch=1024, queue=100_000)
    first = held(runner, batcher)
    assert runner.gate is not None
    large = batcher.submit(texts(*([1] * 200 for _ in range(4))), "sum")
    small = [batcher.submit(texts([2] * 256), "sum") for _ in range(24)]
    runner.gate.set()
    assert sums(first) == [0] and sums(large) == [200] * 4
    assert [sums(answer) for answer in small] == [[512]] * 24
    kinds = [batch[0] for batch in runner.batches[1:]]
    assert kinds == [2, 1, 2, 1, 2, 1, 2, 1, 2, 2]
