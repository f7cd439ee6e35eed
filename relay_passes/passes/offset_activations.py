"""Give every matrix operand the signedness that the target's dot-product instruction takes."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from tvm import relax

from .. import integer
from ..dialect.calls import operands_of, with_attributes, with_operands
from ..emit.layout import KernelLayout
from ..errors import RangeError
from ..integer.operators.linear import Linear
from ..integer.relax_ops import is_integer_op, operator_of, traits_of
from .program import IntegerProgram, Rewriter, bindings, substitute, variables

OFFSET = 128
_ONE = "ibert.one"


class OffsetActivations:
    """Store 8-bit operands of linear layers with an offset of 128 where the instruction wants it.

    x86's ``vpdpbusd`` multiplies unsigned by signed bytes, ARM's ``sdot`` signed by signed. An int8
    value that only linear layers read is therefore stored as ``value + 128`` in uint8 (or a uint8
    one as ``value - 128`` in int8), and each reading layer's bias takes ``-128 * sum_k weight[n,
    k]`` (or plus): exact, and free at run time. A value with other readers keeps its form and gets
    an offset copy; a bias with other readers stays, and each layer gets a bias of its own.

    Expects ``main`` over ``integer.*`` operators. Afterwards the first operand of every
    ``integer.linear`` has the layout's ``lhs_dtype``, unless that is int16 (then nothing is
    changed: the kernel widens). The clamp bounds and the zero point of the producing operator move
    with the offset, so every range stays as wide as it was::

        r = requantise(a, zero_point=0, low=-127, high=127, int8)     linear(r, w, b)
        → r = requantise(a, zero_point=128, low=1, high=255, uint8)   linear(r, w, b - 128 sum(w))

    Parameters
    ----------
    layout
        The target's operand layout.
    """

    def __init__(self, layout: KernelLayout) -> None:
        self.layout = layout

    def __call__(self, program: IntegerProgram) -> IntegerProgram:
        """Apply the pass."""
        if self.layout.lhs_dtype not in ("int8", "uint8"):
            return program
        offsetter = _Offsetter(program, self.layout.lhs_dtype)
        return IntegerProgram(offsetter.run(), offsetter.parameters)


class _Offsetter(Rewriter):
    def __init__(self, program: IntegerProgram, wanted: str) -> None:
        super().__init__(program)
        self.wanted = wanted
        self.delta = OFFSET if wanted == "uint8" else -OFFSET
        self.copies: dict[relax.Var, relax.Var] = {}
        self.calls: dict[relax.Var, list[relax.Call]] = defaultdict(list)
        self.escaping = set(variables(self.function.body.body))
        for binding in bindings(self.function):
            if is_integer_op(binding.value):
                for arg in binding.value.args:
                    self.calls[arg].append(binding.value)
            else:
                self.escaping.update(variables(binding.value))
        self.shifted = {
            binding.var
            for binding in bindings(self.function)
            if self._moves(binding.var, binding.value)
        }

    def rewrite(self, binding: relax.VarBinding) -> relax.Expr:
        call = binding.value
        if isinstance(call, relax.Var):  # an alias
            return substitute(call, self.new)
        if binding.var in self.shifted:
            return self.builder.emit(self._shifted(call))
        if _is_product(call):
            return self.builder.emit(self._product(call, operands_of(call)["x"] in self.shifted))
        return self.builder.emit(substitute(call, self.new))

    def _moves(self, var: relax.Var, call: relax.Expr) -> bool:
        """Tell whether a value can be stored with the offset by the operator that makes it."""
        traits = traits_of(call)
        if not traits.offsets or var in self.escaping:
            return False
        dtype = str(var.ty.dtype)
        return (
            dtype in ("int8", "uint8")
            and dtype != self.wanted
            and bool(self.calls[var])
            and all(_is_product(reader) for reader in self.calls[var])
        )

    def _shifted(self, call: relax.Call) -> relax.Call:
        given = set(call.attrs.keys()) & {"zero_point", "low", "high"}
        moved = {name: int(call.attrs[name]) + self.delta for name in sorted(given)}
        return with_attributes(substitute(call, self.new), dtype=self.wanted, **moved)

    def _product(self, call: relax.Call, shifted: bool) -> relax.Call:
        x, bias = (operands_of(call)[name] for name in ("x", "bias"))
        if str(x.ty.dtype) == self.wanted:
            return substitute(call, self.new)
        sums = self._matrix(call).astype(np.int64).sum(axis=1)
        layer = str(call.attrs["name"])
        compensated = self.program.parameters[bias.name].astype(np.int64) - self.delta * sums
        operand = substitute(x, self.new) if shifted else self._copy(x, layer)
        offset_bias = self._replace(bias, _narrow(compensated, layer), layer)
        return with_operands(call, x=operand, bias=offset_bias)

    def _matrix(self, call: relax.Call) -> np.ndarray:
        """The weight of a product, in 8 bits."""
        operands, operator = operands_of(call), operator_of(call)
        assert isinstance(operator, Linear)
        channels = int(operands.pop("x").ty.shape.values[-1])
        return operator.matrix(
            {name: self.parameters[var.name] for name, var in operands.items()}, channels
        )

    def _replace(self, bias: relax.Var, array: np.ndarray, layer: str) -> relax.Var:
        """Give `bias` another value, or the layer one of its own if others read `bias` too."""
        if len(self.calls[bias]) == 1:
            self.parameters[bias.name] = array
            return bias
        return self.parameter(f"{layer}.offset_bias", array)

    def _one(self) -> relax.Var:
        """Return the multiplier of a copy that changes only the offset."""
        one = next((var for var in self.function.params if var.name == _ONE), None)
        return self.parameter(_ONE, np.ones(1, np.int32)) if one is None else one

    def _copy(self, x: relax.Var, layer: str) -> relax.Var:
        if x not in self.copies:
            low, high = (0, 255) if self.wanted == "uint8" else (-128, 127)
            self.copies[x] = self.builder.emit(
                integer.requantise(
                    substitute(x, self.new),
                    self._one(),
                    name=f"{layer}.operand",
                    shift=0,
                    zero_point=self.delta,
                    low=low,
                    high=high,
                    dtype=self.wanted,
                )
            )
        return self.copies[x]


def _is_product(call: relax.Expr) -> bool:
    return traits_of(call).matrix_product


def _narrow(bias: np.ndarray, layer: str) -> np.ndarray:
    if np.abs(bias).max(initial=0) >= 2**31:
        raise RangeError(
            what="the compensated bias does not fit int32",
            where=layer,
            why=f"it reaches {int(np.abs(bias).max())} with the operand's offset of {OFFSET}",
            todo="use a coarser scale for this layer's input",
        )
    return bias.astype(np.int32)
