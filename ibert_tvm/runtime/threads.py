"""How many threads there are for kernels: processors, the wish of the user, TVM's own pool."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def _environment_threads() -> int | None:
    for variable in ("TVM_NUM_THREADS", "OMP_NUM_THREADS"):
        value = os.environ.get(variable, "")
        if value.isdigit() and int(value) > 0:
            return int(value)
    return None


# The user's wish, read once: `configure_threads` has to set the variable itself.
_WISHED_THREADS = _environment_threads()


def default_threads() -> int:
    """Threads per call where nobody asks for a number.

    Returns
    -------
    int
        What the environment variable TVM_NUM_THREADS or OMP_NUM_THREADS says, or else the
        physical processors that this process may use.
    """
    return processors() if _WISHED_THREADS is None else _WISHED_THREADS


def processors() -> int:
    """Cores that this process may use, by its affinity and its container's quota."""
    cores = physical_cores(os.sched_getaffinity(0))
    return max(1, min(cores, container_processors() or cores))


def physical_cores(usable: Iterable[int], folder: Path = Path("/sys/devices/system/cpu")) -> int:
    """Cores of some hardware threads: those of one core share its multipliers.

    Parameters
    ----------
    usable
        Numbers of the threads.
    folder
        What the kernel tells of them; another one serves tests.

    Returns
    -------
    int
        All of them where the kernel tells nothing.
    """
    cores = set()
    for number in usable:
        try:
            cores.add((folder / f"cpu{number}/topology/thread_siblings_list").read_text())
        except OSError:
            cores.add(str(number))
    return len(cores)


def container_processors(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int | None:
    """Processors that a container's quota amounts to.

    Parameters
    ----------
    quota
        The file of the control group, version 2; another one serves tests.

    Returns
    -------
    int or None
        At least 1; None without a quota.
    """
    try:
        limit, period = quota.read_text(encoding="ascii").split()[:2]
        return None if limit == "max" else max(1, int(limit) // int(period))
    except (OSError, ValueError, ZeroDivisionError):
        return None


def concurrent_calls() -> int:
    """How many calls may run at the same time on this machine's processors.

    Returns
    -------
    int
        Twice the processors: where callers wait for each other, one that is ready runs while the
        system wakes up another, which takes long on a busy machine.
    """
    return 2 * processors()


def configure_threads(count: int) -> None:
    """Set the size of TVM's thread pool, which each thread that runs kernels has one of.

    The pool's threads are made once, at the first configuration or when TVM first runs something:
    one per processor, or `count` if that is more, so that a process can go from one thread to
    several. A later call for more than were made gets those there are.

    Parameters
    ----------
    count
        Threads that kernels use from now on, the calling one included.
    """
    from .tvm_runtime import load_runtime

    # TVM caps the pool at this variable, or else at half the processors, so that
    # config_threadpool alone cannot use them all.
    os.environ["TVM_NUM_THREADS"] = str(max(count, os.cpu_count() or 1))
    # Unless told not to, TVM pins the calling thread to a processor: everything else that the
    # process does in it, and every thread and process that it starts, would share that one.
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    load_runtime().get_global_func("runtime.config_threadpool")(1, count)
