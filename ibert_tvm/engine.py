"""Loading a library and calling its functions with TVM's runtime, and nothing else of TVM.

`import tvm` brings the compiler with it: LLVM with all its backends, 150 MiB of memory and half a
second. A library needs a few hundred kilobytes of that, the virtual machine of
``libtvm_runtime.so``, which this module loads by itself; where TVM is imported too, before or
afterwards, both use the same runtime.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ibert_tvm.library_file import ParameterRecord

__all__ = ["ALIGNMENT", "Engine", "Observer", "aligned_zeros", "load_runtime"]

ALIGNMENT = 64
"""Bytes on which compiled code expects every buffer to start."""

Observer = Callable[[str, int], None]
"""Is told the name of a kernel, and how many nanoseconds it took."""

_CPU = 1  # kDLCPU
# A run takes its buffers from the pool of this machine and gives them back: memory is allocated
# by the first runs of a shape, and by none after them.
_POOLED_ALLOCATOR = 2


class _NoTorch:
    """Finder that hides torch from imports of one thread."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Refuse torch to that thread; leave everything else to the other finders."""
        if name == "torch" and threading.get_ident() == self.thread:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


@contextmanager
def _without_torch() -> Iterator[None]:
    """Keep an import of this thread from importing torch, if nothing has imported it yet.

    TVM's FFI imports torch wherever it is installed, to convert its tensors: 190 MiB and more than
    a second, for something that running a library does not use.
    """
    finder = _NoTorch()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


@functools.cache
def load_runtime() -> Any:
    """Load TVM's runtime library, without its compiler.

    Returns
    -------
    module
        ``tvm_ffi``, TVM's foreign function interface.

    Raises
    ------
    ImportError
        If TVM is not installed.
    OSError
        If its runtime library cannot be loaded.
    """
    with _without_torch():
        import tvm_ffi
    spec = importlib.util.find_spec("tvm")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'tvm'", name="tvm")
    folders = [Path(folder) / "lib" for folder in spec.submodule_search_locations]
    tvm_ffi.libinfo.load_lib_ctypes(
        "apache-tvm", "tvm_runtime", "RTLD_GLOBAL", extra_lib_paths=folders
    )
    return tvm_ffi


def aligned_zeros(shape: Sequence[int], dtype: str) -> NDArray[Any]:
    """Array of zeros that compiled code may be given.

    Parameters
    ----------
    shape : sequence of int
        Shape.
    dtype : str
        NumPy type.

    Returns
    -------
    numpy.ndarray
        Contiguous, starting at a multiple of `ALIGNMENT`.
    """
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(tuple(shape))


@dataclass(frozen=True)
class ThreadPool:
    """The threads that kernels run on: one pool per process, whatever number of libraries.

    Threads are started when a kernel first needs them, and sleep when none does. A kernel that is
    launched while another one has them runs in its calling thread alone.

    Attributes
    ----------
    launch : int
        Address of the function that runs a parallel loop.
    set_threads : callable
        Sets the number of threads, the calling one included, for what the calling thread runs.
    started : callable
        Gives the number of threads that were started.
    """

    launch: int
    set_threads: Callable[[int], None]
    started: Callable[[], int]


_POOLS: list[ThreadPool] = []


def _pool(shared_object: ctypes.CDLL) -> ThreadPool:
    """Let a library's kernels run on the pool of the process: that of the first library loaded."""
    if not _POOLS:
        set_threads = shared_object.ibert_set_threads
        set_threads.argtypes, set_threads.restype = [ctypes.c_int], None
        address = ctypes.cast(shared_object.ibert_parallel_launch, ctypes.c_void_p).value or 0
        _POOLS.append(ThreadPool(address, set_threads, shared_object.ibert_started_threads))
    try:
        # What TVM's runtime set when it loaded the library.
        hook = ctypes.c_void_p.in_dll(shared_object, "__TVMBackendParallelLaunch")
    except ValueError:  # nothing in it is parallel
        return _POOLS[0]
    hook.value = _POOLS[0].launch
    return _POOLS[0]


class Engine:
    """A loaded library: its functions, and its parameters where the file is mapped.

    `ibert_tvm.cuda_engine.CudaEngine` takes its place for a library of a GPU.

    Parameters
    ----------
    path : pathlib.Path
        The library.
    names : sequence of str
        Functions that it shall have.

    Attributes
    ----------
    machine : tvm_ffi.Module
        The virtual machine; for example ``machine["set_instrument"]`` takes a function that is
        called round every kernel.
    functions : dict
        Compiled functions by name; each takes tensors, the inputs and then all parameters.
    pool : ThreadPool
        Threads that its kernels run on, those of the process.
    device : str
        What they run on.
    """

    device = "cpu"

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self._ffi = load_runtime()
        module = self._ffi.load_module(str(path))
        self.machine = module["vm_load_executable"]()
        self.machine["vm_initialization"](_CPU, 0, _POOLED_ALLOCATOR)
        self.functions = {name: self.machine[name] for name in names}
        # The same mapping that TVM has: the dynamic linker opens a file once. It is never closed,
        # so its threads may serve other libraries, too.
        self._shared_object = ctypes.CDLL(str(path))
        self.pool = _pool(self._shared_object)

    def array(self, record: ParameterRecord) -> NDArray[Any]:
        """NumPy view of one parameter where the dynamic linker mapped it."""
        base = ctypes.addressof(ctypes.c_char.in_dll(self._shared_object, "ibert_weights"))
        count = int(np.prod(record.shape, dtype=np.int64))
        memory = (ctypes.c_char * record.num_bytes).from_address(base + record.offset)
        return np.frombuffer(memoryview(memory), record.dtype, count).reshape(record.shape)

    def parameter(self, record: ParameterRecord) -> Any:
        """TVM tensor on the mapped parameter: its pages are shared and never copied."""
        empty = record.num_bytes == 0
        return self.tensor(
            aligned_zeros(record.shape, record.dtype) if empty else self.array(record)
        )

    def buffers(self, kinds: Sequence[tuple[Sequence[int], str]]) -> list[NDArray[Any]]:
        """Arrays of zeros for the inputs of one function, given their shapes and types."""
        return [aligned_zeros(shape, dtype) for shape, dtype in kinds]

    def tensor(self, array: NDArray[Any]) -> Any:
        """TVM tensor on the memory of an array, which must be aligned and contiguous."""
        return self._ffi.from_dlpack(array)

    def call(self, name: str, arguments: Sequence[Any], num_threads: int) -> list[NDArray[Any]]:
        """Call a function.

        Parameters
        ----------
        name : str
            One of `functions`.
        arguments : sequence of tensor
            What it takes.
        num_threads : int
            Threads for its kernels, the calling one included.

        Returns
        -------
        list of numpy.ndarray
            Views of its outputs. Their memory is used again by a later call once they are gone.
        """
        self.pool.set_threads(num_threads)
        result = self.functions[name](*arguments)
        results = [result] if isinstance(result, self._ffi.Tensor) else result
        return [np.from_dlpack(tensor) for tensor in results]

    @contextmanager
    def observed(self, observe: Observer) -> Iterator[None]:
        """Call ``observe(name, nanoseconds)`` after every function that compiled code calls.

        The virtual machine calls kernels, and functions of its own (``vm.builtin.*``), from the
        thread that runs the library, one after the other. Observing costs about a microsecond each.

        Parameters
        ----------
        observe : callable
            Takes the name of the function, and how long it took.
        """
        started = 0

        def instrument(
            _function: Any, name: str, before: bool, _result: Any, *_arguments: Any
        ) -> int:
            nonlocal started
            if before:
                started = time.perf_counter_ns()
            else:
                observe(name, time.perf_counter_ns() - started)
            return 0  # go on with the call

        set_instrument = self.machine["set_instrument"]
        set_instrument(instrument)
        try:
            yield
        finally:
            set_instrument(None)
