"""The GPU of this machine that kernels are tuned on."""

from __future__ import annotations

from collections.abc import Sequence

from ibert_tvm.targets.cuda.driver import runs_on

from ..common.errors import DeviceError
from ..runtime.cuda_runtime import CudaRuntime, cuda_runtime, device_text


def first_gpu(architectures: Sequence[str]) -> tuple[int, CudaRuntime]:
    """Find a GPU of this machine that runs code for some architectures.

    Parameters
    ----------
    architectures
        For example ``("sm_75",)``.

    Returns
    -------
    index, cuda
        Number of the first, and what to use it by.

    Raises
    ------
    DeviceError
        If there is no GPU, or none that does.
    """
    cuda = cuda_runtime()
    found, names = [], []
    for index in range(cuda.count()):
        capability = cuda.capability(index)
        if runs_on(tuple(architectures), capability):
            return index, cuda
        names.append(f"sm_{capability[0]}{capability[1]}")
        found.append(f"{device_text(index)}, {cuda.name(index)} ({names[-1]})")
    raise DeviceError(
        f"there is no GPU for {' or '.join(architectures)} on this machine",
        where="--target",
        why=f"it has {'; '.join(found)}",
        todo=f"tune for the GPU that there is, with --target cuda:{names[0]}, or on a machine that "
        "has the other",
    )
