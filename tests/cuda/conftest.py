"""Every test that executes kernels runs on the stand-in for a GPU, and with ``-m gpu`` on a GPU.

There are two of every test in a module that imports `run_kernel` or `Kernel` of
`tests.cuda.stand_in_gpu`, or `build` of `tests.cuda.gpu_models`, and of any other test that asks
for the fixture `device`. A module that tests the stand-in itself says ``STAND_IN_ONLY = True``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.cuda import stand_in_gpu
from tests.cuda.real_gpu import RealGpu, find_real_gpu

_EXECUTING = {
    ("tests.cuda.stand_in_gpu", "run_kernel"),
    ("tests.cuda.stand_in_gpu", "Kernel"),
    ("tests.cuda.gpu_models", "build"),
}
_DEVICES = ["stand-in", pytest.param("gpu", marks=pytest.mark.gpu)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make two tests of each that executes kernels; ``-m gpu`` selects the second of them."""
    module = vars(metafunc.module)
    executes = any(
        (getattr(value, "__module__", ""), getattr(value, "__name__", "")) in _EXECUTING
        for value in module.values()
    )
    if "device" in metafunc.fixturenames or (executes and not module.get("STAND_IN_ONLY")):
        metafunc.parametrize("_executing", _DEVICES, indirect=True, scope="function")


@pytest.fixture(autouse=True)
def _executing(request: pytest.FixtureRequest) -> Iterator[RealGpu | None]:
    """Put a real GPU in the place of the stand-in for the tests that are parametrised so."""
    with contextlib.ExitStack() as stack:
        gpu = None
        if getattr(request, "param", "stand-in") == "gpu":
            found = find_real_gpu()
            if isinstance(found, str):
                pytest.skip(found)
            stack.enter_context(stand_in_gpu.replaced_by(found))
            gpu = found
        yield gpu


@pytest.fixture
def device(_executing: RealGpu | None) -> RealGpu | None:
    """Where kernels are executed: a real GPU, or None for the stand-in.

    The target to compile whole models for is `gpu_target`.
    """
    return _executing


@pytest.fixture
def gpu_target(device: RealGpu | None) -> str:
    """Name of the target whose libraries the device of the test runs."""
    return "t4" if device is None else device.target
