"""The thread pool that every library brings, `targets/parallel.c`, called as kernels call it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ibert_tvm import targets
from tests.processes import PATIENCE, run_captured


class _Environment(ctypes.Structure):
    _fields_ = (("sync_handle", ctypes.c_void_p), ("num_task", ctypes.c_int32))


_TASK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(_Environment), ctypes.c_void_p)
Body = Callable[[int, int], int]


class Pool:
    """The compiled pool."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))

    def launch(self, body: Body, threads: int, tasks: int = 0) -> int:
        """Run `body(task, tasks)` as TVM runs the body of a parallel loop."""
        function = _TASK(lambda task, env, _data: body(task, env.contents.num_task))
        self.library.ibert_set_threads(threads)
        return self.library.ibert_parallel_launch(function, None, tasks)

    @property
    def started(self) -> int:
        """Threads besides the callers'."""
        return self.library.ibert_started_threads()


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = Path(targets.__file__).with_name("parallel.c")
    path = tmp_path_factory.mktemp("pool") / "parallel.so"
    flags = ["-O2", "-shared", "-fPIC", "-pthread", "-Wall", "-Wextra", "-Werror"]
    command = ["gcc", *flags, "-mgeneral-regs-only", "-o", str(path), str(source)]
    subprocess.run(command, check=True)
    return path


@pytest.fixture
def pool(compiled: Path, tmp_path: Path) -> Iterator[Pool]:
    """A pool without threads: every copy of the file is a library of its own."""
    copy = tmp_path / "copy.so"
    copy.write_bytes(compiled.read_bytes())
    yield Pool(copy)


def test_one_thread_needs_no_pool(pool: Pool) -> None:
    seen = []
    pool.launch(lambda task, tasks: seen.append((task, tasks, threading.get_ident())) or 0, 1)
    assert seen == [(0, 1, threading.get_ident())]
    assert pool.started == 0


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_every_task_runs_once(pool: Pool, threads: int) -> None:
    for _ in range(200):
        seen: Counter[int] = Counter()

        def body(task: int, tasks: int, seen: Counter[int] = seen) -> int:
            assert tasks == 4 * threads
            seen[task] += 1
            return 0

        assert pool.launch(body, threads) == 0
        assert seen == {task: 1 for task in range(4 * threads)}
    assert pool.started == threads - 1


@pytest.mark.parametrize("threads", [2, 4])
def test_tasks_run_at_the_same_time(pool: Pool, threads: int) -> None:
    together = threading.Barrier(threads)
    helpers = set()

    def body(task: int, _tasks: int) -> int:
        if task < threads:
            together.wait(PATIENCE)  # breaks unless as many threads come here
        helpers.add(threading.get_ident())
        return 0

    assert pool.launch(body, threads) == 0
    assert not together.broken
    assert len(helpers) == threads


def test_number_of_threads_may_change_from_call_to_call(pool: Pool) -> None:
    for threads in (2, 1, 5, 3, 2, 1, 5):
        seen = []
        pool.launch(lambda task, tasks, seen=seen: seen.append(tasks) or 0, threads)
        assert seen == [4 * threads] * (4 * threads) if threads > 1 else seen == [1]
    assert pool.started == 4


def test_a_loop_may_ask_for_its_number_of_tasks(pool: Pool) -> None:
    seen = []
    pool.launch(lambda task, tasks: seen.append((task, tasks)) or 0, 2, tasks=5)
    assert sorted(seen) == [(task, 5) for task in range(5)]


def test_a_loop_inside_a_task_runs_in_its_thread(pool: Pool) -> None:
    inner: list[tuple[int, int]] = []
    both = threading.Barrier(2)  # the caller's thread and one of the pool have such a loop

    def body(task: int, _tasks: int) -> int:
        if task < 2:
            both.wait(PATIENCE)
        return pool.launch(lambda task, tasks: inner.append((task, tasks)) or 0, 4)

    pool.launch(body, 2)
    assert not both.broken
    assert inner == [(0, 1)] * 8


def test_loops_of_several_callers_run_at_the_same_time_on_teams_of_their_own(pool: Pool) -> None:
    callers, threads = 3, 2
    together = threading.Barrier(callers * threads)
    ran: list[list[int]] = [[] for _ in range(callers)]

    def call(caller: int) -> None:
        def body(task: int, _tasks: int) -> int:
            if task < threads:
                together.wait(PATIENCE)  # breaks unless every caller has its threads
            ran[caller].append(task)
            return caller if task == 5 else 0

        assert pool.launch(body, threads) == caller  # a failure is that of its own caller

    started = [threading.Thread(target=call, args=(caller,)) for caller in range(callers)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join(PATIENCE)
    assert not together.broken
    assert [sorted(tasks) for tasks in ran] == [list(range(4 * threads))] * callers
    assert pool.started == callers * (threads - 1)


def test_a_caller_that_is_alone_has_the_same_threads_again(pool: Pool) -> None:
    def call() -> None:
        for _ in range(50):
            assert pool.launch(lambda *_: 0, 3) == 0

    for _ in range(5):
        thread = threading.Thread(target=call)
        thread.start()
        thread.join(PATIENCE)
    assert pool.started == 2


def test_many_callers_and_loops(pool: Pool) -> None:
    failures: list[object] = []

    def call(caller: int) -> None:
        for round_ in range(200):
            seen: Counter[int] = Counter()

            def body(task: int, _tasks: int, seen: Counter[int] = seen) -> int:
                seen[task] += 1
                return 0

            threads = 1 + (caller + round_) % 4
            pool.launch(body, threads)
            if seen != {task: 1 for task in range(4 * threads if threads > 1 else 1)}:
                failures.append((caller, round_, seen))

    started = [threading.Thread(target=call, args=(caller,)) for caller in range(6)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join(PATIENCE)
    assert failures == []


def test_more_callers_than_teams_run_in_their_own_threads(pool: Pool) -> None:
    teams = 32
    running, done = threading.Semaphore(0), threading.Event()

    def wait(task: int, _tasks: int) -> int:
        if task == 0:
            running.release()
        return 0 if done.wait(PATIENCE) else 1

    callers = [threading.Thread(target=lambda: pool.launch(wait, 2, 2)) for _ in range(teams)]
    for thread in callers:
        thread.start()
    for _ in range(teams):
        assert running.acquire(timeout=PATIENCE)
    alone: list[tuple[int, int]] = []
    pool.launch(lambda task, tasks: alone.append((task, tasks)) or 0, 2)
    done.set()
    for thread in callers:
        thread.join(PATIENCE)
    assert alone == [(0, 1)]


def test_a_failed_task_fails_the_loop(pool: Pool) -> None:
    assert pool.launch(lambda task, _tasks: -1 if task == 3 else 0, 2) == -1
    assert pool.launch(lambda *_: 0, 2) == 0


# The rest needs a process of its own: it counts threads, or forks.
_PROCESS = """
import ctypes, os, sys, time
from tests.targets.test_parallel import Pool
from pathlib import Path
pool = Pool(Path(sys.argv[1]))
body = lambda *_: 0
"""
_SLEEP = """
pool.launch(body, 3)
def switches():
    "How often each helper was given a processor; None while one is not asleep."
    seen = {}
    for task in os.listdir("/proc/self/task"):
        if int(task) != os.getpid():
            lines = open(f"/proc/self/task/{task}/status").read().splitlines()
            fields = dict(line.split(":\\t", 1) for line in lines if ":\\t" in line)
            if not fields["State"].startswith("S"):
                return None
            seen[task] = [int(v) for k, v in fields.items() if "ctxt_switches" in k]
    return seen
for _ in range(100):  # one that waited for a lock wakes once more
    before = switches()
    time.sleep(0.3)
    asleep = before is not None and len(before) == 2 and switches() == before
    if asleep:
        break
print(0 if asleep else 1, pool.launch(body, 3))
"""
_FORK = """
pool.launch(body, 2)
child = os.fork()
if child == 0:
    seen = []
    failed = pool.launch(lambda task, tasks: seen.append(task) or 0, 2)
    os._exit(0 if sorted(seen) == list(range(8)) and not failed and pool.started == 1 else 1)
print(os.waitpid(child, 0)[1], pool.launch(body, 2))
"""


@pytest.mark.parametrize("script", [_SLEEP, _FORK], ids=["sleep", "fork"])
def test_threads_sleep_when_idle_and_survive_a_fork(compiled: Path, script: str) -> None:
    done = run_captured(
        [sys.executable, "-c", _PROCESS + script, str(compiled)],
        timeout=PATIENCE,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0", "0"]
