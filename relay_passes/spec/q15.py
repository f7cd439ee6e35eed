"""The TIR operator of the 16-bit product, `Q15_MULTIPLY`.

LLVM does not find the instruction for it in the arithmetic, so the specification emits one operator
and each target says what instruction it is (`targets`). Where none does, it becomes the arithmetic
that defines it.
"""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx
from tvm.ir import register_op_attr

Q15_MULTIPLY = "tirx.ibert_q15_multiply"
"""``round_half_up(a b / 2^15)`` of int16 (lanes), as int16; not both operands are -2^15."""


def q15_product(a: Any, b: Any) -> Any:
    """Call the operator on two int16 expressions."""
    return tirx.call_intrin("int16", Q15_MULTIPLY, a, b)


def q15_arithmetic(a: Any, b: Any) -> Any:
    """Spell the definition in 32-bit arithmetic, for any number of lanes."""
    lanes = str(a.ty).removeprefix("int16")
    wide = f"int32{lanes}"
    return ((a.astype(wide) * b.astype(wide) + (1 << 14)) >> 15).astype(f"int16{lanes}")


def _lower(call: ir.Call) -> Any:
    return q15_arithmetic(*call.args)


# TVM creates the operator with its first attribute.
register_op_attr(Q15_MULTIPLY, "TCallEffectKind", tirx.CallEffectKind.Pure.value)
register_op_attr(Q15_MULTIPLY, "TVectorizable", True)
register_op_attr(Q15_MULTIPLY, "TScriptPrinterName", "ibert_q15_multiply", level=20)
register_op_attr(Q15_MULTIPLY, "default.FLowerIntrinsic", _lower)
