"""A name for what a kernel computes, the same in every model and every process."""

from __future__ import annotations

import hashlib

import tvm_ffi
from tvm import tirx

from ..tiles import without_tile

_NAMES = ("ibert.layer", "global_symbol")


def _any_constants(store: tirx.BufferStore) -> tirx.BufferStore:
    """Make all integer constants of what is stored equal."""
    value = tvm_ffi.structural_map(store.value, (tirx.IntImm, lambda imm: tirx.IntImm(imm.ty, 1)))
    return tirx.BufferStore(store.buffer, value, store.indices)


def workload_key(func: tirx.PrimFunc) -> str:
    """Name an unscheduled kernel by its structure: loops, shapes, types, arithmetic.

    Layers of a model that compute the same have one key, and so have those of two models. Names of
    layers, variables and functions play no part, and neither do constants (shifts, limits): they
    make no kernel faster.

    Parameters
    ----------
    func
        Unscheduled kernel.

    Returns
    -------
    str
        16 hexadecimal digits.
    """
    nameless = without_tile(func)
    for name in _NAMES:
        nameless = nameless.without_attr(name)
    nameless = tvm_ffi.structural_map(nameless, (tirx.BufferStore, _any_constants))
    structure = tvm_ffi.structural_hash(nameless, map_free_vars=True)
    # 64 bits of hash collide by accident once in a while over all kernels that there are; shapes
    # and types beside it make sure that a collision could not be one of other sizes.
    shapes = [[str(extent) for extent in param.shape] for param in func.params]
    dtypes = [str(param.dtype) for param in func.params]
    text = f"{structure & (2**64 - 1):016x} {func.attrs['ibert.kernel']} {shapes} {dtypes}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]
