"""The threads that the kernels of all libraries in a process share."""

from __future__ import annotations

import ctypes
import threading

from .threads import processors


class ThreadPool:
    """The threads that kernels run on: one pool per process, whatever number of libraries.

    Threads are started when a kernel first needs them, and sleep when none does. Callers that run
    at the same time divide the processors among them: one that is alone has all the threads that it
    asks for, and of as many callers as processors each runs its kernels in its own thread. That
    takes the least processor time per call, since nobody waits for anybody.

    Parameters
    ----------
    shared_object
        The library whose copy of ``targets/parallel.c`` serves all others; it stays mapped.

    Attributes
    ----------
    launch
        Address of the function that runs a parallel loop.
    """

    def __init__(self, shared_object: ctypes.CDLL) -> None:
        self.shared_object = shared_object
        self.launch = ctypes.cast(shared_object.ibert_parallel_launch, ctypes.c_void_p).value or 0
        self._set_threads = shared_object.ibert_set_threads
        self._set_threads.argtypes, self._set_threads.restype = [ctypes.c_int], None
        self._started = shared_object.ibert_started_threads
        self._processors = processors()
        self._lock = threading.Lock()
        self._callers = 0

    def started(self) -> int:
        """Number of threads that were started, besides those of the callers."""
        return int(self._started())

    def enter(self, wanted: int) -> int:
        """Give threads to what the calling thread runs, up to `leave`.

        Parameters
        ----------
        wanted
            Most threads, the calling one included.

        Returns
        -------
        int
            How many it has: `wanted`, or the caller's share of the processors if that is less, and
            1 at least.
        """
        with self._lock:
            self._callers += 1
            callers = self._callers
        count = wanted
        if callers > 1:
            count = max(1, min(wanted, max(wanted, self._processors) // callers))
        self._set_threads(count)
        return count

    def leave(self) -> None:
        """Say that what `enter` was called for has ended."""
        with self._lock:
            self._callers -= 1


_POOLS: list[ThreadPool] = []
_POOLS_LOCK = threading.Lock()


def thread_pool(shared_object: ctypes.CDLL) -> ThreadPool:
    """Let a library's kernels run on the pool of the process: that of the first library loaded."""
    with _POOLS_LOCK:
        if not _POOLS:
            _POOLS.append(ThreadPool(shared_object))
    try:
        # What TVM's runtime set when it loaded the library.
        hook = ctypes.c_void_p.in_dll(shared_object, "__TVMBackendParallelLaunch")
    except ValueError:  # nothing in it is parallel
        return _POOLS[0]
    hook.value = _POOLS[0].launch
    return _POOLS[0]
