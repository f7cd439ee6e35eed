"""How many threads TVM's pool gives to kernels."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from ibert_tvm.runtime.threads import configure_threads
from ibert_tvm.runtime.tvm_runtime import load_runtime


def _configured() -> int:
    configure_threads(1)
    return int(load_runtime().get_global_func("runtime.NumThreads")())


def test_the_pool_of_every_thread_is_configured() -> None:
    assert _configured() == 1
    with ThreadPoolExecutor(1) as other:
        assert other.submit(_configured).result() == 1
