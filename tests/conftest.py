"""Settings that hold for every test."""

import gc
import os
import signal
import sys

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
    """Mark `slow` what ``representatives(N)`` leaves out, before markers choose; longest first.

    A test that takes minutes and starts last would leave the other processes without work.
    """
    cases: dict[tuple[str, str], list[pytest.Item]] = {}
    for item in items:
        others = any(map(item.get_closest_marker, ("slow", "record", "gpu")))
        if item.get_closest_marker("representatives") and not others:
            name = getattr(item, "originalname", item.name)
            cases.setdefault((str(item.path), name), []).append(item)
    for group in cases.values():
        (count,) = group[0].get_closest_marker("representatives").args  # type: ignore[union-attr]
        kept = spread(len(group), count)
        for number, item in enumerate(group):
            if number not in kept:
                item.add_marker(pytest.mark.slow)
    items.sort(key=_seconds, reverse=True)


def _seconds(item: pytest.Item) -> float:
    """What ``slow(seconds=N)`` says of a test, 0 by default."""
    marker = item.get_closest_marker("slow")
    return 0 if marker is None else marker.kwargs.get("seconds", 0)
