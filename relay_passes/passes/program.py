"""The unit that compile-time passes rewrite: an integer module and the values of its parameters.

Weights are folded at compile time (packed for the dot-product instruction, compensated for operand
offsets), so a pass that changes how a parameter is stored must change its value too. Passes here
are therefore functions from :class:`IntegerProgram` to :class:`IntegerProgram`; nothing is modified
in place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import tvm
from tvm import relax

from ..dialect.calls import bindings
from ..errors import LoweringError


@dataclass(frozen=True)
class IntegerProgram:
    """An integer module with its parameters.

    Attributes
    ----------
    module
        Relax functions that take ``num_input`` inputs followed by all parameters, in one order.
    parameters
        Integer arrays by parameter name, in that order.
    """

    module: tvm.IRModule
    parameters: Mapping[str, np.ndarray]

    def with_module(self, module: tvm.IRModule) -> IntegerProgram:
        """Return the same parameters with another module."""
        return replace(self, module=module)


def relax_functions(module: tvm.IRModule) -> dict[str, relax.Function]:
    """Relax functions of a module by name, without its primitive (fused) ones."""
    return {
        str(var.name_hint if hasattr(var, "name_hint") else var.name): function
        for var, function in module.functions_items()
        if isinstance(function, relax.Function) and not is_primitive(function)
    }


def is_primitive(function: relax.Function) -> bool:
    """Tell whether a Relax function is the body of one fused kernel."""
    return function.attrs is not None and "Primitive" in function.attrs


def variables(expr: relax.Expr) -> list[relax.Var]:
    """Variables that an expression in normal form reads, in order."""
    if isinstance(expr, relax.Var):
        return [expr]
    if isinstance(expr, relax.Tuple):
        return [var for item in expr.fields for var in variables(item)]
    if isinstance(expr, relax.Call):
        return [arg for arg in expr.args if isinstance(arg, relax.Var)]
    if isinstance(expr, relax.TupleGetItem):
        return variables(expr.tuple_value)
    return []


def substitute(expr: relax.Expr, new: Mapping[relax.Var, relax.Expr]) -> relax.Expr:
    """Replace the variables that an expression in normal form reads."""
    if isinstance(expr, relax.Var):
        return new.get(expr, expr)
    if isinstance(expr, relax.Tuple):
        return relax.Tuple([substitute(item, new) for item in expr.fields])
    if isinstance(expr, relax.TupleGetItem):
        return relax.TupleGetItem(substitute(expr.tuple_value, new), expr.index)
    if isinstance(expr, relax.Call):
        return relax.Call(expr.op, [substitute(arg, new) for arg in expr.args], expr.attrs)
    return expr


class Rewriter:
    """Builds ``main`` anew, binding by binding: base of passes that replace values.

    Parameters
    ----------
    program
        What is rewritten.
    function
        Its ``main``, where it is not as it is in the module.
    params
        New parameters in the place of the old.
    attrs
        Attributes besides its own.

    Attributes
    ----------
    builder
        In the scope of the new function.
    new
        What variables of the old function stand for; others stand for themselves.
    parameters
        By name, those that are added among them.
    added
        Parameters behind all others.
    made_by
        What binds a variable of the old function.
    readers
        How often a variable of the old function is read, by its result too.
    """

    def __init__(
        self,
        program: IntegerProgram,
        function: relax.Function | None = None,
        params: Sequence[relax.Var] | None = None,
        attrs: Mapping[str, object] | None = None,
    ) -> None:
        self.program = program
        self.function = function = program.module["main"] if function is None else function
        self.parameters = dict(program.parameters)
        self.made_by = {binding.var: binding.value for binding in bindings(function)}
        values = (*self.made_by.values(), function.body.body)
        self.readers = Counter(var for value in values for var in variables(value))
        self.builder = relax.BlockBuilder()
        self.new: dict[relax.Var, relax.Expr] = {}
        self.added: list[relax.Var] = []
        self._params = list(function.params if params is None else params)
        self._attrs = {**dict(function.attrs.items()), **(attrs or {})}

    def parameter(self, name: str, array: np.ndarray) -> relax.Var:
        """Add a parameter, unless one of that name was added before."""
        known = next((var for var in self.added if var.name == name), None)
        if known is None:
            known = relax.Var(name, relax.TensorType(list(array.shape), str(array.dtype)))
            self.parameters[name] = array
            self.added.append(known)
        return known

    def begin(self) -> None:
        """Emit what comes before all else."""

    def rewrite(self, binding: relax.VarBinding) -> relax.Expr | None:
        """Emit what a binding's variable is to stand for; None where nothing reads it any more."""
        return self.builder.emit(substitute(binding.value, self.new))

    def run(self) -> tvm.IRModule:
        """Return a module with the new function; what it returns is made last."""
        function, builder = self.function, self.builder
        returned = function.body.body
        result = self.made_by.get(returned, returned)
        many = isinstance(result, relax.Tuple)
        with builder.function("main", self._params, attrs=self._attrs):
            with builder.dataflow():
                self.begin()
                for binding in bindings(function):
                    if many and binding.var.same_as(returned):
                        continue
                    value = self.rewrite(binding)
                    if value is not None:
                        self.new[binding.var] = value
                leaving = variables(result) if many else [returned]
                results = [builder.emit_output(substitute(var, self.new)) for var in leaving]
            builder.emit_func_output(results if many else results[0])
        built = builder.get()["main"]
        return normalised(with_parameters(built, [*built.params, *self.added]))


def normalised(function: relax.Function) -> tvm.IRModule:
    """Module of one function, ``main``, with the types of all its values."""
    return relax.transform.Normalize()(tvm.IRModule({"main": function}))


def with_parameters(function: relax.Function, params: Sequence[relax.Var]) -> relax.Function:
    """The same function of other parameters."""
    return relax.Function(
        list(params), function.body, function.ret_ty, function.is_pure, function.attrs
    )


def with_live_parameters(
    function: relax.Function, parameters: Mapping[str, np.ndarray]
) -> IntegerProgram:
    """Program of a function, without parameters that nothing in it reads.

    Parameters
    ----------
    function
        ``main``.
    parameters
        Arrays of all its parameters, and maybe of others.
    """
    count = num_inputs(function)
    read = {var for binding in bindings(function) for var in variables(binding.value)}
    read.update(variables(function.body.body))
    kept = [var for var in function.params[count:] if var in read]
    module = normalised(with_parameters(function, [*function.params[:count], *kept]))
    return IntegerProgram(module, {str(var.name): parameters[str(var.name)] for var in kept})


def num_inputs(function: relax.Function) -> int:
    """Return the number of leading parameters of `function` that are model inputs.

    Raises
    ------
    LoweringError
        If the attribute ``num_input`` is missing.
    """
    if function.attrs is None or "num_input" not in function.attrs:
        raise LoweringError(
            what="cannot tell inputs from weights",
            where="function attributes",
            why="the attribute num_input is missing",
            todo="quantise the model again",
        )
    return int(function.attrs["num_input"])
