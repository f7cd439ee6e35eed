"""Settings that hold for every test."""

import gc
import inspect
import os
import signal
import sys
from collections.abc import Iterable
from types import FrameType

# Parallel test processes share few cores: pools of their own would only compete. Tests of
# threading ask for threads explicitly. Set before NumPy, torch or TVM are imported.
for _variable in ("OMP_NUM_THREADS", "TVM_NUM_THREADS", "TOKENIZERS_PARALLELISM"):
    os.environ.setdefault(_variable, "false" if _variable.startswith("TOKEN") else "1")

# Images of containers often say not to keep compiled sources: then every test process, and every
# command that a test starts, would compile the product and rewrite the assertions anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# What a shell starts in the background ignores Ctrl-C, and so would the commands of tests.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

from tests.examples import spread  # noqa: E402

# Times would make the outcome depend on the load of the machine; a derandomised run gives the same
# verdict for the same code. `make test-record` chooses the other profile.
for _profile, _examples in (("default", 50), ("thorough", 1000)):
    settings.register_profile(
        _profile,
        deadline=None,
        derandomize=True,
        max_examples=_examples,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile("default")

_outer_frames = inspect.getouterframes
_WITH_LINES = 4


def _frames(frame: FrameType | None, context: int = 1) -> list[inspect.FrameInfo]:
    """All outer frames, the nearest with their lines of source.

    TVM's parser asks for all, of which a test has sixty, and reads the line of the third. To find
    a line takes 5 ms where torch and TVM are imported: half a second for each parsed function.
    """
    found: list[inspect.FrameInfo] = []
    while frame is not None:
        lines = context if len(found) < _WITH_LINES else 0
        found.append(inspect.FrameInfo(frame, *inspect.getframeinfo(frame, lines)))
        frame = frame.f_back
    return found


inspect.getouterframes = _frames

# All slow tests run in CI, which has a quarter of an hour for them.
SLOW_CASES = 2

pytest_plugins = ["tests.snapshots", "tests.commands"]


def pytest_collectstart() -> None:
    """Collect no garbage while modules are imported: nearly all they make stays."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Let garbage collections skip what imports left: half a million objects, 0.3 s each time.

    Few objects count as old then, so that by the usual thresholds all would be collected often.
    """
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move cases to slower sets before markers choose; what runs is sorted, longest first.

    ``representatives(N)`` leaves N cases of a test in its set and makes the others slow. Of slow
    cases a test keeps `SLOW_CASES`, or as many as ``slow_cases(N)`` says, and the others are for
    records. A test that takes minutes and starts last would leave the other processes without work.
    """
    for group in _tests(items, "slow", "record", "gpu"):
        marker = group[0].get_closest_marker("representatives")
        if marker is not None:
            _move(group, marker.args[0], pytest.mark.slow)
    slow = [item for item in items if item.get_closest_marker("slow")]
    for group in _tests(slow, "record", "gpu"):
        marker = group[0].get_closest_marker("slow_cases")
        _move(group, SLOW_CASES if marker is None else marker.args[0], pytest.mark.record)
    items.sort(key=_seconds, reverse=True)


def _tests(items: list[pytest.Item], *without: str) -> Iterable[list[pytest.Item]]:
    """The cases of each test that have none of these markers."""
    cases: dict[tuple[str, str], list[pytest.Item]] = {}
    for item in items:
        if not any(map(item.get_closest_marker, without)):
            name = getattr(item, "originalname", item.name)
            cases.setdefault((str(item.path), name), []).append(item)
    return cases.values()


def _move(cases: list[pytest.Item], count: int, marker: pytest.MarkDecorator) -> None:
    """Mark all but so many cases, which are spread evenly."""
    kept = spread(len(cases), count)
    for number, item in enumerate(cases):
        if number not in kept:
            item.add_marker(marker)


def _seconds(item: pytest.Item) -> float:
    """What ``slow(seconds=N)`` says of a test, 0 by default."""
    marker = item.get_closest_marker("slow")
    return 0 if marker is None else marker.kwargs.get("seconds", 0)
