"""TIR operators for instructions that compilers do not find in the arithmetic that defines them.

`Q15_MULTIPLY` multiplies 16-bit lanes, `HIGH_PRODUCT` 32-bit ones. `MULTIPLY_ADD`, `SATURATE` and
`POSITIVE` are for processors without vectors. The specification emits the operator and each target
says what instruction it is (`targets`). Where none does, it becomes the arithmetic.

`LANE_SHIFT` shifts each lane by an amount of its own, on a target that has no such instruction.

`POSITIVE`, `SQUARE_ROOT`, `FLOOR_LOG2` and `NORMALISED_RECIPROCAL` are emitted only for a target
that has them, as `KernelLayout.functions` says: elsewhere their arithmetic is traced.
"""

from __future__ import annotations

from tvm import ir, tirx
from tvm.ir import register_op_attr

Q15_MULTIPLY = "tirx.ibert_q15_multiply"
"""``round_half_up(a b / 2^15)`` of int16 (lanes), as int16; not both operands are -2^15."""

HIGH_PRODUCT = "tirx.ibert_high_product"
"""``floor(a b / 2^32)`` of int32 (lanes), as int32."""

LANE_SHIFT = "tirx.ibert_lane_shift"
"""``x >> n`` of int32 or int16 (lanes) x and n, n from `least` to `most`; ``x 2^(most - n)`` fits
32 bits."""

MULTIPLY_ADD = "tirx.ibert_multiply_add"
"""``a b + c``, int32, of factors that fit 16 bits."""

SATURATE = "tirx.ibert_saturate"
"""``min(max(x, -2^(n-1)), 2^(n-1) - 1)`` of an int32 x and a constant n."""

POSITIVE = "tirx.ibert_positive"
"""``max(x, 0)`` of an int32 x below ``2^n`` and a constant n."""

SQUARE_ROOT = "tirx.ibert_square_root"
"""``floor(sqrt(n))``, int32, of an int64 n from 0 to 2^62 - 1."""

FLOOR_LOG2 = "tirx.ibert_floor_log2"
"""``floor(log2 n)``, int32, of an int32 n > 0."""

NORMALISED_RECIPROCAL = "tirx.ibert_normalised_reciprocal"
"""``floor(2^(15 + b) / n)``, int32, of an int32 n > 0 with b = floor(log2 n): 2^14 to 2^15."""


def multiply_add(a: tirx.Expr, b: tirx.Expr, c: tirx.Expr) -> tirx.Expr:
    """Call the operator on three int32 expressions."""
    return tirx.call_intrin("int32", MULTIPLY_ADD, a, b, c)


def saturate(x: tirx.Expr, bits: int) -> tirx.Expr:
    """Call the operator on an int32 expression."""
    return tirx.call_intrin("int32", SATURATE, x, tirx.const(bits, "int32"))


def positive(x: tirx.Expr, bits: int) -> tirx.Expr:
    """Call the operator on an int32 expression."""
    return tirx.call_intrin("int32", POSITIVE, x, tirx.const(bits, "int32"))


def q15_product(a: tirx.Expr, b: tirx.Expr) -> tirx.Expr:
    """Call the operator on two int16 expressions."""
    return tirx.call_intrin("int16", Q15_MULTIPLY, a, b)


def q15_arithmetic(a: tirx.Expr, b: tirx.Expr) -> tirx.Expr:
    """Spell the definition in 32-bit arithmetic, for any number of lanes."""
    lanes = str(a.ty).removeprefix("int16")
    wide = f"int32{lanes}"
    return ((a.astype(wide) * b.astype(wide) + (1 << 14)) >> 15).astype(f"int16{lanes}")


def high_product(a: tirx.Expr, b: tirx.Expr) -> tirx.Expr:
    """Call the operator on two int32 expressions."""
    return tirx.call_intrin("int32", HIGH_PRODUCT, a, b)


def lane_shift(x: tirx.Expr, amount: tirx.Expr, least: int, most: int) -> tirx.Expr:
    """Call the operator on two expressions of one type."""
    dtype = str(amount.ty)
    bounds = (tirx.const(bound, dtype) for bound in (least, most))
    return tirx.call_intrin(dtype, LANE_SHIFT, x, amount, *bounds)


def _lower_lane_shift(call: ir.Call) -> tirx.Expr:
    x, amount, *_ = call.args
    return x >> amount


def _lower(call: ir.Call) -> tirx.Expr:
    return q15_arithmetic(*call.args)


def _lower_high_product(call: ir.Call) -> tirx.Expr:
    lanes = str(call.ty).removeprefix("int32")
    a, b = (factor.astype(f"int64{lanes}") for factor in call.args)
    return ((a * b) >> 32).astype(str(call.ty))


def _lower_multiply_add(call: ir.Call) -> tirx.Expr:
    a, b, c = call.args
    return a * b + c


def _lower_saturate(call: ir.Call) -> tirx.Expr:
    x, bits = call.args
    half = 1 << (int(bits) - 1)
    return tirx.min(tirx.max(x, tirx.const(-half, "int32")), tirx.const(half - 1, "int32"))


def _lower_positive(call: ir.Call) -> tirx.Expr:
    return tirx.max(call.args[0], tirx.const(0, "int32"))


# TVM creates an operator with its first attribute.
for _name, _rule in (
    (Q15_MULTIPLY, _lower),
    (HIGH_PRODUCT, _lower_high_product),
    (LANE_SHIFT, _lower_lane_shift),
    (MULTIPLY_ADD, _lower_multiply_add),
    (SATURATE, _lower_saturate),
    (POSITIVE, _lower_positive),
    (SQUARE_ROOT, None),
    (FLOOR_LOG2, None),
    (NORMALISED_RECIPROCAL, None),
):
    register_op_attr(_name, "TCallEffectKind", tirx.CallEffectKind.Pure.value)
    register_op_attr(_name, "TVectorizable", True)
    register_op_attr(_name, "TScriptPrinterName", _name.removeprefix("tirx."), level=20)
    if _rule is not None:
        register_op_attr(_name, "default.FLowerIntrinsic", _rule)
