"""Running a library on an NVIDIA GPU: one graph launch and one synchronisation per run.

The weights are uploaded once per process and GPU, in one piece, whatever number of libraries were
loaded from the file. Every context has a stream of its own, so that calls in several threads share
the GPU.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager

import numpy as np

from ibert_tvm.targets.cuda.driver import runs_on

from ..common.errors import DeviceError
from .buffers import mapped_parameter, mapped_weights
from .cuda_context import CudaContext, CudaProgram
from .cuda_memory import DeviceTensor, uploaded_weights
from .cuda_runtime import CudaRuntime, cuda_runtime, device_text
from .engine import Observer
from .metadata import LibraryMetadata, ParameterRecord
from .tvm_runtime import load_runtime, tvm_object

_FIRST_WITH_TENSOR_CORES = (7, 5)
# While one call computes, others check, copy and pad; and small batches do not fill a GPU.
_MOST_CONTEXTS = 4


class CudaEngine:
    """A library that is loaded on a GPU; see `ibert_tvm.runtime.engine.Engine`.

    Parameters
    ----------
    metadata
        What the library says about itself.
    index
        Number of the GPU.

    Attributes
    ----------
    device
        The GPU, for example ``"cuda:0"``.
    name
        What the driver calls it.
    architecture
        What it is, for example ``"sm_75"``.
    multiprocessors
        How many it has.

    Raises
    ------
    DeviceError
        If there is no driver, no GPU of this number or none that the library has code for, or if
        its memory is full.
    """

    def __init__(self, metadata: LibraryMetadata, index: int = 0) -> None:
        cuda = cuda_runtime()
        self.device = device_text(index)
        self.architecture = _checked_gpu(cuda, metadata, index)
        self.name = cuda.name(index)
        self.multiprocessors = cuda.multiprocessors(index)
        ffi = load_runtime()
        self._shared_object = tvm_object(metadata)
        load_executable = self._shared_object.loaded["vm_load_executable"]
        self._shared_object.keep_mapped("the GPU's driver and TVM's runtime point into it")
        ffi.get_global_func("ffi.ModuleGlobalsAdd")(self._shared_object.loaded)
        with cuda.on_device(index):
            weights = uploaded_weights(cuda, metadata, mapped_weights(self._shared_object), index)
            self.max_contexts = _contexts_that_fit(metadata, cuda.free_bytes())
        parameters = [
            DeviceTensor(weights, record.offset, record.shape, record.dtype, index)
            for record in metadata.parameters
        ]
        self._program = CudaProgram(
            metadata, cuda, index, self.name, ffi, load_executable, parameters
        )

    def parameter(self, record: ParameterRecord) -> np.ndarray:
        """As `Engine.parameter`, on the host."""
        return mapped_parameter(self._shared_object, record)

    def create_context(self) -> CudaContext:
        """As `Engine.create_context`: a stream and a virtual machine."""
        return CudaContext(self._program)

    def observed(self, observe: Observer) -> AbstractContextManager[None]:
        """As `ObservableEngine.observed`; the times are those of `CudaContext.kernel_times`."""
        return self._program.observed(observe)


def _contexts_that_fit(metadata: LibraryMetadata, free: int) -> int:
    """How many contexts find a place in the free memory of a GPU: at least one is tried."""
    inputs = (
        math.prod(shape) * np.dtype(dtype).itemsize
        for function in metadata.functions
        for shape, dtype in metadata.input_kinds(function)
    )
    each = int(metadata.device_code.get("storage_bytes", 0)) + sum(inputs)
    return max(1, min(_MOST_CONTEXTS, free // max(each, 1)))


def _checked_gpu(cuda: CudaRuntime, metadata: LibraryMetadata, index: int) -> str:
    """Architecture of a GPU; an error if it is not there, or the library has no code for it."""
    count = cuda.count()
    if index >= count:
        there = ", ".join(map(device_text, range(count)))
        raise DeviceError(
            f"there is no GPU {device_text(index)}",
            where="--device",
            why=f"this machine has {there}",
            todo=f"give one of: {there}",
        )
    capability = cuda.capability(index)
    architecture = f"sm_{capability[0]}{capability[1]}"
    if runs_on(metadata.architectures, capability):
        return architecture
    todo = f"compile with --target cuda:{architecture}"
    if capability < _FIRST_WITH_TENSOR_CORES:
        todo = (
            "use a GPU with INT8 tensor cores, sm_75 or later, or compile for a processor "
            "(--target host)"
        )
    raise DeviceError(
        f"the library {metadata.path} does not run on the GPU {device_text(index)}",
        why=f"it has code for {', '.join(metadata.architectures)}, and {cuda.name(index)} is "
        f"{architecture}",
        todo=todo,
    )
