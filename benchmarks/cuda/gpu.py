"""What a GPU is, and launching and timing a kernel of our own on it.

Built on `ibert_tvm.runtime.cuda_runtime`, plus the four functions of the driver that load and
launch a kernel. Neither torch nor the CUDA toolkit is needed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_void_p
from dataclasses import asdict, dataclass
from typing import Any

from ibert_tvm.runtime.cuda_runtime import cuda_runtime

from .errors import GpuBenchmarkError

__all__ = ["Gpu", "GpuDescription", "Kernel"]

# cudaDeviceAttr
_MULTIPROCESSORS = 16
_CLOCK_KHZ = 13
_MEMORY_CLOCK_KHZ = 36
_MEMORY_BUS_BITS = 37
_L2_BYTES = 38
_SHARED_PER_MULTIPROCESSOR = 81


@dataclass(frozen=True)
class GpuDescription:
    """What the driver says about a GPU.

    Attributes
    ----------
    name, uuid : str
        As ``nvidia-smi`` shows them.
    capability : int
        Compute capability without the point: 75 is 7.5.
    multiprocessors : int
        Number of multiprocessors.
    clock_mhz, memory_clock_mhz : int
        Highest clocks; what it really runs at is in the sensors.
    memory_bus_bits : int
        Width of the bus of the device memory.
    memory_mib, l2_kib, shared_kib : int
        Device memory, second-level cache, shared memory of a multiprocessor; what the driver does
        not tell is 0.
    driver : str
        Highest version of CUDA that the driver knows, such as ``"13.0"``.
    """

    name: str
    uuid: str
    capability: int
    multiprocessors: int
    clock_mhz: int
    memory_clock_mhz: int
    memory_bus_bits: int
    memory_mib: int
    l2_kib: int
    shared_kib: int
    driver: str

    def to_json(self) -> dict[str, Any]:
        """The description as a dictionary."""
        return asdict(self)


class Gpu:
    """One GPU.

    Parameters
    ----------
    index : int
        Which one, counted among the visible ones.

    Raises
    ------
    ibert_tvm.common.errors.DeviceError
        If there is no driver or no GPU.
    GpuBenchmarkError
        If there is no GPU of that number.
    """

    def __init__(self, index: int = 0) -> None:
        self._runtime = cuda_runtime()
        count = self._runtime.count()
        if not 0 <= index < count:
            raise GpuBenchmarkError(
                f"there is no GPU {index}",
                where="--gpu",
                why=f"the driver shows {count} GPU(s), counted from 0",
                todo="look at `nvidia-smi` and at CUDA_VISIBLE_DEVICES",
            )
        self.index = index
        # Both are loaded: these are the same libraries again.
        self._cudart = ctypes.CDLL("libcudart.so.13")
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._checked("cuInit", self._cuda.cuInit(c_uint(0)))
        self._checked("cudaSetDevice", self._cudart.cudaSetDevice(c_int(index)))

    def _checked(self, what: str, status: int) -> None:
        if status != 0:
            words = c_char_p()
            self._cuda.cuGetErrorString(c_int(status), byref(words))
            raise GpuBenchmarkError(
                f"the GPU refuses {what}",
                where=f"GPU {self.index}",
                why=f"error {status}: {(words.value or b'unknown').decode()}",
                todo="look at `nvidia-smi`; CUDA may be unusable in this process after an error",
            )

    def _attribute(self, number: int) -> int:
        value = c_int()
        known = self._cudart.cudaDeviceGetAttribute(byref(value), c_int(number), c_int(self.index))
        return value.value if known == 0 else 0

    def _uuid(self) -> str:
        device, number = c_int(), (ctypes.c_ubyte * 16)()
        try:
            found = self._cuda.cuDeviceGet(byref(device), c_int(self.index))
            found = found or self._cuda.cuDeviceGetUuid(byref(number), device)
        except AttributeError:
            return ""
        digits = bytes(number).hex()
        parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
        return f"GPU-{'-'.join(parts)}" if found == 0 else ""

    def describe(self) -> GpuDescription:
        """What GPU this is."""
        free, total, version = c_size_t(), c_size_t(), c_int()
        self._checked("cudaMemGetInfo", self._cudart.cudaMemGetInfo(byref(free), byref(total)))
        self._cudart.cudaDriverGetVersion(byref(version))
        major, minor = self._runtime.capability(self.index)
        return GpuDescription(
            name=self._runtime.name(self.index),
            uuid=self._uuid(),
            capability=10 * major + minor,
            multiprocessors=self._attribute(_MULTIPROCESSORS),
            clock_mhz=self._attribute(_CLOCK_KHZ) // 1000,
            memory_clock_mhz=self._attribute(_MEMORY_CLOCK_KHZ) // 1000,
            memory_bus_bits=self._attribute(_MEMORY_BUS_BITS),
            memory_mib=total.value >> 20,
            l2_kib=self._attribute(_L2_BYTES) >> 10,
            shared_kib=self._attribute(_SHARED_PER_MULTIPROCESSOR) >> 10,
            driver=f"{version.value // 1000}.{version.value % 1000 // 10}",
        )

    @contextmanager
    def memory(self, num_bytes: int) -> Iterator[c_void_p]:
        """Device memory, holding anything, for the time of a ``with``."""
        address = self._runtime.allocate(num_bytes, "the microbenchmark", self.index)
        try:
            yield c_void_p(address)
        finally:
            self._runtime.free(address)

    def kernel(self, image: bytes, name: str) -> Kernel:
        """A kernel of a cubin or fat binary.

        Raises
        ------
        GpuBenchmarkError
            If the image has no code for this GPU, or no kernel of that name.
        """
        module, function = c_void_p(), c_void_p()
        loaded = self._cuda.cuModuleLoadData(byref(module), c_char_p(image))
        self._checked("the image of the microbenchmark", loaded)
        found = self._cuda.cuModuleGetFunction(byref(function), module, c_char_p(name.encode()))
        self._checked(f"kernel {name}", found)
        return Kernel(self, function)


class Kernel:
    """A kernel that can be launched; made by `Gpu.kernel`."""

    def __init__(self, gpu: Gpu, function: c_void_p) -> None:
        self._gpu, self._function = gpu, function

    def _launch(self, stream: int, blocks: int, threads: int, arguments: Sequence[Any]) -> None:
        addresses = (c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        status = self._gpu._cuda.cuLaunchKernel(
            self._function,
            *(c_uint(size) for size in (blocks, 1, 1, threads, 1, 1, 0)),
            c_void_p(stream),
            addresses,
            c_void_p(0),
        )
        self._gpu._checked("a launch", status)

    def time_ms(
        self, blocks: int, threads: int, arguments: Sequence[Any], launches: int, times: int = 1
    ) -> float:
        """Time of one launch on the GPU.

        Parameters
        ----------
        blocks, threads : int
            Size of the grid, and of a block.
        arguments : sequence of ctypes values
            Its parameters.
        launches : int
            Launches between two events, one behind the other.
        times : int
            Repetitions of that, of which the fastest counts.

        Returns
        -------
        float
            Milliseconds.
        """
        runtime = self._gpu._runtime
        stream = runtime.create_stream()
        events = (runtime.create_event(), runtime.create_event())
        found = []
        try:
            self._launch(stream, blocks, threads, arguments)  # the first event waits behind it
            for _ in range(times):
                runtime.record(events[0], stream)
                for _ in range(launches):
                    self._launch(stream, blocks, threads, arguments)
                runtime.record(events[1], stream)
                runtime.synchronize(stream)
                found.append(runtime.elapsed_ms(*events) / launches)
        finally:
            for event in events:
                runtime.destroy_event(event)
            runtime.destroy_stream(stream)
        return min(found)
