"""Running a library on an NVIDIA GPU: one graph launch and one synchronisation per run.

What a run does is always the same: copy the inputs from pinned memory, launch every kernel of the
encoder, copy the outputs to pinned memory. So the first run of a shape lets TVM's virtual machine
do it once, then lets CUDA capture it a second time as a graph. From then on a run is two calls of
CUDA's runtime: the virtual machine, its hundreds of arguments and the launches of single kernels
cost nothing any more, and no memory is allocated, here or on the GPU.

The weights are uploaded once per process and GPU, in one piece, whatever number of libraries were
loaded from the file. Every loaded library has a stream of its own, so that libraries in several
threads share the GPU.
"""

from __future__ import annotations

import ctypes
import math
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ibert_tvm.cuda_memory import DeviceBlock, DeviceTensor, PinnedBlock, uploaded_weights
from ibert_tvm.cuda_runtime import CUDA, CudaRuntime, cuda_runtime, device_text, runs_on
from ibert_tvm.engine import Observer, load_runtime
from ibert_tvm.errors import DeviceError
from ibert_tvm.library_file import LibraryMetadata, ParameterRecord

__all__ = ["CudaEngine"]

_HOST = 1  # kDLCPU, where the virtual machine keeps shapes
# What a library takes of the GPU's memory is given back with it, and not kept in a pool: no run
# but the first one allocates.
_PLAIN_ALLOCATOR = 1
_ALIGNMENT = 256  # of cudaMalloc, and of every part of a block here
_VIRTUAL_MACHINE = "vm."
# Of CUDA's runtime and of the driver, as TVM's errors cite them.
_OUT_OF_MEMORY = ("cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY")
_FIRST_WITH_TENSOR_CORES = (7, 5)
# How long the GPU is kept busy while kernels that shall be timed are queued behind: more than
# queueing several hundred of them takes.
_QUEUEING_MS = 20.0
_MOST_LEADING_RUNS = 1000


@dataclass(frozen=True)
class _Stage:
    """Inputs of one shape: pinned on the host, and where they come to lie on the GPU."""

    host: PinnedBlock
    device: DeviceBlock
    arrays: tuple[NDArray[Any], ...]
    tensors: tuple[DeviceTensor, ...]


@dataclass(frozen=True)
class _Captured:
    """One function as a graph, and what its copies and kernels use."""

    graph: int
    outputs: list[NDArray[Any]]
    tensors: list[Any]
    kept: tuple[Any, ...]


class CudaEngine:
    """A library that is loaded on a GPU; takes the place of `ibert_tvm.engine.Engine`.

    One call runs at a time: `ibert_tvm.runtime.Library` sees to that. Engines of several libraries
    may run at the same time, in several threads.

    Parameters
    ----------
    metadata : LibraryMetadata
        What the library says about itself.
    index : int
        Number of the GPU.

    Attributes
    ----------
    device : str
        The GPU, for example ``"cuda:0"``.
    name : str
        What the driver calls it.
    architecture : str
        What it is, for example ``"sm_75"``.
    multiprocessors : int
        How many it has.

    Raises
    ------
    DeviceError
        If there is no driver, no GPU of this number or none that the library has code for, or if
        its memory is full.
    """

    def __init__(self, metadata: LibraryMetadata, index: int = 0) -> None:
        self.metadata = metadata
        self._cuda = cuda_runtime()
        self._index = index
        self.device = device_text(index)
        self.architecture = _checked_gpu(self._cuda, metadata, index)
        self.name = self._cuda.name(index)
        self.multiprocessors = self._cuda.multiprocessors(index)
        self._ffi = load_runtime()
        path = str(metadata.path.resolve())
        module = self._ffi.load_module(path)
        # The same mapping that TVM has; see ibert_tvm.engine.
        self._shared_object = ctypes.CDLL(path)
        self._captured: dict[str, _Captured] = {}
        self._stages: list[_Stage] = []
        self._observer: Observer | None = None
        with self._cuda.on_device(index):
            self._stream = self._cuda.create_stream()
            weakref.finalize(self, self._cuda.destroy_stream, self._stream).atexit = False
            self.machine = module["vm_load_executable"]()
            weakref.finalize(self, _release, self._cuda, self.machine)
            self.machine["vm_initialization"](
                *(CUDA, index, _PLAIN_ALLOCATOR), *(_HOST, 0, _PLAIN_ALLOCATOR)
            )
            self._weights = uploaded_weights(self._cuda, metadata, self._mapped(), index)
        self._functions = {f.name: self.machine[f.name] for f in metadata.functions}

    def _mapped(self) -> int:
        return ctypes.addressof(ctypes.c_char.in_dll(self._shared_object, "ibert_weights"))

    def array(self, record: ParameterRecord) -> NDArray[Any]:
        """NumPy view of one parameter where the dynamic linker mapped it, on the host."""
        count = math.prod(record.shape)
        memory = (ctypes.c_char * record.num_bytes).from_address(self._mapped() + record.offset)
        return np.frombuffer(memoryview(memory), record.dtype, count).reshape(record.shape)

    def parameter(self, record: ParameterRecord) -> DeviceTensor:
        """Tensor on a parameter that was uploaded with all others."""
        return DeviceTensor(self._weights, record.offset, record.shape, record.dtype, self._index)

    def buffers(self, kinds: Sequence[tuple[Sequence[int], str]]) -> list[NDArray[Any]]:
        """Arrays of zeros for the inputs of one function, which `tensor` is given afterwards.

        Parameters
        ----------
        kinds : sequence of (shape, dtype)
            Of each input.

        Returns
        -------
        list of numpy.ndarray
            In one piece of pinned memory, so that a run copies them at once.
        """
        offsets, size = _places(kinds)
        with self._cuda.on_device(self._index):
            host = PinnedBlock(self._cuda, size)
            device = DeviceBlock(self._cuda, self._index, size, "the inputs")
        ctypes.memset(host.address, 0, size)
        arrays, tensors = [], []
        for offset, (shape, dtype) in zip(offsets, kinds, strict=True):
            arrays.append(host.array(offset, shape, dtype))
            tensors.append(DeviceTensor(device, offset, shape, dtype, self._index))
        self._stages.append(_Stage(host, device, tuple(arrays), tuple(tensors)))
        return arrays

    def tensor(self, array: NDArray[Any]) -> DeviceTensor:
        """Tensor on the GPU that every run copies an array of `buffers` to."""
        for stage in self._stages:
            for own, tensor in zip(stage.arrays, stage.tensors, strict=True):
                if own is array:
                    return tensor
        raise ValueError("the array is none of the engine's buffers")

    def call(self, name: str, arguments: Sequence[Any], _num_threads: int) -> list[NDArray[Any]]:
        """Run a function on what is in the buffers of its inputs.

        Parameters
        ----------
        name : str
            One of the library's functions.
        arguments : sequence of tensor
            Its inputs, all tensors of one call of `buffers`, then all parameters; those of the
            first call of the function, ever after.

        Returns
        -------
        list of numpy.ndarray
            Its outputs, in pinned memory that the next call of the function overwrites.

        Raises
        ------
        DeviceError
            If the memory of the GPU is full, or the GPU fails.
        """
        if name not in self._captured:
            with self._cuda.on_device(self._index):
                self._captured[name] = self._capture(name, arguments)
        self.replay(name)
        if self._observer is not None:
            for kernel, milliseconds in self.kernel_times(name):
                self._observer(kernel, round(milliseconds * 1e6))
        return self._captured[name].outputs

    def replay(self, name: str) -> None:
        """Run a function that was called before once more, on what lies in its buffers.

        Parameters
        ----------
        name : str
            The function; its outputs are where its last call gave them.
        """
        cuda = self._cuda
        with cuda.on_device(self._index):
            cuda.launch(self._captured[name].graph, self._stream)
            cuda.synchronize(self._stream)

    def time_ms(self, name: str, runs: int) -> float:
        """Time of one run of a function on the GPU, without what the host does between runs.

        Parameters
        ----------
        name : str
            A function that was called before; its inputs are as that call left them.
        runs : int
            How many to put into the stream, one behind the other.

        Returns
        -------
        float
            Milliseconds, copies included.
        """
        cuda, captured = self._cuda, self._captured[name]
        with cuda.on_device(self._index), self._events(2) as (first, last):
            cuda.launch(captured.graph, self._stream)  # the first event waits behind it
            cuda.record(first, self._stream)
            for _ in range(runs):
                cuda.launch(captured.graph, self._stream)
            cuda.record(last, self._stream)
            cuda.synchronize(self._stream)
            return cuda.elapsed_ms(first, last) / runs

    def kernel_times(self, name: str) -> list[tuple[str, float]]:
        """Run a function with its kernels launched one by one; tell how long each took.

        An event of CUDA's lies before each kernel and behind the last. They are queued behind runs
        that keep the GPU busy meanwhile, so that the times hold no time of the host.

        Parameters
        ----------
        name : str
            A function that was called before; its inputs are as that call left them.

        Returns
        -------
        list of (str, float)
            Name of the kernel and milliseconds, of every call in order.
        """
        cuda, stream, captured = self._cuda, self._stream, self._captured[name]
        most = sum(len(f.kernels) for f in self.metadata.functions if f.name == name)
        names: list[str] = []
        with cuda.on_device(self._index), ExitStack() as kept:
            events = [*kept.enter_context(self._events(most + 1))]

            def mark(kernel: str) -> None:
                if len(names) == len(events):  # the metadata list fewer kernels than there are
                    events.extend(kept.enter_context(self._events(1)))
                cuda.record(events[len(names)], stream)
                names.append(kernel)

            def instrument(
                _function: Any, kernel: str, before: bool, _result: Any, *_arguments: Any
            ) -> int:
                if before and not kernel.startswith(_VIRTUAL_MACHINE):
                    mark(kernel)
                return 0  # go on with the call

            started = time.perf_counter()
            self.replay(name)
            taken = max(1e3 * (time.perf_counter() - started), 1e-3)
            set_instrument = self.machine["set_instrument"]
            set_instrument(instrument)
            try:
                with self._current_stream(), self._explained(name):
                    for _ in range(min(_MOST_LEADING_RUNS, math.ceil(_QUEUEING_MS / taken))):
                        cuda.launch(captured.graph, stream)
                    results = self._functions[name](*captured.tensors)
                    mark("")
                    cuda.synchronize(stream)
            finally:
                set_instrument(None)
            del results  # only now: its kernels have run
            return [
                (kernel, cuda.elapsed_ms(events[index], events[index + 1]))
                for index, kernel in enumerate(names[:-1])
            ]

    @contextmanager
    def observed(self, observe: Observer) -> Iterator[None]:
        """Call ``observe(name, nanoseconds)`` for every kernel of the calls in a block.

        The times are those of `kernel_times`, which runs the function some more times.

        Parameters
        ----------
        observe : callable
            Takes the name of the kernel, and how long it took.
        """
        self._observer = observe
        try:
            yield
        finally:
            self._observer = None

    # -- how a function becomes a graph -----------------------------------------------------------

    def _capture(self, name: str, arguments: Sequence[Any]) -> _Captured:
        """Run a function once, so that code and storage are there, then capture it."""
        function, cuda, stream = self._functions[name], self._cuda, self._stream
        stage = next(s for s in self._stages if s.tensors[0] is arguments[0])
        tensors = [argument.tvm for argument in arguments]

        def copy_inputs() -> None:
            cuda.to_device(stage.device.address, stage.host.address, stage.host.size, stream)

        def run() -> list[Any]:
            result = function(*tensors)
            return [result] if isinstance(result, self._ffi.Tensor) else list(result)

        with self._current_stream(), self._explained(name):
            copy_inputs()
            kinds = [(t.shape, str(t.dtype)) for t in run()]
            cuda.synchronize(stream)
            offsets, size = _places(kinds)
            host = PinnedBlock(cuda, size)
            outputs = [
                host.array(offset, shape, dtype)
                for offset, (shape, dtype) in zip(offsets, kinds, strict=True)
            ]
            results: list[Any] = []

            def work() -> None:
                copy_inputs()
                results.extend(run())
                for array, result in zip(outputs, results, strict=True):
                    cuda.to_host(array.ctypes.data, result.data_ptr(), array.nbytes, stream)

            graph = cuda.capture(stream, work)
        weakref.finalize(self, cuda.destroy_graph, graph).atexit = False
        return _Captured(graph, outputs, tensors, (stage, host, results, tuple(arguments)))

    @contextmanager
    def _events(self, count: int) -> Iterator[list[int]]:
        """Events for the duration of a block."""
        events: list[int] = []
        try:
            for _ in range(count):
                events.append(self._cuda.create_event())
            yield events
        finally:
            for event in events:
                self._cuda.destroy_event(event)

    @contextmanager
    def _current_stream(self) -> Iterator[None]:
        """Have TVM launch kernels of this thread in the engine's stream."""
        device = self._ffi.device("cuda", self._index)
        with self._ffi.use_raw_stream(device, self._stream):
            yield

    @contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        """Turn what TVM's runtime raises into errors for users."""
        try:
            yield
        except DeviceError:
            raise
        except Exception as error:  # TVM's errors share no base class below Exception
            text = str(error).strip()
            if any(name in text for name in _OUT_OF_MEMORY):
                function = next(f for f in self.metadata.functions if f.name == name)
                what = f"the values of a batch of {function.batch} x {function.seq_len} tokens"
                raise self._cuda.out_of_memory(self._index, what) from error
            raise DeviceError(
                f"the GPU {self.device} cannot run the library {self.metadata.path}",
                where=f"function {name}, on {self.name}",
                why=text.splitlines()[0] if text else type(error).__name__,
                todo="compile it again with `ibert compile`, with the installed version of TVM",
            ) from error


def _release(cuda: CudaRuntime, machine: Any) -> None:
    """Let a virtual machine free its memory, unless CUDA has failed for good.

    TVM ends the process where memory cannot be freed, as after an illegal access of a kernel; what
    the failed program had is given back with the process anyway.
    """
    if not cuda.usable():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(machine))


def _places(kinds: Sequence[tuple[Sequence[int], str]]) -> tuple[list[int], int]:
    """Offsets of arrays in one block, and its size in bytes."""
    offsets, size = [], 0
    for shape, dtype in kinds:
        offsets.append(size)
        size += math.prod(shape) * np.dtype(dtype).itemsize
        size = -(-size // _ALIGNMENT) * _ALIGNMENT
    return offsets, max(size, _ALIGNMENT)


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
