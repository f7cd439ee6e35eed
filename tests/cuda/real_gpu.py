"""The GPU of this machine in the place of the stand-in, for tests run with ``-m gpu``."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import NoReturn

import pytest

from ibert_tvm.targets import TargetDescription, TargetError, get_target

__all__ = ["RealGpu", "find_real_gpu"]


class RealGpu:
    """What tests ask of `tests.cuda.stand_in_gpu.StandInGpu`, of a GPU that nobody can look into.

    A kernel that was scheduled for another architecture is compiled for this one: its schedule
    differs in sizes only, so that kernels of all targets are executed on whatever GPU there is.

    Parameters
    ----------
    capability : int
        Compute capability without the point: 75 is 7.5.
    """

    report = ""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    @property
    def target(self) -> str:
        """Name of a target whose code runs on it."""
        return f"cuda:sm_{self.capability}"

    def become(self, capability: int) -> None:
        """Nothing: a GPU is what it is."""

    def reset(self) -> None:
        """Nothing: after an error of CUDA only a new process helps."""

    @contextlib.contextmanager
    def order(self, order: str | int) -> Iterator[None]:
        """Nothing: a GPU orders its threads as it likes, and differently every time."""
        yield

    def calls(self, name: str) -> int:
        """Skip the test: the real driver counts nothing."""
        pytest.skip("only the stand-in for a GPU counts the calls of the driver")

    def memory(self) -> int:
        """Skip the test: a real GPU may be in use by others."""
        pytest.skip("only the stand-in for a GPU tells the memory of one process")

    def banks(self) -> NoReturn:
        """Skip the test: a real GPU tells nothing of its banks."""
        pytest.skip("only the stand-in for a GPU counts the turns of the banks")

    def image(self, source: str) -> bytes:
        """Machine code of CUDA source as it is delivered, without an audit: nvcc is needed."""
        from ibert_tvm.targets.cuda.compile import DEVICE_CODE, finish_cubin
        from ibert_tvm.targets.cuda.nvcc import compile_images
        from ibert_tvm.targets.cuda.toolchain import find_cuda_toolchain

        description: TargetDescription = get_target(self.target)
        assert description.gpu is not None
        try:
            toolchain = find_cuda_toolchain(self.target)
        except TargetError as error:
            pytest.skip(f"{error.what}: {error.todo}")
        gpu, name = description.gpu, description.name
        with compile_images(source, gpu, toolchain, DEVICE_CODE, name) as made:
            for path in made.cubins.values():
                finish_cubin(path, toolchain)
            return made.joined()


@functools.cache
def find_real_gpu() -> RealGpu | str:
    """The first GPU of this machine; or why there is none, in words."""
    from ibert_tvm.common.errors import DeviceError
    from ibert_tvm.runtime.cuda_runtime import cuda_runtime

    try:
        runtime = cuda_runtime()
        runtime.count()
        major, minor = runtime.capability(0)
    except DeviceError as error:
        return f"{error.what}: {error.why}"
    capability = 10 * major + minor
    try:
        get_target(f"cuda:sm_{capability}")
    except TargetError as error:
        return f"this GPU, of compute capability {major}.{minor}, is no target: {error.why}"
    return RealGpu(capability)
