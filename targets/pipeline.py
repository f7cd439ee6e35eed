"""TVM's lowering of kernels for a processor, with our passes where they belong."""

from __future__ import annotations

import math
from collections.abc import Sequence

import tvm
import tvm_ffi
from tvm import ir, tirx

from .description import TargetDescription

# Keeping the small buffers of a kernel on the stack.
#
# TVM turns every local buffer of a kilobyte and more into a pair of calls that take and give back
# workspace memory. Kernels here have such buffers inside their tile loops (accumulators, the scores
# of a block of rows), so the calls would run hundreds of times per kernel: 4% of a linear layer.

# Threads have megabytes of stack; the largest kernel, attention over 512 tokens, takes 150 KB.
LARGEST_STACK_BUFFER = 64 * 1024
_ON_STACK = "disable_lower_builtin"
_TVM_ALIGNMENT = 16


def static_bytes(buffer: tirx.Buffer) -> int | None:
    """Bytes of a buffer, None where its shape is not static."""
    shape = buffer.ty.shape
    if not all(isinstance(extent, tirx.IntImm) for extent in shape):
        return None
    return math.prod(int(extent) for extent in shape) * tvm_ffi.dtype(str(buffer.ty.dtype)).itemsize


def keep_small_buffers_on_stack(alignment: int) -> tvm.transform.Pass:
    """Mark every buffer of up to `LARGEST_STACK_BUFFER` bytes as one for the stack.

    Those of whole multiples of `alignment` bytes, where it is more than TVM's, become memory of
    vectors of that size: TVM keeps the alignment of a type, and none else above 16.
    """

    def place(statement: tirx.AllocBuffer) -> tirx.Stmt:
        buffer, size = statement.buffer, static_bytes(statement.buffer)
        if size is None or size > LARGEST_STACK_BUFFER:
            return statement
        marked = {**dict(statement.annotations), _ON_STACK: tirx.const(1, "bool")}
        if alignment <= _TVM_ALIGNMENT or size == 0 or size % alignment:
            return tirx.AllocBuffer(buffer, marked)
        vectors = (size // alignment,), f"int32x{alignment // 4}"
        memory = tirx.decl_buffer(*vectors, name=f"{buffer.name}_memory")
        start = tirx.address_of(tirx.BufferLoad(memory, [0]))
        return tirx.SeqStmt([tirx.AllocBuffer(memory, marked), tirx.DeclBuffer(buffer, data=start)])

    @tirx.transform.prim_func_pass(opt_level=0)
    def run(function: tirx.PrimFunc, _module: object, _context: object) -> tirx.PrimFunc:
        return tvm_ffi.structural_map(function, (tirx.AllocBuffer, place))

    return run


# Instruction selection for products: the operators of `relay_passes/spec/q15.py`.
#
# LLVM does not recognise them in the arithmetic that defines them, so kernels carry operators. Left
# alone, an operator becomes that arithmetic; here it becomes the target's instruction.

# Known by name: this package does not import the one that defines the operators.
Q15_MULTIPLY = "tirx.ibert_q15_multiply"
HIGH_PRODUCT = "tirx.ibert_high_product"
LANE_SHIFT = "tirx.ibert_lane_shift"
_SCALAR = {
    "tirx.ibert_multiply_add": "multiply_add",
    "tirx.ibert_saturate": "saturate",
    "tirx.ibert_positive": "positive",
}


def select_q15_instructions(description: TargetDescription) -> tvm.transform.Pass:
    """Replace the operators by the target's intrinsics, wherever it has one for the vector length.

    Parameters
    ----------
    description
        The target; runs after loops are vectorised.
    """
    vectors: dict[str, tuple[dict[int, str], list[tirx.Expr]]] = {
        Q15_MULTIPLY: (dict(description.q15_multiply), []),
        HIGH_PRODUCT: (dict(description.high_product), [tirx.const(0, "int32")]),
    }
    scalar = dict(description.scalar_instructions)

    def select(call: ir.Call) -> tirx.Expr:
        operator = getattr(call.op, "name", "")
        if operator in _SCALAR and _SCALAR[operator] in scalar:
            return tirx.call_llvm_pure_intrin("int32", scalar[_SCALAR[operator]], *call.args)
        if operator == LANE_SHIFT:
            return _shifted_by_lane(*call.args)
        if operator not in vectors:
            return call
        intrinsics, more = vectors[operator]
        lanes = int(str(call.ty).partition("x")[2] or 1)
        name = intrinsics.get(lanes)
        if name is not None:
            return tirx.call_llvm_pure_intrin(str(call.ty), name, *call.args, *more)
        widest = max(intrinsics, default=0)
        if not widest or lanes % widest:
            return call
        return _by_registers(call, intrinsics[widest], widest, lanes, more)

    @tirx.transform.prim_func_pass(opt_level=0, name="ibert.select_q15_instructions")
    def run(function: tirx.PrimFunc, _module: object, _context: object) -> tirx.PrimFunc:
        return tvm_ffi.structural_map(function, (ir.Call, select))

    return run


def _shifted_by_lane(
    x: tirx.Expr, amount: tirx.Expr, least: tirx.Expr, most: tirx.Expr
) -> tirx.Expr:
    """``x >> amount``, of vectors of amounts by a product, which has 32 bits.

    The power of two is a product of ``max((n & 2^b) << (2^b - b), 1)``, a factor for each bit b of
    what is missing from the largest amount.
    """
    if not isinstance(most, tirx.Broadcast) or isinstance(amount, tirx.Broadcast):
        return x >> amount
    kind = str(x.ty)
    wide = kind.replace("int16", "int32")
    missing, power = most - amount, tirx.const(1, kind)
    for bit in range((int(most.value) - int(least.value)).bit_length()):
        one = tirx.bitwise_and(missing, tirx.const(1 << bit, kind))
        factor = tirx.max(one << tirx.const((1 << bit) - bit, kind), tirx.const(1, kind))
        power *= factor
    return ((x.astype(wide) * power.astype(wide)) >> most.astype(wide)).astype(kind)


def _by_registers(
    call: ir.Call, name: str, width: int, lanes: int, more: Sequence[tirx.Expr]
) -> tirx.Shuffle:
    """Apply an intrinsic to vectors of several registers, one register after the other.

    The factors are repeated, not bound: what computes them is pure, and found to be the same.
    """
    parts = []
    kind = f"{str(call.ty).partition('x')[0]}x{width}"
    for start in range(0, lanes, width):
        places = [tirx.const(place, "int32") for place in range(start, start + width)]
        sliced = [tirx.Shuffle([factor], places) for factor in call.args]
        parts.append(tirx.call_llvm_pure_intrin(kind, name, *sliced, *more))
    return tirx.Shuffle(parts, [tirx.const(place, "int32") for place in range(lanes)])


def kernel_passes(description: TargetDescription) -> list[tvm.transform.Pass]:
    """Passes of ours, to run after loops are vectorised and buffers flattened.

    Parameters
    ----------
    description
        The target.
    """
    return [
        keep_small_buffers_on_stack(description.stack_alignment),
        select_q15_instructions(description),
    ]


def cpu_pipeline(description: TargetDescription) -> str:
    """Register the TIR pipeline of a target with TVM.

    Ours run after loops are vectorised and buffers flattened, before TVM's last steps lower
    intrinsics and make the host functions.

    Parameters
    ----------
    description
        The target.

    Returns
    -------
    str
        Name to give as ``tir_pipeline``.
    """
    lower, finalize_host, finalize_device = tirx.get_tir_pipeline("default")

    def finalize() -> tvm.transform.Pass:
        return tvm.transform.Sequential([*kernel_passes(description), finalize_host()])

    name = f"ibert.cpu.{description.name}"
    tirx.register_tir_pipeline(name, lambda: (lower, finalize, finalize_device))
    return name
