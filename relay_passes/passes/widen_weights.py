"""Widen weights in half bytes to the bytes that kernels multiply."""

from __future__ import annotations

from tvm import relax

from .. import integer
from ..dialect.calls import operands_of
from ..integer.operators.linear import NibbleLinear
from ..integer.relax_ops import calls
from ..spec import nibbles
from .program import IntegerProgram, Rewriter, bindings, substitute, with_live_parameters


class WidenWeights:
    """Replace products with weights in half bytes by such with weights of 8 bits.

    Expects ``main`` over ``integer.*`` operators. Afterwards there is no ``integer.nibble_linear``.
    An entry of such a weight, its half byte times the scale of its group, has 8 bits, so values and
    ranges are those that they were, and every later pass and kernel is that of 8 bits::

        y = nibble_linear(x, w_u8, scales, b)  →  y = linear(x, w_s8, b)   # w_s8[n, k] = h s
    """

    def __call__(self, program: IntegerProgram) -> IntegerProgram:
        """Apply the pass."""
        if not any(calls(one.value, NibbleLinear) for one in bindings(program.module["main"])):
            return program
        widener = _Widener(program)
        return with_live_parameters(widener.run()["main"], widener.parameters)


class _Widener(Rewriter):
    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        if not calls(binding.value, NibbleLinear):
            return super().rewrite(binding)
        call = substitute(binding.value, self.new)
        x, weight, scales, bias = operands_of(call).values()
        entries, of_groups = self.parameters[weight.name], self.parameters[scales.name]
        widened = nibbles.unpack(entries, of_groups, int(x.ty.shape.values[-1]))
        wide = self.parameter(f"{weight.name}.widened", widened)
        return self.builder.emit(integer.linear(x, wide, bias, name=str(call.attrs["name"])))
