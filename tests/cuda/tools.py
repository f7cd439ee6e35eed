"""What tests of CUDA need: the CUDA compiler, and the C++ compiler that stands in for a GPU.

CI installs both (`make setup` and `.ci/run`), so there a missing one is a failure, never a skip.
"""

from __future__ import annotations

import os
import shutil

import pytest

from ibert_tvm.targets import TargetError
from ibert_tvm.targets.cuda.toolchain import CudaToolchain, find_cuda_toolchain

_PACKAGES = {"g++": "g++", "gcc": "gcc"}


def missing(why: str) -> None:
    """Skip the test on a developer's machine, fail it in CI.

    Parameters
    ----------
    why
        What is missing, and what to install.
    """
    if os.environ.get("CI"):
        pytest.fail(f"CI must have the tools of every target: {why}", pytrace=False)
    pytest.skip(why)


def needs(*tools: str) -> None:
    """Skip the calling test where a command is missing, saying what to install; fail it in CI.

    Parameters
    ----------
    *tools
        Commands, such as ``g++``.
    """
    absent = [tool for tool in tools if shutil.which(tool) is None]
    if absent:
        packages = " ".join(_PACKAGES.get(tool, tool) for tool in absent)
        missing(f"{', '.join(absent)} not found (Debian: apt-get install {packages})")


def cuda_toolchain() -> CudaToolchain:
    """nvcc, fatbinary and nvdisasm, which need no GPU; otherwise as `needs`."""
    needs("gcc")  # nvcc preprocesses with it
    try:
        return find_cuda_toolchain()
    except TargetError as error:
        missing(f"{error.what}: {error.todo}")
        raise  # not reached
