"""What tests of CUDA need: the CUDA compiler, and the C++ compiler that stands in for a GPU.

CI installs both (`make setup` and `.ci/run`), so there a missing one is a failure, never a skip.
"""

from __future__ import annotations

from ibert_tvm.targets import TargetError
from ibert_tvm.targets.cuda.toolchain import CudaToolchain, find_cuda_toolchain
from tests.arm.tools import missing, needs


def cuda_toolchain() -> CudaToolchain:
    """nvcc, fatbinary and nvdisasm, which need no GPU; otherwise as `needs`."""
    needs("gcc")  # nvcc preprocesses with it
    try:
        return find_cuda_toolchain()
    except TargetError as error:
        missing(f"{error.what}: {error.todo}")
        raise  # not reached
