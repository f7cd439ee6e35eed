"""The process that measures kernels on a GPU.

It answers the requests that `ibert_tvm.targets.rpc.worker` answers for processors. A kernel that
breaks something takes this process with it, and the GPU's context, and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ibert_tvm.targets.process import hide_torch, serve

from ..common.errors import TargetError
from .measure import ARCHITECTURES

Arrays = Sequence[np.ndarray]
# What is copied before every call: twice the level-2 cache, and so much that queueing the calls
# takes the host less time than the copies take the GPU.
_LEAST_FLUSHED = 16 << 20
_MOST_LETTERS = 300  # of an error: TVM puts the source of a kernel behind some
_FEWEST_CALLS, _MOST_CALLS, _KEPT_CALLS = 5, 200, 10


class KernelError(TargetError):
    """A kernel does not run, or does not give what the specification says; one line says how."""


class GpuSession:
    """A GPU on which kernels are measured.

    Parameters
    ----------
    architectures
        What kernels are compiled for; the first GPU that runs such code is taken.

    Raises
    ------
    ibert_tvm.common.errors.DeviceError
        If there is none.
    """

    def __init__(self, architectures: Sequence[str]) -> None:
        from .gpu import first_gpu

        self._index, self._cuda = first_gpu(architectures)
        import tvm

        self._tvm = tvm
        self._device = tvm.cuda(self._index)
        self._module: Any = None

    def upload(self, path: str) -> str:
        """Load a library with a kernel."""
        self._module = self._tvm.runtime.load_module(path)
        return path

    def measure(
        self, kernel: str, arrays: Arrays, expected: Arrays, milliseconds: float, _threads: int
    ) -> list[float]:
        """Check a kernel of the library that was uploaded on its inputs, and time it.

        Before every call everything but its first argument, the activations, leaves the level-2
        cache: in a model the kernel before has just written these, and the weights come from
        memory. Every call lies between two events of CUDA's; all are queued before the first is
        waited for, so that times hold no time of the host.

        Parameters
        ----------
        kernel
            Name.
        arrays, expected
            Its inputs, and the results that it must give.
        milliseconds
            How long to measure, about.

        Returns
        -------
        list of float
            Seconds of the fastest calls, at most ten.

        Raises
        ------
        KernelError
            If a result differs, or CUDA reports an error; the process is of no use after one.
        """
        cuda = self._cuda
        function = self._module[kernel]
        # What no store reaches keeps a value that no result has by accident.
        poisoned = [np.full_like(array, 0x5A) for array in expected]
        tensors = [
            self._tvm.runtime.tensor(np.ascontiguousarray(array), self._device)
            for array in (*arrays, *poisoned)
        ]
        with cuda.on_device(self._index), self._stream() as stream, contextlib.ExitStack() as kept:
            try:
                function(*tensors)
                cuda.synchronize(stream)
            except Exception as error:  # TVM's errors share no base class below Exception
                raise KernelError(" ".join(str(error).split())[:_MOST_LETTERS]) from error
            for tensor, array in zip(tensors[len(arrays) :], expected, strict=True):
                wrong = int((tensor.numpy() != array).sum())
                if wrong:
                    text = f"wrong result: {wrong} of {array.size} entries differ"
                    raise KernelError(text)
            size = max(2 * cuda.cache_bytes(self._index), _LEAST_FLUSHED)
            flushed = [kept.enter_context(self._memory(size)) for _ in range(2)]
            first, nbytes = tensors[0].data_ptr(), arrays[0].nbytes
            activations = kept.enter_context(self._memory(nbytes))
            cuda.copy(activations, first, nbytes, stream)

            def timed(calls: int) -> list[float]:
                with cuda.events(2 * calls) as events:
                    for before, behind in zip(events[::2], events[1::2], strict=True):
                        cuda.copy(flushed[0], flushed[1], size, stream)
                        cuda.copy(first, activations, nbytes, stream)
                        cuda.record(before, stream)
                        function(*tensors)
                        cuda.record(behind, stream)
                    cuda.synchronize(stream)
                    pairs = zip(events[::2], events[1::2], strict=True)
                    return sorted(cuda.elapsed_ms(*pair) for pair in pairs)

            typical = max(timed(_FEWEST_CALLS)[0], 1e-3)
            calls = int(np.clip(milliseconds / typical, _FEWEST_CALLS, _MOST_CALLS))
            # An event takes the time in steps of half a microsecond.
            return [max(value, 1e-6) * 1e-3 for value in timed(calls)[:_KEPT_CALLS]]

    def close(self) -> None:
        """Let go of the library."""
        self._module = None

    @contextlib.contextmanager
    def _stream(self) -> Iterator[int]:
        """A stream in which kernels of this thread are launched."""
        from ..runtime.tvm_runtime import load_runtime

        ffi = load_runtime()
        stream = self._cuda.create_stream()
        try:
            with ffi.use_raw_stream(ffi.device("cuda", self._index), stream):
                yield stream
        finally:
            self._cuda.destroy_stream(stream)

    @contextlib.contextmanager
    def _memory(self, size: int) -> Iterator[int]:
        address = self._cuda.allocate(size, "what is copied between measurements", self._index)
        try:
            yield address
        finally:
            self._cuda.free(address)


class _Holder:
    """The session: one for the life of the process, since a context takes a while to make."""

    def __init__(self) -> None:
        self.session: GpuSession | None = None

    def handle(self, operation: str, values: tuple[object, ...]) -> object:
        """Open, or call a method of the session."""
        if self.session is None:
            self.session = GpuSession(os.environ[ARCHITECTURES].split(","))
        if operation == "open":  # where it is, is of no interest
            return None
        return getattr(self.session, operation)(*values)

    def close(self) -> None:
        """Let go of what was loaded."""
        if self.session is not None:
            self.session.close()


if __name__ == "__main__":
    hide_torch()
    holder = _Holder()
    serve(int(sys.argv[1]), holder.handle, holder.close)
