"""Memory of a GPU and of the host beside it, and TVM's tensors on it."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Sequence

import numpy as np

from .cuda_runtime import CUDA, CudaRuntime
from .metadata import LibraryMetadata
from .tvm_runtime import load_runtime


class DeviceBlock:
    """Memory of a GPU, given back when nothing refers to it any more."""

    def __init__(self, cuda: CudaRuntime, index: int, size: int, what: str) -> None:
        self.address = cuda.allocate(size, what, index)
        self.size = size
        # The end of the process takes the memory anyway, and the driver may be gone by then.
        weakref.finalize(self, cuda.free, self.address).atexit = False


class PinnedBlock:
    """Host memory that the GPU reads and writes by itself."""

    def __init__(self, cuda: CudaRuntime, size: int) -> None:
        self.address = cuda.allocate_pinned(size)
        self.size = size
        weakref.finalize(self, cuda.free_pinned, self.address).atexit = False

    def array(self, offset: int, shape: Sequence[int], dtype: str) -> np.ndarray:
        """Array in this block, which lives as long as the array does."""
        return np.asarray(_PinnedView(self, offset, tuple(shape), dtype))


class _PinnedView:
    """What NumPy makes an array of; it keeps the block."""

    def __init__(self, block: PinnedBlock, offset: int, shape: tuple[int, ...], dtype: str) -> None:
        self.block = block
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": np.dtype(dtype).str,
            "data": (block.address + offset, False),
        }


# -- tensors of TVM on our own memory: DLPack's structures (dlpack.h) ---------------------------


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _DLManagedTensor(ctypes.Structure):
    _fields_ = (("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_CODES = {"i": 0, "u": 1, "b": 6}  # kDLInt, kDLUInt, kDLBool
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_libc = ctypes.CDLL(None)
_libc.malloc.restype, _libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)


class DeviceTensor:
    """A TVM tensor on a part of a block, which it keeps."""

    def __init__(
        self, block: DeviceBlock, offset: int, shape: Sequence[int], dtype: str, index: int
    ) -> None:
        kind = np.dtype(dtype)
        header = ctypes.sizeof(_DLManagedTensor)
        # TVM's tensor may outlive this object by a little, so the description belongs to it: with
        # the shape behind it in one piece of memory, which C's own `free` deletes.
        address = _libc.malloc(header + 8 * max(len(shape), 1))
        if not address:
            raise MemoryError("no memory for the description of a tensor")
        extents = (ctypes.c_int64 * len(shape)).from_address(address + header)
        extents[:] = list(shape)
        managed = _DLManagedTensor.from_address(address)
        managed.tensor = _DLTensor(
            *(block.address + offset, CUDA, index, len(shape)),
            *(_CODES[kind.kind], 8 * kind.itemsize, 1),
            *(ctypes.cast(extents, ctypes.POINTER(ctypes.c_int64)), None, 0),
        )
        managed.context = None
        managed.deleter = ctypes.cast(_libc.free, ctypes.c_void_p).value
        self.tvm = load_runtime().from_dlpack(_new_capsule(address, b"dltensor", None))
        self._block = block


_WEIGHTS: weakref.WeakValueDictionary[tuple[str, int], DeviceBlock] = weakref.WeakValueDictionary()
_WEIGHTS_LOCK = threading.Lock()


def uploaded_weights(
    cuda: CudaRuntime, metadata: LibraryMetadata, mapped: int, index: int
) -> DeviceBlock:
    """All weights of a library on a GPU: those that are there, if it was loaded before."""
    identity = (metadata.digest, index)
    with _WEIGHTS_LOCK:
        block = _WEIGHTS.get(identity)
        if block is None:
            size = metadata.weight_bytes
            block = DeviceBlock(cuda, index, size, "the weights")
            stream = cuda.create_stream()
            try:
                cuda.to_device(block.address, mapped, size, stream)
                cuda.synchronize(stream)
            finally:
                cuda.destroy_stream(stream)
            _WEIGHTS[identity] = block
    return block
