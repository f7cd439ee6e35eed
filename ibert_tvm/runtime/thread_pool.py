"""The threads that the kernels of all libraries in a process share."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["ThreadPool", "thread_pool"]


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


def thread_pool(shared_object: ctypes.CDLL) -> ThreadPool:
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
