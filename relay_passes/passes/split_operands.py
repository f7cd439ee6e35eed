"""Multiply matrix operands of 16 bits in two parts where instructions multiply bytes."""

from __future__ import annotations

import numpy as np
from tvm import relax

from .. import integer
from ..dialect.calls import operands_of, with_attributes, with_operands
from ..emit.layout import KernelLayout
from ..integer.relax_ops import traits_of
from .program import IntegerProgram, Rewriter, substitute

_NO_BIAS = "ibert.no_bias"


class SplitOperands:
    """Replace products with 16-bit activations by two with 8-bit ones.

    Expects ``main`` over ``integer.*`` operators. Afterwards no ``integer.linear`` reads int16,
    unless kernels of the layout widen activations anyway: then nothing is changed. Values and
    ranges are those that they were::

        y = linear(x_s16, w, b)  →  h_s8 = operand_part(x_s16, high)    # 2^8 h + l = x
                                    l_u8 = operand_part(x_s16, low)
                                    y = join_parts(linear(l, w, b), linear(h, w, 0))

    Parameters
    ----------
    layout
        The target's operand layout.
    """

    def __init__(self, layout: KernelLayout) -> None:
        self.layout = layout

    def __call__(self, program: IntegerProgram) -> IntegerProgram:
        """Apply the pass."""
        if self.layout.widens_lhs:
            return program
        splitter = _Splitter(program)
        if not splitter.wide:
            return program
        return IntegerProgram(splitter.run(), splitter.parameters)


class _Splitter(Rewriter):
    def __init__(self, program: IntegerProgram) -> None:
        super().__init__(program)
        self.parts: dict[tuple[relax.Var, str], relax.Var] = {}
        self.wide = {var for var, call in self.made_by.items() if _multiplies_short(call)}

    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        if binding.var not in self.wide:
            return super().rewrite(binding)
        emit, call = self.builder.emit, substitute(binding.value, self.new)
        name, x = str(call.attrs["name"]), operands_of(binding.value)["x"]
        high = with_operands(call, x=self._part(x, "high"), bias=self._no_bias(call))
        low = with_operands(call, x=self._part(x, "low"))
        of_high = emit(with_attributes(high, name=f"{name}.high"))
        of_low = emit(with_attributes(low, name=f"{name}.low"))
        return emit(integer.join_parts(of_low, of_high, name=name))

    def _part(self, x: relax.Var, part: str) -> relax.Var:
        """Part of an activation, once for all that read it."""
        if (x, part) not in self.parts:
            made = self.made_by.get(x)
            name = f"{x.name if made is None else made.attrs['name']}.{part}"
            dtype = "int8" if part == "high" else "uint8"
            self.parts[x, part] = self.builder.emit(
                integer.operand_part(self.new.get(x, x), name=name, part=part, dtype=dtype)
            )
        return self.parts[x, part]

    def _no_bias(self, call: relax.Call) -> relax.Var:
        """Zeros in the place of a bias."""
        (channels,) = (int(extent) for extent in operands_of(call)["bias"].ty.shape.values)
        return self.parameter(f"{_NO_BIAS}.{channels}", np.zeros(channels, np.int32))


def _multiplies_short(call: relax.Expr) -> bool:
    product = traits_of(call).matrix_product
    return product and str(operands_of(call)["x"].ty.dtype) == "int16"
