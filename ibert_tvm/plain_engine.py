"""Calling libraries that have no runtime but plain C functions: here, or under an emulator.

Both engines take the place of `ibert_tvm.engine.Engine`, which calls libraries of TVM's runtime,
and need nothing of TVM. On this machine the library is loaded with ctypes; a library for another
machine is called by a small C program that its emulator runs, which shows what the board will
compute, not how fast.
"""

from __future__ import annotations

import ctypes
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ibert_tvm.engine import Observer, aligned_zeros
from ibert_tvm.errors import LibraryError
from ibert_tvm.library_file import FunctionRecord, LibraryMetadata, ParameterRecord

if TYPE_CHECKING:
    from ibert_tvm.targets import TargetDescription

__all__ = ["EmulatedEngine", "PlainEngine"]

_ABI_VERSION = 1
# A context of this version is smaller (docs/c-api.md); its members are private.
_CONTEXT_BYTES = 256
_HOOK = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32)


class _Calls(ABC):
    """What both engines do alike: arguments in, outputs out.

    Parameters
    ----------
    metadata : LibraryMetadata
        What the library says about itself.
    """

    device = "cpu"

    def __init__(self, metadata: LibraryMetadata) -> None:
        self.metadata = metadata
        self._shapes = {function.name: function for function in metadata.functions}

    def buffers(self, kinds: Sequence[tuple[Sequence[int], str]]) -> list[NDArray[Any]]:
        """Arrays of zeros for the inputs of one function, given their shapes and types."""
        return [aligned_zeros(shape, dtype) for shape, dtype in kinds]

    def tensor(self, array: NDArray[Any]) -> NDArray[Any]:
        """The array itself: the interface takes pointers."""
        return array

    def parameter(self, _record: ParameterRecord) -> None:
        """Nothing: the code finds its weights by itself."""
        return None

    def call(self, name: str, arguments: Sequence[Any], _num_threads: int) -> list[NDArray[Any]]:
        """Call a function.

        Parameters
        ----------
        name : str
            Name of one of the library's functions.
        arguments : sequence of numpy.ndarray
            Its inputs; what follows them is left out.

        Returns
        -------
        list of numpy.ndarray
            Its outputs, in memory of their own.

        Raises
        ------
        LibraryError
            If the library refuses the call.
        """
        function = self._shapes[name]
        return self._run(function, list(arguments[: len(self.metadata.inputs)]))

    def _outputs(self, function: FunctionRecord) -> list[tuple[str, tuple[int, ...]]]:
        """Types and shapes of a function's outputs."""
        extents: dict[int | str, int] = {"batch": function.batch, "seq_len": function.seq_len}
        return [
            (record.dtype, tuple(int(extents.get(axis, axis)) for axis in record.shape))
            for record in self.metadata.outputs
        ]

    @abstractmethod
    def _run(self, function: FunctionRecord, inputs: list[NDArray[Any]]) -> list[NDArray[Any]]:
        """Run a function on the arrays of its inputs, and return its outputs."""


class PlainEngine(_Calls):
    """A library of this machine, loaded with ctypes.

    Parameters
    ----------
    metadata : LibraryMetadata
        What the library says about itself.

    Raises
    ------
    OSError
        If it cannot be loaded.
    AttributeError
        If it lacks a function of the interface.
    """

    def __init__(self, metadata: LibraryMetadata) -> None:
        super().__init__(metadata)
        library = ctypes.CDLL(str(metadata.path.resolve()))
        library.ibert_strerror.restype = ctypes.c_char_p
        library.ibert_init.argtypes = [
            *(ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t)
        ]
        library.ibert_run.argtypes = [
            *(ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)
        ]
        library.ibert_set_hook.argtypes = [ctypes.c_void_p, _HOOK, ctypes.c_void_p]
        self._library = library
        self._running: FunctionRecord | None = None
        size = max(function.arena_bytes for function in metadata.functions)
        self._arena = aligned_zeros((size,), "uint8")
        self._context = aligned_zeros((_CONTEXT_BYTES,), "uint8")
        context, arena = self._context.ctypes.data, self._arena.ctypes.data
        self._check(library.ibert_init(context, _ABI_VERSION, arena, size))

    def array(self, record: ParameterRecord) -> NDArray[Any]:
        """NumPy view of one parameter where the dynamic linker mapped it."""
        base = ctypes.addressof(ctypes.c_char.in_dll(self._library, "ibert_weights"))
        count = int(np.prod(record.shape, dtype=np.int64))
        memory = (ctypes.c_char * record.num_bytes).from_address(base + record.offset)
        return np.frombuffer(memoryview(memory), record.dtype, count).reshape(record.shape)

    def _run(self, function: FunctionRecord, inputs: list[NDArray[Any]]) -> list[NDArray[Any]]:
        outputs = [aligned_zeros(shape, dtype) for dtype, shape in self._outputs(function)]
        pointers = [
            (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
            for arrays in (inputs, outputs)
        ]
        context = self._context.ctypes.data
        self._running = function
        status = self._library.ibert_run(context, function.batch, function.seq_len, *pointers)
        self._check(status)
        return outputs

    @contextmanager
    def observed(self, observe: Observer) -> Iterator[None]:
        """Call ``observe(name, nanoseconds)`` after every kernel.

        Parameters
        ----------
        observe : callable
            Takes the name of the kernel, and how long it took.
        """
        started = 0

        def hook(_user: Any, done: int, _total: int) -> int:
            nonlocal started
            now = time.perf_counter_ns()
            if done > 0 and self._running is not None:
                observe(self._running.kernels[done - 1].name, now - started)
            started = time.perf_counter_ns()
            return 0  # go on with the run

        kept = _HOOK(hook)  # ctypes does not keep it
        context = self._context.ctypes.data
        self._check(self._library.ibert_set_hook(context, kept, None))
        try:
            yield
        finally:
            self._check(self._library.ibert_set_hook(context, _HOOK(), None))

    def _check(self, status: int) -> None:
        if status != 0:
            raise LibraryError(
                f"the library {self.metadata.path} refused a call",
                why=f"{self._library.ibert_strerror(status).decode()} (status {status})",
                todo="see docs/c-api.md for the meaning of the status",
            )


class EmulatedEngine(_Calls):
    """A library of another machine, called under the emulator of its target.

    Parameters
    ----------
    metadata : LibraryMetadata
        What the library says about itself.

    Raises
    ------
    ibert_tvm.targets.TargetError
        If the target is unknown, or its compiler or its emulator is not installed.
    """

    def __init__(self, metadata: LibraryMetadata) -> None:
        from ibert_tvm.targets.runner import Runner

        super().__init__(metadata)
        self._runner = Runner(_description(metadata))

    def array(self, record: ParameterRecord) -> NDArray[Any]:
        """One parameter, read from the file."""
        from ibert_tvm.library_file import read_weights

        count = int(np.prod(record.shape, dtype=np.int64))
        content = read_weights(self.metadata.path, record.offset, record.num_bytes)
        return np.frombuffer(content, record.dtype, count).reshape(record.shape)

    def _run(self, function: FunctionRecord, inputs: list[NDArray[Any]]) -> list[NDArray[Any]]:
        shape = (function.batch, function.seq_len)
        return self._runner.run(self.metadata.path, shape, inputs, self._outputs(function))


def _description(metadata: LibraryMetadata) -> TargetDescription:
    """The target that a library was compiled for; one made on its own board calls it host."""
    from ibert_tvm.targets import get_target, target_names

    name = str(metadata.target.get("name", ""))
    if name == "host":
        settings = {key: value for key, value in metadata.target.items() if key != "name"}
        for other in target_names():
            if other != "host" and dict(get_target(other).tvm_target) == settings:
                return get_target(other)
    return get_target(name)
