"""Keeping the small buffers of a kernel on the stack.

TVM turns every local buffer of a kilobyte and more into a pair of calls that take and give back
workspace memory. Kernels here have such buffers inside their tile loops (accumulators, the scores
of a block of rows), so the calls would run hundreds of times per kernel: 4% of a linear layer.
"""

from __future__ import annotations

import math

import tvm
import tvm_ffi
from tvm import tirx

# Threads have megabytes of stack; the largest kernel, attention over 512 tokens, takes 150 KB.
LARGEST_STACK_BUFFER = 64 * 1024
_ON_STACK = "disable_lower_builtin"


def _size(buffer: tirx.Buffer) -> int | None:
    """Bytes of a buffer, None where its shape is not static."""
    if not all(isinstance(extent, tirx.IntImm) for extent in buffer.shape):
        return None
    dtype = tvm_ffi.dtype(str(buffer.dtype))
    return math.prod(int(extent) for extent in buffer.shape) * dtype.itemsize


def _mark(statement: tirx.AllocBuffer) -> tirx.AllocBuffer:
    size = _size(statement.buffer)
    if size is None or size > LARGEST_STACK_BUFFER:
        return statement
    marked = {**dict(statement.annotations), _ON_STACK: tirx.const(1, "bool")}
    return tirx.AllocBuffer(statement.buffer, marked)


@tvm.transform.module_pass(opt_level=0)
def keep_small_buffers_on_stack(
    module: tvm.IRModule, _context: tvm.transform.PassContext
) -> tvm.IRModule:
    """Mark every buffer of up to `LARGEST_STACK_BUFFER` bytes as one for the stack."""
    functions = {
        var: tvm_ffi.structural_map(function, (tirx.AllocBuffer, _mark))
        for var, function in module.functions_items()
    }
    return tvm.IRModule(functions, attrs=module.attrs, global_infos=module.global_infos)
