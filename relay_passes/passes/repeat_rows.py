"""Have linear layers compute channels that are gathered behind them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from tvm import relax

from ..dialect.calls import operands_of, record_of, with_operands
from ..integer.operators.channels import GatherChannels
from ..integer.operators.tokens import Embedding
from ..integer.relax_ops import calls, is_integer_op, traits_of
from .program import IntegerProgram, Rewriter, bindings, substitute, with_live_parameters


class RepeatRows:
    """Repeat rows of a weight where channels of what it computes are gathered.

    Expects ``main`` over ``integer.*`` operators. Where a value from whose channels others are
    gathered comes from a linear layer by elementwise operators alone, and nothing else reads any of
    these values, the layer's rows and the operators' constants are gathered instead, and the
    operator disappears. Values and ranges are unchanged, but that channels stand at other places::

        y = linear(x, w, b)              y = linear(x, w[channels], b[channels])
        g = gelu(y)                    → g = gelu(y)
        r = gather_channels(g, channels)

    Elsewhere channels are gathered by a kernel.
    """

    def __call__(self, program: IntegerProgram) -> IntegerProgram:
        """Apply the pass."""
        return _Repeater(program).repeated()


class _Repeater(Rewriter):
    def __init__(self, program: IntegerProgram) -> None:
        super().__init__(program)
        self.gathered: dict[relax.Var, NDArray[np.int32]] = {}
        self.dropped: set[relax.Var] = set()
        for binding in bindings(self.function):
            if calls(binding.value, GatherChannels):
                self._move(binding)

    def repeated(self) -> IntegerProgram:
        """Return the rewritten program; the same one where nothing is gathered."""
        if not self.dropped:
            return self.program
        return with_live_parameters(self.run()["main"], self.parameters)

    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        call = substitute(binding.value, self.new)
        if binding.var in self.dropped:
            return call.args[0]
        channels = self.gathered.get(binding.var)
        return self.builder.emit(call if channels is None else self._with_rows(call, channels))

    def _move(self, binding: relax.VarBinding) -> None:
        operands = operands_of(binding.value)
        channels = self.program.parameters[operands["channels"].name]
        sources = self._sources(operands["x"])
        if sources is not None:
            self.gathered.update(dict.fromkeys(sources, channels))
            self.dropped.add(binding.var)

    def _sources(self, value: relax.Var) -> list[relax.Var] | None:
        """Values to compute with other channels in place of one; None where it cannot be."""
        call = self.made_by.get(value)
        traits = traits_of(call)
        if self.readers[value] != 1:
            return None
        if traits.matrix_product:
            return [value]
        if not traits.elementwise or calls(call, Embedding):
            return None
        found = [value]
        for operand in _by_channel(call).values():
            sources = self._sources(operand)
            if sources is None:
                return None
            found += sources
        return found

    def _with_rows(self, call: relax.Call, channels: NDArray[np.int32]) -> relax.Call:
        by_token = _by_token(call)
        constants = {
            name: self._rows(var, channels)
            for name, var in operands_of(call).items()
            if name not in by_token and int(var.ty.shape.values[0]) > 1
        }
        return with_operands(call, **constants)

    def _rows(self, var: relax.Var, channels: NDArray[np.int32]) -> relax.Var:
        array = np.ascontiguousarray(self.parameters[var.name][channels])
        name = f"{var.name}.rows"
        while name in self.parameters and not np.array_equal(self.parameters[name], array):
            name += "_"
        return self.parameter(name, array)


def _by_token(call: relax.Call) -> dict[str, relax.Var]:
    """Operands that are values, by name; the others are constants of the model."""
    if not is_integer_op(call):
        return {}
    constants = {operand.name for operand in record_of(call).OPERANDS if operand.is_constant}
    return {name: var for name, var in operands_of(call).items() if name not in constants}


def _by_channel(call: relax.Call) -> dict[str, relax.Var]:
    """Those of `_by_token` whose channels are those of the result."""
    numbers = {operand.name for operand in record_of(call).OPERANDS if operand.is_number_of_row}
    return {name: var for name, var in _by_token(call).items() if name not in numbers}
