"""Undoing vectors whose lanes are no power of two, where the code generator fails on them."""

from __future__ import annotations

import tvm_ffi
from tvm import tirx


def keep_whole_vectors(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Make vectorised loops serial unless their extent is a power of two.

    Parameters
    ----------
    func
        Scheduled kernel.

    Returns
    -------
    tvm.tirx.PrimFunc
        The compiler may still find vectors of its own in such loops.
    """

    def serial(loop: tirx.For) -> tirx.For:
        lanes = int(loop.extent) if loop.kind == tirx.ForKind.VECTORIZED else 1
        if lanes & (lanes - 1) == 0:
            return loop
        return tirx.For(
            loop.loop_var,
            loop.min,
            loop.extent,
            tirx.ForKind.SERIAL,
            loop.body,
            loop.thread_binding,
            loop.annotations,
            loop.step,
            loop.span,
        )

    return tvm_ffi.structural_map(func, (tirx.For, serial))
