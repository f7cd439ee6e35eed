"""TVM's lowering of kernels for a GPU, with our passes where they belong."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import ir, tirx

from ..description import TargetDescription
from .launches import Launch, observe_launches

# Arithmetic that is a function on the device: division by what is not constant, roots, logarithms.
#
# A GPU has no integer division; what the CUDA compiler makes of one goes through floating point. So
# every division and remainder becomes a call of a function of integer instructions
# (``device/primitives.cuh``). Division by a constant is left: the compiler multiplies.

# Known by name: this package does not import the one that defines the operators.
_FUNCTIONS = {
    "tirx.ibert_square_root": "ibert::square_root",
    "tirx.ibert_floor_log2": "ibert::floor_log2",
    "tirx.ibert_normalised_reciprocal": "ibert::normalised_reciprocal",
}
_DIVISIONS = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)
_DIVIDE = "ibert_divide"
_TYPES = ("int32", "int64")
_WIDENED = {**dict.fromkeys(("int8", "int16", "uint8", "uint16"), "int32"), "uint32": "int64"}


@tirx.transform.prim_func_pass(opt_level=0, name="ibert.LowerDivision")
def lower_division(function: tirx.PrimFunc, _module: object, _context: object) -> tirx.PrimFunc:
    """Replace divisions, and what else the device has functions for.

    Expects device functions whose loops are vectorised and whose intrinsics are not yet lowered.
    Afterwards no division or remainder by anything but a constant is left (of 64 bits without sign
    and of vectors it would be, but kernels have neither; the audit of machine code would refuse
    them), nor an operator of those that the device has functions for. Values are unchanged:
    truncated and floored division keep their meaning for all signs::

        a // b    →    a1 = a; b1 = b; q = ibert_divide(a1, b1)
                       q - (a1 != q * b1 and the signs of that rest and b1 differ)
    """
    return tvm_ffi.structural_map(function, [(ir.Call, _function), (_DIVISIONS, _divided)])


def _function(call: ir.Call) -> tirx.Expr:
    name = _FUNCTIONS.get(getattr(call.op, "name", ""))
    return call if name is None else tirx.call_pure_extern(str(call.ty), name, *call.args)


def _divided(node: tirx.Expr) -> tirx.Expr:
    dtype = str(node.ty)
    if isinstance(node.b, tirx.IntImm):
        return node
    if dtype in _WIDENED:
        wide = _WIDENED[dtype]
        return _divided(type(node)(node.a.astype(wide), node.b.astype(wide))).astype(dtype)
    if dtype not in _TYPES:
        return node
    a, b = tirx.Var("dividend", dtype), tirx.Var("divisor", dtype)
    quotient = tirx.Var("quotient", dtype)
    zero = tirx.const(0, dtype)
    rest = a - quotient * b
    if isinstance(node, tirx.Div):
        value: tirx.Expr = quotient
    elif isinstance(node, tirx.Mod):
        value = rest
    else:
        # A rest has the sign of the dividend; where the divisor has the other, one more is taken.
        below = tirx.all(rest != zero, tirx.bitwise_xor(rest, b) < zero)
        if isinstance(node, tirx.FloorDiv):
            value = quotient - tirx.Select(below, tirx.const(1, dtype), zero)
        else:
            value = rest + tirx.Select(below, b, zero)
    divide = tirx.call_pure_extern(dtype, _DIVIDE, a, b)
    return tirx.Let(a, node.a, tirx.Let(b, node.b, tirx.Let(quotient, divide, value)))


def gpu_pipeline(description: TargetDescription, launches: dict[str, Launch]) -> str:
    """Register the TIR pipeline of a GPU with TVM.

    Ours run on device code, before TVM's last step lowers intrinsics.

    Parameters
    ----------
    description
        The target.
    launches
        Receives how each device kernel is launched.

    Returns
    -------
    str
        Name to give as ``tir_pipeline``.
    """
    lower, finalize_host, finalize_device = tirx.get_tir_pipeline("default")

    def finalize() -> tvm.transform.Pass:
        passes = [observe_launches(launches), lower_division, finalize_device()]
        return tvm.transform.Sequential(passes)

    name = f"ibert.cuda.{description.name}"
    tirx.register_tir_pipeline(name, lambda: (lower, finalize_host, finalize))
    return name
