"""Running a library with TVM's virtual machine, on this machine's processor."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

from .buffers import BufferedInputs, aligned_zeros, mapped_parameter
from .engine import ObservableEngine, Observer
from .metadata import FunctionRecord, LibraryMetadata, ParameterRecord
from .thread_pool import thread_pool
from .threads import concurrent_calls
from .tvm_runtime import load_runtime, tvm_object

_CPU = 1  # kDLCPU
# A run takes its buffers from the pool of this machine and gives them back: memory is allocated
# by the first runs of a shape, and by none after them.
_POOLED_ALLOCATOR = 2


class TvmEngine(ObservableEngine):
    """A library for TVM's runtime; see `ibert_tvm.runtime.engine.Engine`.

    Parameters
    ----------
    metadata
        What the library says about itself.

    Attributes
    ----------
    pool
        Threads that its kernels run on, those of the process.
    tensors
        All parameters: their pages are shared and never copied.
    observer
        Who is told of kernels.
    """

    device = "cpu"

    def __init__(self, metadata: LibraryMetadata) -> None:
        self.metadata = metadata
        self.max_contexts = concurrent_calls()
        self.ffi = load_runtime()
        self._shared_object = tvm_object(metadata)
        self._load_executable = self._shared_object.loaded["vm_load_executable"]
        self.pool = thread_pool(self._shared_object, metadata.prefix)
        self.tensors = [self._tensor(record) for record in metadata.parameters]

    def _tensor(self, record: ParameterRecord) -> Any:
        empty = record.num_bytes == 0
        array = aligned_zeros(record.shape, record.dtype) if empty else self.parameter(record)
        return self.ffi.from_dlpack(array)

    def parameter(self, record: ParameterRecord) -> np.ndarray:
        """As `Engine.parameter`."""
        return mapped_parameter(self._shared_object, record)

    def create_context(self) -> TvmContext:
        """As `Engine.create_context`: a virtual machine, which takes a millisecond or two."""
        machine = self._load_executable()
        machine["vm_initialization"](_CPU, 0, _POOLED_ALLOCATOR)
        return TvmContext(self, machine)


class TvmContext(BufferedInputs):
    """A virtual machine with input buffers; see `ibert_tvm.runtime.engine.ExecutionContext`.

    Attributes
    ----------
    functions
        Compiled functions by name; each takes tensors, the inputs and then all parameters.
    """

    def __init__(self, engine: TvmEngine, machine: Any) -> None:
        super().__init__(engine.metadata)
        self._engine, self._machine = engine, machine
        self.functions = {f.name: machine[f.name] for f in engine.metadata.functions}
        self._arguments: dict[str, list[Any]] = {}

    def run(self, function: FunctionRecord, num_threads: int) -> list[np.ndarray]:
        """As `ExecutionContext.run`; memory of outputs is used again once they are gone."""
        engine, observer = self._engine, self._engine.observer
        observed = nullcontext() if observer is None else self._instrumented(observer)
        with engine.pool.used(num_threads), observed:
            result = self._call(function.name)
        results = [result] if isinstance(result, engine.ffi.Tensor) else result
        return [np.from_dlpack(tensor) for tensor in results]

    def _call(self, name: str) -> Any:
        if name not in self._arguments:
            tensors = map(self._engine.ffi.from_dlpack, self.buffers[name].values())
            self._arguments[name] = [*tensors, *self._engine.tensors]
        return self.functions[name](*self._arguments[name])

    @contextmanager
    def _instrumented(self, observe: Observer) -> Iterator[None]:
        """Observe what the virtual machine calls: kernels, and functions of its own.

        It calls them from the thread that runs the library, one after the other.
        """
        started = 0

        def instrument(
            _function: object, name: str, before: bool, _result: object, *_arguments: object
        ) -> int:
            nonlocal started
            if before:
                started = time.perf_counter_ns()
            else:
                observe(name, time.perf_counter_ns() - started)
            return 0  # go on with the call

        set_instrument = self._machine["set_instrument"]
        set_instrument(instrument)
        try:
            yield
        finally:
            set_instrument(None)
