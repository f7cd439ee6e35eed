"""The threads that the kernels of all libraries in a process share."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from .mapping import SharedObject
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
        The library whose copy of ``targets/parallel.c`` serves all others; it stays mapped once it
        has started threads.
    prefix
        What the names of its functions begin with.

    Attributes
    ----------
    launch
        Address of the function that runs a parallel loop.
    """

    def __init__(self, shared_object: SharedObject, prefix: str) -> None:
        self.shared_object = shared_object
        launch = ctypes.c_char.in_dll(shared_object, f"{prefix}_parallel_launch")
        self.launch = ctypes.addressof(launch)
        set_threads = f"{prefix}_set_threads"
        self._set_threads = shared_object.function(set_threads, ctypes.c_int, result=None)
        self._started = shared_object.function(f"{prefix}_started_threads")
        self._processors = processors()
        self._lock = threading.Lock()
        self._callers = 0

    def started(self) -> int:
        """Number of threads that were started, besides those of the callers."""
        return int(self._started())

    @contextmanager
    def used(self, wanted: int) -> Iterator[int]:
        """Give threads to what the calling thread runs meanwhile.

        Parameters
        ----------
        wanted
            Most threads, the calling one included.

        Yields
        ------
        int
            How many it has: `wanted`, or the caller's share of the processors if that is less, and
            1 at least.
        """
        with self._lock:
            self._callers += 1
            callers = self._callers
        try:
            count = wanted
            if callers > 1:
                count = max(1, min(wanted, max(wanted, self._processors) // callers))
            self._set_threads(count)
            yield count
        finally:
            with self._lock:
                self._callers -= 1
                if self not in _RUNNING and self.started():
                    _RUNNING.append(self)
                    self.shared_object.keep_mapped("the threads of this process run in it")


_RUNNING: list[ThreadPool] = []
_LATEST: list[weakref.ref[ThreadPool]] = []
_POOLS_LOCK = threading.Lock()


def thread_pool(shared_object: SharedObject, prefix: str) -> ThreadPool:
    """Let a library's kernels run on the pool of the process: that of the first library loaded.

    Every engine has to refer to it, since its kernels call into that library.
    """
    with _POOLS_LOCK:
        pool = _LATEST[0]() if _LATEST else None
        if pool is None:
            pool = ThreadPool(shared_object, prefix)
            _LATEST[:] = [weakref.ref(pool)]
    try:
        # What TVM's runtime set when it loaded the library, or the library itself.
        hook = ctypes.c_void_p.in_dll(shared_object, "__TVMBackendParallelLaunch")
    except ValueError:  # nothing in it is parallel
        return pool
    hook.value = pool.launch
    return pool
