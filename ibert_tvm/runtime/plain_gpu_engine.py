"""Calling a library for a GPU that needs the driver only: neither TVM nor CUDA's runtime.

The library's own C drives the GPU. All contexts share its one session on a GPU, whose runs take
turns.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable

import numpy as np

from ibert_tvm.targets.cuda.driver import find_driver

from ..common.errors import DeviceError
from .buffers import aligned_zeros
from .mapping import SharedObject
from .metadata import LibraryMetadata
from .plain_engine import ABI_VERSION, CONTEXT_BYTES, PlainEngine

# While one call computes, another checks and pads its inputs.
_CONTEXTS = 2
# Of statuses of the driver and the GPU, by number: what to do.
_TODO = {
    19: "install the driver of the GPU, run on a machine that has one, or compile for a processor",
    20: "install such a driver, or compile with an earlier CUDA (docs/cuda.md)",
    21: "see what nvidia-smi lists, and give another --device",
    22: "compile for that one, too: --target cuda:sm_XX+sm_YY",
    23: "end other programs that use it (nvidia-smi lists them), or compile for smaller batches",
    24: "run it again in a new process; nvidia-smi shows the state of the GPU",
}


class PlainGpuEngine(PlainEngine):
    """A library of plain C functions whose kernels run on a GPU.

    Parameters
    ----------
    metadata
        What the library says about itself.
    index
        Number of the GPU.

    Attributes
    ----------
    device, name, architecture, multiprocessors
        As of `ibert_tvm.runtime.cuda_engine.CudaEngine`.

    Raises
    ------
    DeviceError
        If there is no driver, or an old one, no such GPU, none that the library has code for, or no
        place in its memory.
    """

    def __init__(self, metadata: LibraryMetadata, index: int = 0) -> None:
        super().__init__(metadata)
        self.device = f"cuda:{index}"
        self.max_contexts = _CONTEXTS
        self._index = index
        self._report = self._function("device_report", result=ctypes.c_char_p)
        self._release = self._function("release", ctypes.c_void_p, result=None)
        self._set_device = self._function("set_device", ctypes.c_void_p, ctypes.c_int32)
        # A context of its own keeps code and weights on the GPU as long as the engine lives.
        memory, arena = (aligned_zeros((CONTEXT_BYTES,), "uint8") for _ in range(2))
        address, fingerprint = memory.ctypes.data, self.fingerprint
        self.check(self.init(address, ABI_VERSION, fingerprint, arena.ctypes.data, arena.nbytes))
        self.attach(self, memory)
        gpu = find_driver().gpus[index]
        self.name, self.multiprocessors = gpu.name, gpu.multiprocessors
        self.architecture = f"sm_{gpu.capability}"

    def attach(self, owner: object, memory: np.ndarray) -> None:
        """As `PlainEngine.attach`: on the engine's GPU."""
        self.check(self._set_device(memory.ctypes.data, self._index))
        # At the end of the process the driver may be gone, and takes all memory back anyway.
        finalizer = weakref.finalize(owner, _released, self._release, memory, self.library)
        finalizer.atexit = False

    def check(self, status: int) -> None:
        """As `PlainEngine.check`; what the driver or the GPU refuses is a `DeviceError`."""
        if status in _TODO:
            raise DeviceError(
                self.strerror(status).decode(),
                where=f"{self.metadata.path}, {self.device}",
                why=self._report().decode(errors="replace"),
                todo=_TODO[status],
            )
        super().check(status)


def _released(release: Callable[[int], None], memory: np.ndarray, _kept: SharedObject) -> None:
    release(memory.ctypes.data)
