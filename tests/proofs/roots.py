"""Roots of many numbers."""

from __future__ import annotations

import numpy as np

from ibert_tvm.relay_passes.spec.square_root import i_sqrt

_CHUNK = 2**16


def wrong_roots(first: int, last: int) -> list[int]:
    """Numbers of [first, last), below 2^32, whose `i_sqrt` is not the floor of their root."""
    wrong: list[int] = []
    for start in range(first, last, _CHUNK):
        n = np.arange(start, min(start + _CHUNK, last), dtype=np.int64)
        root = i_sqrt(n, 32)
        right = (root * root <= n) & ((root + 1) * (root + 1) > n)
        wrong += n[~right].tolist()
    return wrong
