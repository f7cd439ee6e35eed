"""Calling a library that has no runtime but plain C functions, on this machine.

The library is loaded with ctypes; nothing of TVM is needed. See docs/c-api.md for the functions.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, TypeAlias

import numpy as np

from ..common.errors import LibraryError
from .buffers import aligned_zeros, input_buffers, mapped_parameter
from .engine import ObservableEngine, Observer
from .mapping import SharedObject
from .metadata import FunctionRecord, LibraryMetadata, ParameterRecord
from .thread_pool import thread_pool
from .threads import concurrent_calls

ABI_VERSION = 3
# A context of this version is smaller (docs/c-api.md); its members are private.
CONTEXT_BYTES = 256
Hook: TypeAlias = Callable[[object, int, int], int]
_HOOK = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32)


class PlainEngine(ObservableEngine):
    """A library of plain C functions; see `ibert_tvm.runtime.engine.Engine`.

    Parameters
    ----------
    metadata
        What the library says about itself.

    Attributes
    ----------
    library
        Its functions.
    pool
        Threads that its kernels run on, those of the process; None without threads.
    observer
        Who is told of kernels.

    Raises
    ------
    OSError
        If it cannot be loaded.
    ValueError
        If it lacks a function of the interface.
    """

    device = "cpu"

    def __init__(self, metadata: LibraryMetadata) -> None:
        self.metadata = metadata
        self.max_contexts = concurrent_calls()
        self.library = SharedObject(metadata)
        self.pool = thread_pool(self.library, metadata.prefix) if metadata.threads else None
        self.strerror = self._function("strerror", ctypes.c_int32, result=ctypes.c_char_p)
        self.fingerprint = int(self._function("fingerprint", result=ctypes.c_uint64)())
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        self.init = self._function("init", pointer, ctypes.c_uint32, ctypes.c_uint64, pointer, size)
        arrays = (pointer, pointer) * 2  # addresses and sizes of inputs, then of outputs
        self.run = self._function("run", pointer, ctypes.c_int32, ctypes.c_int32, *arrays)
        self.set_hook = self._function("set_hook", pointer, _HOOK, pointer)

    def _function(
        self, name: str, *arguments: type, result: type | None = ctypes.c_int
    ) -> Callable[..., Any]:
        """A function of the library's interface, by its name without the model's prefix."""
        return self.library.function(f"{self.metadata.prefix}_{name}", *arguments, result=result)

    def parameter(self, record: ParameterRecord) -> np.ndarray:
        """As `Engine.parameter`."""
        return mapped_parameter(self.library, record)

    def create_context(self) -> PlainContext:
        """As `Engine.create_context`: an arena of the size that the largest function needs."""
        return PlainContext(self)

    def attach(self, owner: object, memory: np.ndarray) -> None:
        """Say where the kernels of a context run, which was just prepared.

        Parameters
        ----------
        owner
            What the context lives as long as.
        memory
            The context.
        """

    def check(self, status: int) -> None:
        """Raise an error for what a function of the library returned, unless it is 0."""
        if status != 0:
            raise LibraryError(
                f"the library {self.metadata.path} refused a call",
                why=f"{self.strerror(status).decode()} (status {status})",
                todo="see docs/c-api.md for the meaning of the status",
            )


class PlainContext:
    """A context of the C interface with its arena, inputs and outputs.

    See `ibert_tvm.runtime.engine.ExecutionContext`.
    """

    def __init__(self, engine: PlainEngine) -> None:
        self._engine = engine
        size = max(function.arena_bytes for function in engine.metadata.functions)
        # An array without entries starts anywhere, and an arena of no bytes needs an address too.
        self._arena = aligned_zeros((max(size, 1),), "uint8")
        self._memory = aligned_zeros((CONTEXT_BYTES,), "uint8")
        self._address = self._memory.ctypes.data
        arena = self._arena.ctypes.data
        status = engine.init(self._address, ABI_VERSION, engine.fingerprint, arena, size)
        engine.check(status)
        engine.attach(self, self._memory)
        self._calls: dict[str, _Call] = {}

    def inputs(self, function: FunctionRecord) -> Mapping[str, np.ndarray]:
        """As `ExecutionContext.inputs`."""
        if function.name not in self._calls:
            self._calls[function.name] = _Call(self._engine.metadata, function)
        return self._calls[function.name].inputs

    def run(self, function: FunctionRecord, num_threads: int) -> list[np.ndarray]:
        """As `ExecutionContext.run`."""
        call, engine = self._calls[function.name], self._engine
        observer, pool = engine.observer, engine.pool
        threads = nullcontext() if pool is None else pool.used(num_threads)
        observed = nullcontext() if observer is None else self._hooked(_timed(function, observer))
        with threads, observed:
            shape = (function.batch, function.seq_len)
            engine.check(engine.run(self._address, *shape, *call.arguments))
        return call.outputs

    @contextmanager
    def _hooked(self, hook: Hook) -> Iterator[None]:
        kept = _HOOK(hook)  # ctypes does not keep it
        set_hook = self._engine.set_hook
        self._engine.check(set_hook(self._address, kept, None))
        try:
            yield
        finally:
            self._engine.check(set_hook(self._address, _HOOK(), None))


class _Call:
    """Inputs and outputs of one function, and their addresses as the interface takes them."""

    def __init__(self, metadata: LibraryMetadata, function: FunctionRecord) -> None:
        self.inputs = input_buffers(metadata, function)
        self.outputs = [aligned_zeros(*kind) for kind in metadata.output_kinds(function)]
        self.arguments: list[ctypes.Array] = []
        for group in (list(self.inputs.values()), self.outputs):
            addresses = (array.ctypes.data for array in group)
            self.arguments.append((ctypes.c_void_p * len(group))(*addresses))
            self.arguments.append((ctypes.c_size_t * len(group))(*(a.nbytes for a in group)))


def _timed(function: FunctionRecord, observe: Observer) -> Hook:
    """Hook that tells an observer how long each kernel took."""
    started = 0

    def hook(_user: object, done: int, _total: int) -> int:
        nonlocal started
        now = time.perf_counter_ns()
        if done > 0:
            observe(function.kernels[done - 1].name, now - started)
        started = time.perf_counter_ns()
        return 0  # go on with the run

    return hook
