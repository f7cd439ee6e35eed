"""Instruction selection for 16-bit arithmetic: the operators of `relay_passes/spec/q15.py`.

LLVM does not recognise them in the arithmetic that defines them, so kernels carry operators. Left
alone, an operator becomes that arithmetic; here it becomes the target's instruction.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import ir, tirx

from .description import TargetDescription

# Known by name: this package does not import the one that defines the operators.
Q15_MULTIPLY = "tirx.ibert_q15_multiply"
_SCALAR = {"tirx.ibert_multiply_add": "multiply_add", "tirx.ibert_saturate": "saturate"}


def select_q15_instructions(description: TargetDescription) -> tvm.transform.Pass:
    """Replace the operators by the target's intrinsics, wherever it has one for the vector length.

    Parameters
    ----------
    description
        The target; runs after loops are vectorised.
    """
    intrinsics = dict(description.q15_multiply)
    widest = max(intrinsics, default=0)
    scalar = dict(description.scalar_instructions)

    def select(call: ir.Call) -> ir.Call:
        operator = getattr(call.op, "name", "")
        if operator in _SCALAR and _SCALAR[operator] in scalar:
            return tirx.call_llvm_pure_intrin("int32", scalar[_SCALAR[operator]], *call.args)
        if operator != Q15_MULTIPLY:
            return call
        lanes = int(str(call.ty).partition("x")[2] or 1)
        name = intrinsics.get(lanes)
        if name is not None:
            return tirx.call_llvm_pure_intrin(str(call.ty), name, *call.args)
        width = widest if widest and lanes % widest == 0 else 0
        return _by_registers(call, intrinsics[width], width, lanes) if width else call

    @tirx.transform.prim_func_pass(opt_level=0, name="ibert.select_q15_instructions")
    def run(function: tirx.PrimFunc, _module: object, _context: object) -> tirx.PrimFunc:
        return tvm_ffi.structural_map(function, (ir.Call, select))

    return run


def _by_registers(call: ir.Call, name: str, width: int, lanes: int) -> tirx.Shuffle:
    """Apply an intrinsic to vectors of several registers, one register after the other.

    The factors are repeated, not bound: what computes them is pure, and found to be the same.
    """
    parts = []
    for start in range(0, lanes, width):
        places = [tirx.const(place, "int32") for place in range(start, start + width)]
        sliced = [tirx.Shuffle([factor], places) for factor in call.args]
        parts.append(tirx.call_llvm_pure_intrin(f"int16x{width}", name, *sliced))
    return tirx.Shuffle(parts, [tirx.const(place, "int32") for place in range(lanes)])
