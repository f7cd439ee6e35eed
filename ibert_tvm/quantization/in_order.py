"""Calibration's independent parts on several processors, with the result of one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from threadpoolctl import threadpool_limits

from ..runtime.threads import default_threads

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def in_order(function: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
    """Yield what a function makes of items, in their order, some of them computed at a time.

    Each has one thread of BLAS: threads of one product wait for each other in loops, which on a
    busy machine costs four times what they compute. Few results wait to be taken.

    Parameters
    ----------
    function
        Reads nothing that the caller changes meanwhile.
    items
        What it is called with.
    """
    threads = default_threads()
    waiting: deque[Future[_Result]] = deque()
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(threads) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
