"""CUDA graphs of functions: what a call on a GPU is.

What a call does is always the same: copy the inputs from pinned memory, launch every kernel of the
encoder, copy the outputs to pinned memory. So the first call of a function lets TVM's virtual
machine do it once, then lets CUDA capture it a second time as a graph. From then on a call is two
calls of CUDA's runtime: the virtual machine, its hundreds of arguments and the launches of single
kernels cost nothing any more, and no memory is allocated, here or on the GPU.

A packed function has a graph for each bucket of tokens that was needed so far
(`ibert_tvm.targets.cuda.buckets`), made of the captured one.
"""

from __future__ import annotations

import ctypes
import math
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ibert_tvm.targets.cuda.buckets import blocks_in_use, tokens_in_use

from ..common.errors import DeviceError, error_lines
from .cuda_memory import DeviceBlock, DeviceTensor, PinnedBlock
from .cuda_runtime import CUDA, CudaRuntime, device_text
from .engine import ObservableEngine
from .metadata import FunctionRecord, LibraryMetadata

_HOST = 1  # kDLCPU, where the virtual machine keeps shapes
# What a context takes of the GPU's memory is given back with it, and not kept in a pool: no run
# but the first one allocates.
_PLAIN_ALLOCATOR = 1
_ALIGNMENT = 256  # of cudaMalloc, and of every part of a block here
_VIRTUAL_MACHINE = "vm."
# Of CUDA's runtime and of the driver, as TVM's errors cite them.
_OUT_OF_MEMORY = ("cudaErrorMemoryAllocation", "CUDA_ERROR_OUT_OF_MEMORY")
# How long the GPU is kept busy while kernels that shall be timed are queued behind: more than
# queueing several hundred of them takes.
_QUEUEING_MS = 20.0
_MOST_LEADING_RUNS = 1000


@dataclass
class CudaProgram(ObservableEngine):
    """A library's code and weights on a GPU: what its contexts share.

    Attributes
    ----------
    metadata
        What the library says about itself.
    cuda
        CUDA's functions.
    index, name
        The GPU, and what the driver calls it.
    ffi
        ``tvm_ffi``.
    load_executable
        Makes a virtual machine.
    parameters
        All parameters, uploaded once.
    observer
        Who is told of kernels.
    capturing
        Held by the context that prepares a function: code is loaded meanwhile, and a graph
        captured, which other contexts' loading must not disturb.
    """

    metadata: LibraryMetadata
    cuda: CudaRuntime
    index: int
    name: str
    ffi: Any
    load_executable: Any
    parameters: list[DeviceTensor]
    capturing: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True)
class _Inputs:
    """Inputs of one function: pinned on the host, and where they come to lie on the GPU."""

    host: PinnedBlock
    device: DeviceBlock
    arrays: dict[str, np.ndarray]
    tensors: list[DeviceTensor]


@dataclass
class _Captured:
    """One function as a graph, and what its copies and kernels use.

    `graphs` are those that can be launched, by tokens; `graph` is that of the latest call.
    """

    captured: int
    graphs: dict[int, int]
    graph: int
    outputs: list[np.ndarray]
    arguments: list[Any]
    kept: tuple[object, ...]


class CudaContext:
    """A stream, a virtual machine and its graphs; see `ibert_tvm.runtime.engine.ExecutionContext`.

    Parameters
    ----------
    program
        What it runs.
    """

    def __init__(self, program: CudaProgram) -> None:
        self._program, self._cuda = program, program.cuda
        self._inputs: dict[str, _Inputs] = {}
        self._captured: dict[str, _Captured] = {}
        with self._cuda.on_device(program.index):
            self._stream = self._cuda.create_stream()
            weakref.finalize(self, self._cuda.destroy_stream, self._stream).atexit = False
            self._machine = program.load_executable()
            weakref.finalize(self, _release, self._cuda, self._machine)
            self._machine["vm_initialization"](
                *(CUDA, program.index, _PLAIN_ALLOCATOR), *(_HOST, 0, _PLAIN_ALLOCATOR)
            )
        functions = program.metadata.functions
        self._functions = {function.name: self._machine[function.name] for function in functions}

    def inputs(self, function: FunctionRecord) -> Mapping[str, np.ndarray]:
        """As `ExecutionContext.inputs`: in one piece of pinned memory, copied at once."""
        if function.name not in self._inputs:
            self._inputs[function.name] = self._allocated(function)
        return self._inputs[function.name].arrays

    def run(self, function: FunctionRecord, num_threads: int) -> list[np.ndarray]:
        """As `ExecutionContext.run`: the outputs lie in pinned memory."""
        name, program = function.name, self._program
        if name not in self._captured:
            with program.capturing, self._cuda.on_device(program.index):
                self._captured[name] = self._capture(function)
        self._choose_graph(function, self._captured[name])
        self.replay(function)
        observer = program.observer
        if observer is not None:
            for kernel, milliseconds in self.kernel_times(function):
                observer(kernel, round(milliseconds * 1e6))
        return self._captured[name].outputs

    def replay(self, function: FunctionRecord) -> None:
        """Run a function that was called before once more, on what lies in its buffers.

        Parameters
        ----------
        function
            The function; its outputs are where its last call gave them.
        """
        cuda = self._cuda
        with cuda.on_device(self._program.index):
            cuda.launch(self._captured[function.name].graph, self._stream)
            cuda.synchronize(self._stream)

    def time_ms(self, function: FunctionRecord, runs: int) -> float:
        """Time of one run of a function on the GPU, without what the host does between runs.

        Parameters
        ----------
        function
            A function that was called before; its inputs are as that call left them.
        runs
            How many to put into the stream, one behind the other.

        Returns
        -------
        float
            Milliseconds, copies included.
        """
        cuda, captured = self._cuda, self._captured[function.name]
        with cuda.on_device(self._program.index), cuda.events(2) as (first, last):
            cuda.launch(captured.graph, self._stream)  # the first event waits behind it
            cuda.record(first, self._stream)
            for _ in range(runs):
                cuda.launch(captured.graph, self._stream)
            cuda.record(last, self._stream)
            cuda.synchronize(self._stream)
            return cuda.elapsed_ms(first, last) / runs

    def kernel_times(self, function: FunctionRecord) -> list[tuple[str, float]]:
        """Run a function with its kernels launched one by one; tell how long each took.

        They are launched for as many tokens as there may be.

        An event of CUDA's lies before each kernel and behind the last. They are queued behind runs
        that keep the GPU busy meanwhile, so that the times hold no time of the host.

        Parameters
        ----------
        function
            A function that was called before; its inputs are as that call left them.

        Returns
        -------
        list of (str, float)
            Name of the kernel and milliseconds, of every call in order.
        """
        cuda, stream, captured = self._cuda, self._stream, self._captured[function.name]
        names: list[str] = []
        with cuda.on_device(self._program.index), ExitStack() as kept:
            events = [*kept.enter_context(cuda.events(len(function.kernels) + 1))]

            def mark(kernel: str) -> None:
                if len(names) == len(events):  # the metadata list fewer kernels than there are
                    events.extend(kept.enter_context(cuda.events(1)))
                cuda.record(events[len(names)], stream)
                names.append(kernel)

            def instrument(
                _function: object, kernel: str, before: bool, _result: object, *_arguments: object
            ) -> int:
                if before and not kernel.startswith(_VIRTUAL_MACHINE):
                    mark(kernel)
                return 0  # go on with the call

            started = time.perf_counter()
            self.replay(function)
            taken = max(1e3 * (time.perf_counter() - started), 1e-3)
            set_instrument = self._machine["set_instrument"]
            set_instrument(instrument)
            try:
                with self._current_stream(), self._explained(function):
                    for _ in range(min(_MOST_LEADING_RUNS, math.ceil(_QUEUEING_MS / taken))):
                        cuda.launch(captured.graph, stream)
                    results = self._functions[function.name](*captured.arguments)
                    mark("")
                    cuda.synchronize(stream)
            finally:
                set_instrument(None)
            del results  # only now: its kernels have run
            return [
                (kernel, cuda.elapsed_ms(events[index], events[index + 1]))
                for index, kernel in enumerate(names[:-1])
            ]

    # -- how a function becomes a graph -----------------------------------------------------------

    def _allocated(self, function: FunctionRecord) -> _Inputs:
        program = self._program
        kinds = program.metadata.input_kinds(function)
        offsets, size = _places(kinds)
        with self._cuda.on_device(program.index):
            host = PinnedBlock(self._cuda, size)
            device = DeviceBlock(self._cuda, program.index, size, "the inputs")
        ctypes.memset(host.address, 0, size)
        arrays, tensors = {}, []
        for record, offset, kind in zip(program.metadata.inputs, offsets, kinds, strict=True):
            arrays[record.name] = host.array(offset, *kind)
            tensors.append(DeviceTensor(device, offset, *kind, program.index))
        return _Inputs(host, device, arrays, tensors)

    def _capture(self, function: FunctionRecord) -> _Captured:
        """Run a function once, so that code and storage are there, then capture it."""
        compiled, cuda, stream = self._functions[function.name], self._cuda, self._stream
        inputs = self._inputs[function.name]
        arguments = [tensor.tvm for tensor in (*inputs.tensors, *self._program.parameters)]

        def copy_inputs() -> None:
            cuda.to_device(inputs.device.address, inputs.host.address, inputs.host.size, stream)

        def run() -> list[Any]:
            result = compiled(*arguments)
            return [result] if isinstance(result, self._program.ffi.Tensor) else list(result)

        with self._current_stream(), self._explained(function):
            copy_inputs()
            kinds = [(t.shape, str(t.dtype)) for t in run()]
            cuda.synchronize(stream)
            offsets, size = _places(kinds)
            host = PinnedBlock(cuda, size)
            outputs = [
                host.array(offset, *kind) for offset, kind in zip(offsets, kinds, strict=True)
            ]
            results: list[Any] = []

            def work() -> None:
                copy_inputs()
                results.extend(run())
                for array, result in zip(outputs, results, strict=True):
                    cuda.to_host(array.ctypes.data, result.data_ptr(), array.nbytes, stream)

            graph = cuda.capture(stream, work)
        weakref.finalize(self, cuda.destroy_graph, graph).atexit = False
        return _Captured(graph, {}, 0, outputs, arguments, (inputs, host, results))

    def _choose_graph(self, function: FunctionRecord, captured: _Captured) -> None:
        """Have the smallest graph with room for the tokens of the inputs; make it first."""
        room, tokens, program = 0, function.tokens, self._program
        if tokens is not None:
            mask = self._inputs[function.name].arrays[program.metadata.inputs[tokens.mask].name]
            used = tokens_in_use(mask, tokens.kept)
            room = next(bucket for bucket in tokens.buckets if bucket >= used)
        if room not in captured.graphs:
            launches = program.metadata.device_code.get("launches", {})

            def blocks(kernel: str, most: int) -> int:
                return blocks_in_use(launches.get(kernel, {}).get("rows"), room, most)

            with program.capturing, self._cuda.on_device(program.index):
                fewer = None if tokens is None or room == tokens.buckets[-1] else blocks
                made = self._cuda.instantiate(captured.captured, self._stream, fewer)
            weakref.finalize(self, self._cuda.destroy_executable, made).atexit = False
            captured.graphs[room] = made
        captured.graph = captured.graphs[room]

    @contextmanager
    def _current_stream(self) -> Iterator[None]:
        """Have TVM launch kernels of this thread in the context's stream."""
        ffi = self._program.ffi
        with ffi.use_raw_stream(ffi.device("cuda", self._program.index), self._stream):
            yield

    @contextmanager
    def _explained(self, function: FunctionRecord) -> Iterator[None]:
        """Turn what TVM's runtime raises into errors for users."""
        try:
            yield
        except DeviceError:
            raise
        except Exception as error:  # TVM's errors share no base class below Exception
            program = self._program
            if any(name in str(error) for name in _OUT_OF_MEMORY):
                what = f"the values of a batch of {function.batch} x {function.seq_len} tokens"
                raise self._cuda.out_of_memory(program.index, what) from error
            raise DeviceError(
                f"the GPU {device_text(program.index)} cannot run the library "
                f"{program.metadata.path}",
                where=f"function {function.name}, on {program.name}",
                why=error_lines(error)[0],
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
