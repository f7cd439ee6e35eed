"""Keeping the small buffers of a kernel on the stack.

TVM turns every local buffer of a kilobyte and more into a pair of calls that take and give back
workspace memory. Kernels here have such buffers inside their tile loops (accumulators, the scores
of a block of rows), so the calls would run hundreds of times per kernel: 4% of a linear layer.
"""

from __future__ import annotations

import math

import tvm_ffi
from tvm import tirx

# Threads have megabytes of stack; the largest kernel, attention over 512 tokens, takes 150 KB.
LARGEST_STACK_BUFFER = 64 * 1024
_ON_STACK = "disable_lower_builtin"


def static_bytes(buffer: tirx.Buffer) -> int | None:
    """Bytes of a buffer, None where its shape is not static."""
    shape = buffer.ty.shape
    if not all(isinstance(extent, tirx.IntImm) for extent in shape):
        return None
    return math.prod(int(extent) for extent in shape) * tvm_ffi.dtype(str(buffer.ty.dtype)).itemsize


def _mark(statement: tirx.AllocBuffer) -> tirx.AllocBuffer:
    size = static_bytes(statement.buffer)
    if size is None or size > LARGEST_STACK_BUFFER:
        return statement
    marked = {**dict(statement.annotations), _ON_STACK: tirx.const(1, "bool")}
    return tirx.AllocBuffer(statement.buffer, marked)


@tirx.transform.prim_func_pass(opt_level=0)
def keep_small_buffers_on_stack(
    function: tirx.PrimFunc, _module: object, _context: object
) -> tirx.PrimFunc:
    """Mark every buffer of up to `LARGEST_STACK_BUFFER` bytes as one for the stack."""
    return tvm_ffi.structural_map(function, (tirx.AllocBuffer, _mark))
