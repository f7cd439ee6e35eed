"""Streams, graphs, memory and errors of the stand-in driver are CUDA's.

Work is done as late as CUDA allows, so what these tests see is what a program must not rely on.
"""

import ctypes
import sys

import numpy as np
import pytest

from tests.arm.tools import needs
from tests.cuda.kernel_image import kernel_image
from tests.cuda.stand_in_gpu import environment, libraries, load
from tests.processes import run_captured

TO_DEVICE, TO_HOST = 1, 2
ADD = 'extern "C" __global__ void add(int* a, int b) { a[threadIdx.x] += b; }'
(INVALID_VALUE, OUT_OF_MEMORY, BAD_DIRECTION, NO_DEVICE, BAD_HANDLE, NOT_READY) = (
    1, 2, 21, 100, 400, 600,
)  # fmt: skip
(CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED, CAPTURE_UNMATCHED, CAPTURE_IMPLICIT) = (
    900, 901, 903, 906,
)  # fmt: skip
GLOBAL, THREAD_LOCAL, RELAXED = range(3)


class Cuda:
    """Functions of the two libraries that return their error, and handles that are let go."""

    def __init__(self) -> None:
        needs("g++")
        self.gpu = load()
        self.gpu.become(75)
        module, self.add = ctypes.c_void_p(), ctypes.c_void_p()
        cuda = self.gpu.cuda
        assert cuda.cuModuleLoadData(ctypes.byref(module), kernel_image(ADD, 75)) == 0
        assert cuda.cuModuleGetFunction(ctypes.byref(self.add), module, b"add") == 0

    def __getattr__(self, name: str):
        return getattr(self.gpu.cudart, name)

    def new(self, name: str, *arguments) -> ctypes.c_void_p:
        """Call a function whose first argument is what it gives."""
        handle = ctypes.c_void_p()
        assert getattr(self, name)(ctypes.byref(handle), *arguments) == 0, name
        return handle

    def pinned(self, values: np.ndarray) -> np.ndarray:
        """Array in memory that copies may read late."""
        pointer = self.new("cudaMallocHost", ctypes.c_size_t(values.nbytes))
        buffer = (ctypes.c_char * values.nbytes).from_address(pointer.value)
        array = np.frombuffer(buffer, values.dtype)
        array[:] = values
        return array

    def copy(self, to, source, kind: int, stream=None, size: int = 128) -> int:
        """Copy between arrays and device addresses."""
        pointers = [
            ctypes.c_void_p(x.ctypes.data) if isinstance(x, np.ndarray) else x for x in (to, source)
        ]
        return self.cudaMemcpyAsync(*pointers, ctypes.c_size_t(size), kind, stream)

    def launch(self, address: ctypes.c_void_p, number: int, stream=None) -> int:
        """Add a number to 32 integers."""
        values = (address, ctypes.c_int(number))
        pointers = (ctypes.c_void_p * 2)(
            *(ctypes.cast(ctypes.pointer(value), ctypes.c_void_p) for value in values)
        )
        return self.gpu.cuda.cuLaunchKernel(self.add, 1, 1, 1, 32, 1, 1, 0, stream, pointers, None)

    def read(self, address: ctypes.c_void_p, stream=None) -> int:
        """First of 32 equal integers."""
        values = np.zeros(32, np.int32)
        assert self.copy(values, address, TO_HOST, stream) == 0
        assert (values == values[0]).all()
        return int(values[0])


@pytest.fixture
def cuda():
    return Cuda()


@pytest.fixture
def memory(cuda):
    """32 integers of device memory, all 7."""
    address = cuda.new("cudaMalloc", ctypes.c_size_t(128))
    assert cuda.copy(address, np.full(32, 7, np.int32), TO_DEVICE) == 0
    yield address
    cuda.gpu.reset()
    assert cuda.cudaFree(address) == 0


@pytest.fixture
def stream(cuda):
    handle = cuda.new("cudaStreamCreateWithFlags", 1)
    yield handle
    assert cuda.cudaStreamDestroy(handle) == 0


def test_copies_of_pinned_memory_are_late(cuda, memory, stream):
    source, to = cuda.pinned(np.full(32, 1, np.int32)), cuda.pinned(np.zeros(32, np.int32))
    assert cuda.copy(memory, source, TO_DEVICE, stream) == 0
    assert cuda.launch(memory, 100, stream) == 0
    assert cuda.copy(to, memory, TO_HOST, stream) == 0
    source[:] = 2  # too early
    assert (to == 0).all()  # too early, too
    assert cuda.cudaStreamSynchronize(stream) == 0
    assert (to == 102).all()
    for array in (source, to):
        assert cuda.cudaFreeHost(ctypes.c_void_p(array.ctypes.data)) == 0


def test_copies_of_pageable_memory_are_over_when_they_return(cuda, memory, stream):
    source = np.full(32, 1, np.int32)
    assert cuda.copy(memory, source, TO_DEVICE, stream) == 0
    source[:] = 2
    assert cuda.launch(memory, 10, stream) == 0
    assert cuda.read(memory, stream) == 11


def test_the_default_stream_waits_for_blocking_streams_only(cuda, memory):
    blocking = cuda.new("cudaStreamCreate")
    other = cuda.new("cudaStreamCreateWithFlags", 1)
    assert cuda.launch(memory, 1, blocking) == 0
    assert cuda.read(memory) == 8
    assert cuda.launch(memory, 10, other) == 0
    assert cuda.read(memory) == 8  # 10 is still to be added
    assert cuda.cudaStreamSynchronize(other) == 0
    assert cuda.read(memory) == 18
    # And the other way round.
    assert cuda.launch(memory, 100) == 0
    assert cuda.read(memory, other) == 18
    assert cuda.read(memory, blocking) == 118
    for handle in (blocking, other):
        assert cuda.cudaStreamDestroy(handle) == 0


def test_events_order_streams(cuda, memory, stream):
    other = cuda.new("cudaStreamCreateWithFlags", 1)
    event = cuda.new("cudaEventCreate")
    assert cuda.launch(memory, 1, other) == 0
    assert cuda.cudaEventRecord(event, other) == 0
    assert cuda.launch(memory, 10, other) == 0
    assert cuda.cudaStreamWaitEvent(stream, event, 0) == 0
    assert cuda.read(memory, stream) == 8
    assert cuda.cudaStreamSynchronize(other) == 0
    assert cuda.read(memory, stream) == 18
    assert cuda.cudaEventDestroy(event) == 0
    assert cuda.cudaStreamDestroy(other) == 0


def test_time_between_events(cuda, memory, stream):
    first, last = cuda.new("cudaEventCreate"), cuda.new("cudaEventCreateWithFlags", 0)
    elapsed = ctypes.c_float(-1)
    assert cuda.cudaEventElapsedTime(ctypes.byref(elapsed), first, last) == BAD_HANDLE
    assert cuda.cudaEventRecord(first, stream) == 0
    assert cuda.launch(memory, 1, stream) == 0
    assert cuda.cudaEventRecord(last, stream) == 0
    assert cuda.cudaEventElapsedTime(ctypes.byref(elapsed), first, last) == NOT_READY
    assert cuda.cudaEventSynchronize(last) == 0
    assert cuda.cudaEventElapsedTime(ctypes.byref(elapsed), first, last) == 0
    assert 0 <= elapsed.value < 60_000  # milliseconds, on a machine that has much to do
    assert cuda.read(memory, stream) == 8
    for event in (first, last):
        assert cuda.cudaEventDestroy(event) == 0


def capture(cuda, stream, work, mode: int = RELAXED) -> ctypes.c_void_p:
    """Executable graph of what `work` puts in a stream."""
    assert cuda.cudaStreamBeginCapture(stream, mode) == 0
    work()
    graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
    assert cuda.cudaStreamEndCapture(stream, ctypes.byref(graph)) == 0
    code = cuda.cudaGraphInstantiate(ctypes.byref(executable), graph, ctypes.c_uint64(0))
    assert code == 0
    assert cuda.cudaGraphDestroy(graph) == 0
    return executable


def test_graphs_repeat_what_was_captured(cuda, memory, stream):
    source, to = cuda.pinned(np.full(32, 1, np.int32)), cuda.pinned(np.zeros(32, np.int32))

    def work() -> None:
        assert cuda.copy(memory, source, TO_DEVICE, stream) == 0
        assert cuda.launch(memory, 10, stream) == 0
        assert cuda.launch(memory, 20, stream) == 0
        assert cuda.copy(to, memory, TO_HOST, stream) == 0

    executable = capture(cuda, stream, work)
    assert cuda.read(memory) == 7  # nothing was done yet
    launches, kernels = cuda.gpu.calls("cudaGraphLaunch"), cuda.gpu.calls("kernel")
    for number in (1, 5):
        source[:] = number
        assert cuda.cudaGraphLaunch(executable, stream) == 0
        assert cuda.cudaStreamSynchronize(stream) == 0
        assert (to == number + 30).all()
    assert cuda.gpu.calls("cudaGraphLaunch") - launches == 2
    assert cuda.gpu.calls("kernel") - kernels == 4
    assert cuda.cudaGraphExecDestroy(executable) == 0
    for array in (source, to):
        assert cuda.cudaFreeHost(ctypes.c_void_p(array.ctypes.data)) == 0


def test_a_graph_keeps_addresses_of_memory_that_is_freed(cuda, memory, stream):
    freed = cuda.new("cudaMalloc", ctypes.c_size_t(128))
    executable = capture(cuda, stream, lambda: cuda.launch(freed, 1, stream))
    assert cuda.cudaFree(freed) == 0
    assert cuda.cudaGraphLaunch(executable, stream) == 0
    assert cuda.cudaStreamSynchronize(stream) == 700
    assert cuda.gpu.report == "kernel add: argument 0 is memory that has been freed"
    cuda.gpu.reset()
    assert cuda.cudaGraphExecDestroy(executable) == 0


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED])
def test_memory_is_not_allocated_during_a_capture(cuda, memory, stream, mode):
    assert cuda.cudaStreamBeginCapture(stream, mode) == 0
    pointer, graph = ctypes.c_void_p(), ctypes.c_void_p()
    allocated = cuda.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(64))
    ended = cuda.cudaStreamEndCapture(stream, ctypes.byref(graph))
    if mode == RELAXED:
        assert (allocated, ended) == (0, 0)
        assert cuda.cudaFree(pointer) == 0
        assert cuda.cudaGraphDestroy(graph) == 0
    else:
        assert (allocated, ended) == (CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED)
        assert graph.value is None


def test_a_captured_stream_is_not_waited_for(cuda, memory, stream):
    graph = ctypes.c_void_p()
    assert cuda.cudaStreamBeginCapture(stream, RELAXED) == 0
    assert cuda.cudaStreamSynchronize(stream) == CAPTURE_UNSUPPORTED
    assert cuda.launch(memory, 1, stream) == CAPTURE_INVALIDATED
    assert cuda.cudaStreamEndCapture(stream, ctypes.byref(graph)) == CAPTURE_INVALIDATED
    assert cuda.cudaStreamEndCapture(stream, ctypes.byref(graph)) == CAPTURE_UNMATCHED
    assert cuda.cudaGetLastError() == CAPTURE_UNMATCHED
    assert cuda.cudaGetLastError() == 0
    assert cuda.read(memory) == 7


def test_pageable_memory_is_not_captured(cuda, memory, stream):
    graph = ctypes.c_void_p()
    assert cuda.cudaStreamBeginCapture(stream, RELAXED) == 0
    code = cuda.copy(np.zeros(32, np.int32), memory, TO_HOST, stream)
    assert code == CAPTURE_UNSUPPORTED
    assert cuda.cudaStreamEndCapture(stream, ctypes.byref(graph)) == CAPTURE_INVALIDATED


def test_the_default_stream_during_a_capture(cuda, memory):
    blocking, graph = cuda.new("cudaStreamCreate"), ctypes.c_void_p()
    assert cuda.cudaStreamBeginCapture(blocking, RELAXED) == 0
    assert cuda.launch(memory, 1) == CAPTURE_IMPLICIT
    assert cuda.cudaStreamEndCapture(blocking, ctypes.byref(graph)) == CAPTURE_INVALIDATED
    assert cuda.cudaStreamBeginCapture(None, RELAXED) == CAPTURE_UNSUPPORTED
    assert cuda.cudaStreamDestroy(blocking) == 0


def test_copies_that_are_refused(cuda, memory):
    host = np.zeros(64, np.int32)
    assert cuda.copy(host, memory, TO_DEVICE) == BAD_DIRECTION
    assert cuda.copy(memory, host, TO_HOST) == BAD_DIRECTION
    assert cuda.copy(memory, host, TO_DEVICE, size=129) == INVALID_VALUE
    assert cuda.cudaFree(ctypes.c_void_p(memory.value + 512)) == INVALID_VALUE
    assert cuda.cudaFreeHost(ctypes.c_void_p(host.ctypes.data)) == INVALID_VALUE
    assert cuda.cudaStreamSynchronize(ctypes.c_void_p(host.ctypes.data)) == BAD_HANDLE
    cuda.cudaGetLastError()


def test_memory_is_reused_and_counted(cuda):
    before = cuda.gpu.memory()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    handles = [cuda.new("cudaMalloc", ctypes.c_size_t(1000 * i)) for i in range(1, 6)]
    assert all(handle.value % 256 == 0 for handle in handles)
    assert cuda.gpu.memory() == before + 15000
    assert cuda.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total)) == 0
    assert total.value - free.value == before + 15000
    for i in (1, 3, 2, 0, 4):
        assert cuda.cudaFree(handles[i]) == 0
    assert cuda.gpu.memory() == before
    again = [cuda.new("cudaMalloc", ctypes.c_size_t(1000 * i)) for i in range(1, 6)]
    assert [handle.value for handle in again] == [handle.value for handle in handles]
    for handle in again:
        assert cuda.cudaFree(handle) == 0
    huge = ctypes.c_void_p()
    code = cuda.cudaMalloc(ctypes.byref(huge), ctypes.c_size_t(total.value + 1))
    assert (code, huge.value) == (OUT_OF_MEMORY, None)
    cuda.cudaGetLastError()


def test_names_of_errors(cuda):
    cuda.cudaGetErrorName.restype = cuda.cudaGetErrorString.restype = ctypes.c_char_p
    assert cuda.cudaGetErrorName(2) == b"cudaErrorMemoryAllocation"
    assert cuda.cudaGetErrorString(100) == b"no CUDA-capable device is detected"


PROGRAM = """
import ctypes
cudart = ctypes.CDLL("libcudart.so.13")
count, value, pointer = ctypes.c_int(-1), ctypes.c_int(), ctypes.c_void_p()
codes = [cudart.cudaGetDeviceCount(ctypes.byref(count)), cudart.cudaSetDevice(0)]
if not any(codes):
    for attribute in (75, 76, 16, 97):
        assert cudart.cudaDeviceGetAttribute(ctypes.byref(value), attribute, 0) == 0
        codes.append(value.value)
    for size in (1000, 2000, 3000):
        codes.append(cudart.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size)))
print(count.value, codes)
"""


@pytest.mark.parametrize(
    ("settings", "answer"),
    [
        ({}, "1 [0, 0, 7, 5, 40, 65536, 0, 0, 0]"),
        ({"capability": 80}, "1 [0, 0, 8, 0, 108, 166912, 0, 0, 0]"),
        ({"capability": 90}, "1 [0, 0, 9, 0, 132, 232448, 0, 0, 0]"),
        ({"devices": 0}, "0 [100, 100]"),
        ({"memory": 4000}, "1 [0, 0, 7, 5, 40, 65536, 0, 0, 2]"),
        ({"fail": "cudaMalloc:2:2"}, "1 [0, 0, 7, 5, 40, 65536, 0, 2, 2]"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_settings(settings, answer):
    needs("g++")
    done = run_captured([sys.executable, "-c", PROGRAM], env=environment(**settings), check=True)
    assert done.stdout.strip() == answer


def test_every_function_that_tvm_needs_is_there():
    import tvm

    needs("g++", "nm")
    path = f"{tvm.__path__[0]}/lib/libtvm_runtime_cuda.so"
    listed = run_captured(["nm", "-D", "--undefined-only", path], check=True).stdout.split()
    names = {name.split("@")[0] for name in listed if name.startswith("cu")}
    assert len(names) > 35
    defined = ""
    for name in ("libcuda.so.1", "libcudart.so.13"):
        defined += run_captured(
            ["nm", "-D", "--defined-only", str(libraries() / name)], check=True
        ).stdout
    missing = names - {word.split("@")[0] for word in defined.split()}
    assert not missing
