"""Settings that hold for every test."""

import gc
import os

# Parallel test processes share few cores: pools of their own would only compete. Tests of
# threading ask for threads explicitly. Set before NumPy, torch or TVM are imported.
for _variable in ("OMP_NUM_THREADS", "TVM_NUM_THREADS", "TOKENIZERS_PARALLELISM"):
    os.environ.setdefault(_variable, "false" if _variable.startswith("TOKEN") else "1")

from hypothesis import settings  # noqa: E402

# Deadlines would make the outcome depend on the load of the machine; a derandomised run gives
# the same verdict for the same code.
settings.register_profile("default", deadline=None, derandomize=True)
settings.load_profile("default")


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
