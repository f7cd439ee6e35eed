"""NVIDIA's CUDA runtime, called through ctypes: what an engine needs of it, and nothing else.

TVM's own runtime for GPUs, ``libtvm_runtime_cuda.so``, is linked against the driver's library
(``libcuda.so.1``) and CUDA's (``libcudart.so.13``). The first comes with the driver; the second is
taken from where the dynamic linker finds it, or else from the PyPI package ``nvidia-cuda-runtime``.
What is missing, too old or full is said here, in errors that a user can act on.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..common.errors import DeviceError
from .cuda_graphs import GraphEditor
from .tvm_runtime import load_runtime

CUDA = 2  # kDLCUDA
_DRIVER = "libcuda.so.1"
_RUNTIME = "libcudart.so.13"
_OLDEST_DRIVER = "580"  # the first series with CUDA 13

# cudaError_t
_OUT_OF_MEMORY = 2
_INSUFFICIENT_DRIVER = 35
_NO_DEVICE = 100
# cudaDeviceAttr
_CAPABILITY_MAJOR, _CAPABILITY_MINOR, _MULTIPROCESSORS, _LEVEL_2_BYTES = 75, 76, 16, 38
# cudaMemcpyKind
_TO_DEVICE, _TO_HOST, _ON_DEVICE = 1, 2, 3
_STREAM_NON_BLOCKING = 1
# In this mode calls of other threads, and allocations of this one, do not end the capture.
_CAPTURE_RELAXED = 2

_ON_PROCESSOR = "or compile for a processor (--target host)"

Handle = ctypes.c_void_p
_pointer, _int, _size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
_SIGNATURES: dict[str, tuple[type, ...]] = {
    "cudaGetDeviceCount": (_pointer,),
    "cudaGetDevice": (_pointer,),
    "cudaSetDevice": (_int,),
    "cudaDeviceGetAttribute": (_pointer, _int, _int),
    "cudaDriverGetVersion": (_pointer,),
    "cudaMemGetInfo": (_pointer, _pointer),
    "cudaMalloc": (_pointer, _size),
    "cudaFree": (_pointer,),
    "cudaMallocHost": (_pointer, _size),
    "cudaFreeHost": (_pointer,),
    "cudaMemcpyAsync": (_pointer, _pointer, _size, _int, _pointer),
    "cudaStreamCreateWithFlags": (_pointer, ctypes.c_uint),
    "cudaStreamDestroy": (_pointer,),
    "cudaStreamSynchronize": (_pointer,),
    "cudaStreamBeginCapture": (_pointer, _int),
    "cudaStreamEndCapture": (_pointer, _pointer),
    "cudaGraphInstantiate": (_pointer, _pointer, ctypes.c_ulonglong),
    "cudaGraphUpload": (_pointer, _pointer),
    "cudaGraphLaunch": (_pointer, _pointer),
    "cudaGraphDestroy": (_pointer,),
    "cudaGraphExecDestroy": (_pointer,),
    "cudaEventCreateWithFlags": (_pointer, ctypes.c_uint),
    "cudaEventDestroy": (_pointer,),
    "cudaEventRecord": (_pointer, _pointer),
    "cudaEventElapsedTime": (_pointer, _pointer, _pointer),
    "cudaGetLastError": (),
}


def device_text(index: int) -> str:
    """Name of a GPU as the option ``--device`` takes it."""
    return f"cuda:{index}"


class CudaRuntime:
    """The CUDA runtime of this process.

    Handles of streams, graphs and events are integers. Every method raises `DeviceError` if CUDA
    reports one.

    Parameters
    ----------
    library
        ``libcudart``.
    driver
        ``libcuda``.
    """

    def __init__(self, library: ctypes.CDLL, driver: ctypes.CDLL) -> None:
        library.cudaGetErrorName.restype = library.cudaGetErrorString.restype = ctypes.c_char_p
        self._library = library
        self._graphs = GraphEditor(driver)
        self._functions: dict[str, Callable[..., int]] = {}
        for name, arguments in _SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, _int
            self._functions[name] = function
        # The two calls of every run, without a look-up.
        self._graph_launch = self._functions["cudaGraphLaunch"]
        self._synchronize = self._functions["cudaStreamSynchronize"]

    # -- devices ----------------------------------------------------------------------------------

    def count(self) -> int:
        """Number of GPUs; an error if there is none, or if the driver cannot be used."""
        found = _int(0)
        status = self._functions["cudaGetDeviceCount"](ctypes.byref(found))
        if status == 0 and found.value > 0:
            return found.value
        self._functions["cudaGetLastError"]()
        if status == _INSUFFICIENT_DRIVER:
            raise DeviceError(
                "the NVIDIA driver of this machine is too old",
                why=f"it serves CUDA {self._driver_version()}, and TVM's runtime is made for "
                "CUDA 13",
                todo=f"install a driver of series {_OLDEST_DRIVER} or later, compile with extra "
                f"cuda12 for --runtime none (docs/cuda.md), {_ON_PROCESSOR}",
            )
        if status in (0, _NO_DEVICE):
            raise DeviceError(
                "there is no NVIDIA GPU on this machine",
                why="the driver is installed and finds no device"
                + " (or CUDA_VISIBLE_DEVICES hides it)",
                todo=f"see what nvidia-smi lists; run on a machine with a GPU, {_ON_PROCESSOR}",
            )
        raise DeviceError(
            "the NVIDIA driver of this machine cannot be used",
            why=self._words(status),
            todo=f"see whether nvidia-smi works, {_ON_PROCESSOR}",
        )

    def _driver_version(self) -> str:
        """Latest version of CUDA that the driver serves."""
        version = _int(0)
        if self._functions["cudaDriverGetVersion"](ctypes.byref(version)) != 0 or not version.value:
            return "of an earlier version"
        return f"{version.value // 1000}.{version.value % 1000 // 10}"

    def capability(self, index: int) -> tuple[int, int]:
        """Major and minor compute capability of a GPU."""
        major = self._attribute(_CAPABILITY_MAJOR, index)
        return major, self._attribute(_CAPABILITY_MINOR, index)

    def multiprocessors(self, index: int) -> int:
        """Number of multiprocessors of a GPU."""
        return self._attribute(_MULTIPROCESSORS, index)

    def cache_bytes(self, index: int) -> int:
        """Size of the level-2 cache of a GPU."""
        return self._attribute(_LEVEL_2_BYTES, index)

    def name(self, index: int) -> str:
        """Name that the driver gives a GPU, for example ``Tesla T4``."""
        attribute = load_runtime().get_global_func("runtime.GetDeviceAttr")
        return str(attribute(CUDA, index, 5))  # kDeviceName

    def _attribute(self, which: int, index: int) -> int:
        value = _int(0)
        self._call("cudaDeviceGetAttribute", ctypes.byref(value), which, index)
        return value.value

    def usable(self) -> bool:
        """Whether CUDA still works: after an illegal access of a kernel, all calls fail."""
        return self._functions["cudaFree"](None) == 0

    @contextmanager
    def on_device(self, index: int) -> Iterator[None]:
        """Make a GPU the current one of this thread for the duration of a block."""
        before = _int(0)
        self._call("cudaGetDevice", ctypes.byref(before))
        if before.value == index:
            yield
            return
        self._call("cudaSetDevice", index)
        try:
            yield
        finally:
            self._functions["cudaSetDevice"](before.value)

    # -- memory -----------------------------------------------------------------------------------

    def allocate(self, size: int, what: str, index: int) -> int:
        """Allocate device memory on the current GPU, which is number `index`; `what` it is for."""
        address = _pointer(0)
        status = self._functions["cudaMalloc"](ctypes.byref(address), max(size, 1))
        if status == _OUT_OF_MEMORY:
            self._functions["cudaGetLastError"]()
            raise self.out_of_memory(index, f"{what} of {size / 1e6:.1f} MB")
        self._check(status, "cudaMalloc")
        return address.value or 0

    def out_of_memory(self, index: int, what: str) -> DeviceError:
        """Error that says what found no place on a GPU, and how much of it there is."""
        free, total = _size(0), _size(0)
        known = self._functions["cudaMemGetInfo"](ctypes.byref(free), ctypes.byref(total)) == 0
        why = f"there is no place for {what}"
        if known:
            why += f": {free.value / 1e6:.1f} MB of {total.value / 1e6:.1f} MB are free"
        return DeviceError(
            f"the memory of the GPU {device_text(index)} is full",
            why=why,
            todo="end other programs that use it (nvidia-smi lists them), compile for smaller "
            "batches, or choose another GPU",
        )

    def free_bytes(self) -> int:
        """Memory of the current GPU that nobody has."""
        free, total = _size(0), _size(0)
        self._call("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def free(self, address: int) -> None:
        """Give device memory back; nothing is raised where the process ends."""
        self._functions["cudaFree"](address)

    def allocate_pinned(self, size: int) -> int:
        """Allocate host memory that the GPU reads and writes directly."""
        return self._made("cudaMallocHost", max(size, 1))

    def free_pinned(self, address: int) -> None:
        """Give pinned memory back; nothing is raised where the process ends."""
        self._functions["cudaFreeHost"](address)

    def to_device(self, device: int, host: int, size: int, stream: int) -> None:
        """Copy from the host, in the order of the stream."""
        self._call("cudaMemcpyAsync", device, host, size, _TO_DEVICE, stream)

    def to_host(self, host: int, device: int, size: int, stream: int) -> None:
        """Copy to the host, in the order of the stream."""
        self._call("cudaMemcpyAsync", host, device, size, _TO_HOST, stream)

    def copy(self, to: int, source: int, size: int, stream: int) -> None:
        """Copy from one place of the GPU's memory to another, in the order of the stream."""
        self._call("cudaMemcpyAsync", to, source, size, _ON_DEVICE, stream)

    # -- streams and graphs -----------------------------------------------------------------------

    def create_stream(self) -> int:
        """Make a stream that does not wait for the one that everything else uses."""
        return self._made("cudaStreamCreateWithFlags", _STREAM_NON_BLOCKING)

    def destroy_stream(self, stream: int) -> None:
        """Give a stream back; nothing is raised where the process ends."""
        self._functions["cudaStreamDestroy"](stream)

    def synchronize(self, stream: int) -> None:
        """Wait until the stream has done all its work."""
        status = self._synchronize(stream)
        if status != 0:
            self._check(status, "cudaStreamSynchronize")

    def capture(self, stream: int, work: Callable[[], None]) -> int:
        """Make a graph of what a function puts into a stream.

        Parameters
        ----------
        stream
            Stream; nothing of `work` is executed.
        work
            Puts copies and kernels into the stream.

        Returns
        -------
        int
            For `instantiate`; `destroy_graph` gives it back.
        """
        graph = _pointer(0)
        self._call("cudaStreamBeginCapture", stream, _CAPTURE_RELAXED)
        try:
            work()
        except BaseException:
            if self._functions["cudaStreamEndCapture"](stream, ctypes.byref(graph)) == 0:
                self._functions["cudaGraphDestroy"](graph)
            self._functions["cudaGetLastError"]()
            raise
        self._call("cudaStreamEndCapture", stream, ctypes.byref(graph))
        return graph.value or 0

    def instantiate(
        self, graph: int, stream: int, blocks: Callable[[str, int], int] | None = None
    ) -> int:
        """Make a graph that can be launched.

        Parameters
        ----------
        graph
            From `capture`.
        stream
            Where it will be launched.
        blocks
            As for `GraphEditor.set_blocks`; None to launch kernels as they were captured.

        Returns
        -------
        int
            For `launch`; `destroy_executable` gives it back.
        """
        executable = self._made("cudaGraphInstantiate", graph, 0)
        try:
            if blocks is not None:
                self._graphs.set_blocks(graph, executable, blocks)
            self._call("cudaGraphUpload", executable, stream)
        except BaseException:
            self.destroy_executable(executable)
            raise
        return executable

    def launch(self, graph: int, stream: int) -> None:
        """Put all work of a graph into a stream with one call."""
        status = self._graph_launch(graph, stream)
        if status != 0:
            self._check(status, "cudaGraphLaunch")

    def destroy_graph(self, graph: int) -> None:
        """Give a graph back; nothing is raised where the process ends."""
        self._functions["cudaGraphDestroy"](graph)

    def destroy_executable(self, graph: int) -> None:
        """Give back what `instantiate` made, likewise."""
        self._functions["cudaGraphExecDestroy"](graph)

    # -- events -----------------------------------------------------------------------------------

    def create_event(self) -> int:
        """Make an event that takes the time."""
        return self._made("cudaEventCreateWithFlags", 0)

    def destroy_event(self, event: int) -> None:
        """Give an event back; nothing is raised where the process ends."""
        self._functions["cudaEventDestroy"](event)

    @contextmanager
    def events(self, count: int) -> Iterator[list[int]]:
        """Make events for the duration of a block."""
        events: list[int] = []
        try:
            for _ in range(count):
                events.append(self.create_event())
            yield events
        finally:
            for event in events:
                self.destroy_event(event)

    def record(self, event: int, stream: int) -> None:
        """Have an event take the time when the stream gets to it."""
        self._call("cudaEventRecord", event, stream)

    def elapsed_ms(self, first: int, last: int) -> float:
        """Milliseconds between two events that have happened."""
        value = ctypes.c_float(0)
        self._call("cudaEventElapsedTime", ctypes.byref(value), first, last)
        return value.value

    # -- errors -----------------------------------------------------------------------------------

    def _call(self, name: str, *arguments: object) -> None:
        self._check(self._functions[name](*arguments), name)

    def _made(self, name: str, *arguments: object) -> int:
        """What a function makes, which it gives through its first argument."""
        made = _pointer(0)
        self._call(name, ctypes.byref(made), *arguments)
        return made.value or 0

    def _check(self, status: int, name: str) -> None:
        if status == 0:
            return
        self._functions["cudaGetLastError"]()
        todo = (
            "run it again in a new process, since CUDA can be unusable after an error; nvidia-smi "
            "shows the state of the GPU"
        )
        if status == _OUT_OF_MEMORY:
            todo = "end programs that use much memory of the GPU or of this machine"
        raise DeviceError(
            "the GPU reports an error", where=name, why=self._words(status), todo=todo
        )

    def _words(self, status: int) -> str:
        name = self._library.cudaGetErrorName(status).decode()
        return f"{self._library.cudaGetErrorString(status).decode()} ({name}, {status})"


@functools.cache
def cuda_runtime() -> CudaRuntime:
    """Load the driver's library, CUDA's, and TVM's runtime for GPUs.

    Returns
    -------
    CudaRuntime
        The one of this process.

    Raises
    ------
    DeviceError
        If there is no driver, no CUDA runtime, or no such runtime of TVM.
    """
    try:
        driver = ctypes.CDLL(_DRIVER, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise DeviceError(
            "there is no NVIDIA driver on this machine",
            why=str(error),
            todo=f"install the driver of the GPU, series {_OLDEST_DRIVER} or later; run on a "
            f"machine that has one; {_ON_PROCESSOR}",
        ) from error
    library = _load_cudart()
    _load_tvm()
    return CudaRuntime(library, driver)


def _load_cudart() -> ctypes.CDLL:
    """CUDA's runtime library, where the dynamic linker or a Python package has it."""
    places = [_RUNTIME]
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec and spec.submodule_search_locations) or ():
        places += [str(path) for path in sorted(Path(folder).glob(f"*/lib/{_RUNTIME}"))]
    errors = []
    for place in places:
        try:
            return ctypes.CDLL(place, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            errors.append(str(error))
    raise DeviceError(
        "the CUDA runtime is not installed",
        where=_RUNTIME,
        why="; ".join(errors),
        todo="pip install 'ibert-tvm[cuda]', or install NVIDIA's CUDA 13",
    )


def _load_tvm() -> None:
    """TVM's runtime for GPUs, which registers its devices with the runtime that there is."""
    load_runtime()
    spec = importlib.util.find_spec("tvm")
    folders = (spec and spec.submodule_search_locations) or ()
    files = [Path(folder) / "lib" / "libtvm_runtime_cuda.so" for folder in folders]
    why, cause = "this package of TVM has no libtvm_runtime_cuda.so", None
    try:
        for file in files:
            if file.exists():
                ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)
                return
    except OSError as error:
        why, cause = str(error), error
    raise DeviceError(
        "TVM's runtime for GPUs cannot be loaded",
        where=", ".join(map(str, files)),
        why=why,
        todo="install apache-tvm for Linux on x86-64 with the versions of constraints.txt",
    ) from cause
