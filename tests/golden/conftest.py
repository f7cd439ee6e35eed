"""Without torch and transformers nothing is collected here; tests on GPUs come in pairs."""

from __future__ import annotations

from importlib.util import find_spec

from tests.cuda.conftest import (  # noqa: F401 (fixtures, and the hook that pairs tests)
    _executing,
    device,
    gpu_target,
    pytest_generate_tests,
)

collect_ignore: list[str] = []
if find_spec("torch") is None or find_spec("transformers") is None:
    collect_ignore += ["test_golden_integers.py"]
