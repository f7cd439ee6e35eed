"""What runs a library: one protocol, whatever its code is and wherever it runs.

An *engine* is a library's code, loaded once, with its weights. An *execution context* is what one
call at a time needs besides: buffers for inputs, values and outputs. Any number of contexts share
an engine. `ibert_tvm.runtime.loading` chooses one of

* `ibert_tvm.runtime.tvm_engine.TvmEngine`: TVM's virtual machine, on this machine's processor;
* `ibert_tvm.runtime.cuda_engine.CudaEngine`: one CUDA graph per call, on a GPU;
* `ibert_tvm.runtime.plain_engine.PlainEngine`: plain C functions, without a runtime;
* `ibert_tvm.runtime.plain_gpu_engine.PlainGpuEngine`: the same on a GPU, with the driver alone;
* `ibert_tvm.runtime.emulated_engine.EmulatedEngine`: the same, under an emulator of their target;

and `ibert_tvm.runtime.remote_engine.load_remote` gives a `RemoteEngine`, a board.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeAlias

import numpy as np

from .metadata import FunctionRecord, ParameterRecord

Observer: TypeAlias = Callable[[str, int], None]
"""Is told the name of a kernel, and how many nanoseconds it took."""


class ExecutionContext(Protocol):
    """Buffers of its own for every function of a library, used by one call at a time.

    Any thread may use a context, one after the other: whoever does has taken it from a
    `ibert_tvm.runtime.library.ContextPool`, which gives it to nobody else meanwhile. What a
    context has taken (memory, streams, graphs) is given back when nothing refers to it any more.
    """

    def inputs(self, function: FunctionRecord) -> Mapping[str, np.ndarray]:
        """Buffers of a function's inputs, which the caller fills before `run`.

        Parameters
        ----------
        function
            One of the library's.

        Returns
        -------
        mapping of str to numpy.ndarray
            By name, in the function's order: of the shapes and dtypes that
            `LibraryMetadata.input_kinds` tells, and the same arrays every time. The first call for
            a function allocates them; they hold what was written last.

        Raises
        ------
        DeviceError
            If the memory of the GPU is full.
        """

    def run(self, function: FunctionRecord, num_threads: int) -> Sequence[np.ndarray]:
        """Run a function on what its input buffers hold.

        Parameters
        ----------
        function
            One of the library's; `inputs` was asked for it before.
        num_threads
            Most threads for its kernels, the calling one included; of no meaning where kernels do
            not run on this machine's processors, or the library starts no threads.

        Returns
        -------
        sequence of numpy.ndarray
            Its outputs in order, of the shapes and dtypes that `LibraryMetadata.output_kinds`
            tells. Their memory belongs to the context's next run: copy what is kept.

        Raises
        ------
        IbertError
            `LibraryError` if the code refuses the call, `DeviceError` if a GPU fails, `TargetError`
            if an emulator does, `ibert_tvm.targets.rpc.BoardError` if a board does. Other contexts
            are not touched, and this one may be used again.
        """


class Engine(Protocol):
    """A library's code and weights, loaded.

    Its methods may be called from any thread at any time.

    Attributes
    ----------
    device
        What kernels run on: ``"cpu"``, ``"cuda:0"`` ...
    max_contexts
        How many contexts can be at work at the same time with any gain, at least 1: a board serves
        one call at a time, and many more calls than processors only wait for each other.
    """

    @property
    def device(self) -> str:
        """What kernels run on."""

    @property
    def max_contexts(self) -> int:
        """How many contexts can be at work at the same time with any gain."""

    def parameter(self, record: ParameterRecord) -> np.ndarray:
        """Integers of one parameter, which nobody may write.

        Parameters
        ----------
        record
            One of the library's.

        Returns
        -------
        numpy.ndarray
            Of the record's shape and dtype; a view of the mapped file where the code is loaded
            into this process.

        Raises
        ------
        LibraryError
            If the weights are not on this machine.
        """

    def create_context(self) -> ExecutionContext:
        """Make one more context; the weights are shared.

        Raises
        ------
        IbertError
            As `ExecutionContext.run` raises.
        """


class ObservableEngine:
    """An engine that tells how long each kernel takes.

    Attributes
    ----------
    observer
        Whom contexts tell; None where nobody asks.
    """

    observer: Observer | None = None

    @contextmanager
    def observed(self, observe: Observer) -> Iterator[None]:
        """Call ``observe(name, nanoseconds)`` after every kernel that contexts run in a block.

        Parameters
        ----------
        observe
            Takes the name of the kernel, and how long it took; called in the threads of the calls.
            Functions of a virtual machine itself are named too, ``vm.*``.
        """
        self.observer = observe
        try:
            yield
        finally:
            self.observer = None
