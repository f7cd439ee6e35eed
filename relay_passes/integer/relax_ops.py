"""Integer operators in Relax: registration with TVM, and programs as modules and back."""

from __future__ import annotations

import re

from tvm import IRModule, relax, tirx
from tvm.ir import Op

from ..dialect.calls import (
    bindings,
    call_operator,
    operands_of,
    own_type,
    register,
    relax_type,
    types_of,
)
from ..errors import LoweringError
from . import operators  # noqa: F401  (defines the records)
from .operator import OPERATORS, Operator, Traits
from .program import Program, Step
from .types import TensorType

_MAIN = "main"
_NO_TRAITS = Traits(takes_epilogue=False)


def operator_name(expr: object) -> str:
    """Return "integer.linear" and so on, or "" when `expr` is not a call of this dialect."""
    if isinstance(expr, relax.Call) and isinstance(expr.op, Op) and expr.op.name in OPERATORS:
        return str(expr.op.name)
    return ""


def is_integer_op(expr: object) -> bool:
    """Tell whether `expr` is a call of an integer operator."""
    return operator_name(expr) != ""


def calls(expr: object, kind: type[Operator]) -> bool:
    """Tell whether `expr` calls an operator of a class."""
    name = operator_name(expr)
    return name != "" and issubclass(OPERATORS[name], kind)


def operator_of(call: relax.Call) -> Operator:
    """Record of an integer operator's call, with its attributes."""
    return OPERATORS[call.op.name].from_dict(call.attrs)


def traits_of(expr: object) -> Traits:
    """Traits of the operator that `expr` calls; no trait where that is none of this dialect."""
    name = operator_name(expr)
    return OPERATORS[name].TRAITS if name else _NO_TRAITS


def multiply_accumulates(function: relax.Function) -> int:
    """Count the multiply-accumulates of the matrix products in a function of static shapes.

    Linear layers and both products of attention, Q K^T and P V, are counted; row operations and
    epilogues are not. Padding counts as if it were computed.
    """
    calls = [one.value for one in bindings(function) if is_integer_op(one.value)]
    return sum(operator_of(call).multiply_accumulates(types_of(call)) for call in calls)


def rows_per_token(call: relax.Expr) -> int:
    """Rows that an operator makes of the channels of one token; 1 for anything else."""
    return operator_of(call).rows_per_token(types_of(call)) if is_integer_op(call) else 1


for _record in OPERATORS.values():
    register(_record)


def read_program(module: IRModule, function: str = "main") -> Program:
    """Read one function of a module.

    Parameters
    ----------
    module
        A module of the integer dialect.
    function
        Name of the function.

    Raises
    ------
    LoweringError
        If there is no such function, it holds anything but calls of integer operators, aliases
        and tuples, or two values have one name.
    """
    names = [variable.name_hint for variable in module.functions]
    if function not in names:
        raise LoweringError(
            f"no function {function!r} in the module",
            why=f"it has: {', '.join(names)}",
            todo="name one of them",
        )
    return _Reader(module[function], function).read()


def to_module(program: Program) -> IRModule:
    """Build the Relax module of a program.

    Parameters
    ----------
    program
        Of the integer dialect.

    Returns
    -------
    IRModule
        One function ``main`` of the inputs and the parameters, symbolic dimensions shared; its
        attribute ``num_input`` counts the inputs. `read_program` gives the program back.
    """
    symbols = _Symbols()
    variables = {
        name: relax.Var(name, relax_type(type_, symbols))
        for name, type_ in {**program.inputs, **program.parameters}.items()
    }
    values: dict[str, relax.Expr] = dict(variables)
    builder = relax.BlockBuilder()
    with builder.function(_MAIN, attrs={"num_input": len(program.inputs)}):
        with builder.dataflow():
            for step in program.steps:
                operands = {name: values[read] for name, read in step.operands.items()}
                hint = re.sub(r"\W", "_", step.name)
                values[step.name] = builder.emit(call_operator(step.operator, operands), hint)
            outputs = [builder.emit_output(values[name]) for name in program.outputs]
            result = outputs[0] if len(outputs) == 1 else relax.Tuple(outputs)
        builder.emit_func_output(result, list(variables.values()))
    return builder.get()


class _Symbols(dict[str, tirx.Var]):
    """Symbolic dimensions by name, made when they are first asked for."""

    def __missing__(self, name: str) -> tirx.Var:
        return self.setdefault(name, tirx.Var(name, "int64"))


class _Reader:
    def __init__(self, function: relax.Function, name: str) -> None:
        self.function = function
        self.name = name
        self.aliases: dict[relax.Var, relax.Expr] = {}
        self.tuples: dict[relax.Var, tuple[relax.Expr, ...]] = {}
        self.names: dict[relax.Var, str] = {}
        self.known: set[str] = set()

    def read(self) -> Program:
        params = tuple(self.function.params)
        attrs = self.function.attrs
        count = int(attrs["num_input"]) if attrs is not None and "num_input" in attrs else 0
        types: dict[str, TensorType] = {}
        for var in params:
            name, type_ = str(var.name), own_type(var, str(var.name))
            # A kernel gets one value as often as it reads it at other places.
            again = attrs is not None and "Primitive" in attrs and types.get(name) == type_
            self.names[var] = name if again else self._new_name(name)
            types[name] = type_
        names = list(types)
        body = self.function.body
        steps = []
        for block in body.blocks if isinstance(body, relax.SeqExpr) else []:
            for binding in block.bindings:
                step = self._binding(binding)
                if step is not None:
                    steps.append(step)
        end = body.body if isinstance(body, relax.SeqExpr) else body
        return Program(
            {name: types[name] for name in names[:count]},
            {name: types[name] for name in names[count:]},
            tuple(steps),
            tuple(self._name_of(member, "a result", self.name) for member in self._members(end)),
        )

    def _new_name(self, name: str) -> str:
        if name in self.known:
            raise LoweringError(
                f"two values are called {name!r}",
                self.name,
                "names of values are unique in a program",
                "give each operator a name of its own",
            )
        self.known.add(name)
        return name

    def _binding(self, binding: relax.VarBinding) -> Step | None:
        value: object = getattr(binding, "value", None)
        if is_integer_op(value):
            operator = operator_of(value)
            operands = {
                name: self._name_of(argument, "an operand", operator.where)
                for name, argument in operands_of(value).items()
            }
            type_ = own_type(binding.var, operator.where)
            return Step(operator, operands, self._result(binding.var, operator, type_))
        if isinstance(value, (relax.Var, relax.TupleGetItem)):
            if value in self.tuples:
                self.tuples[binding.var] = self.tuples[value]
            else:
                self.aliases[binding.var] = value
        elif isinstance(value, relax.Tuple):
            self.tuples[binding.var] = self._members(value)
        else:
            raise LoweringError(
                f"{type(value).__name__} is not a call of an integer operator",
                f"{self.name}, binding {binding.var.name!r}",
                f"the integer dialect has calls of its operators and tuples only: {value}",
                "lower this operator to the integer dialect",
            )
        return None

    def _result(self, var: relax.Var, operator: Operator, type_: TensorType) -> TensorType:
        self.names[var] = self._new_name(operator.name)
        return type_

    def _resolve(self, expr: relax.Expr) -> relax.Expr:
        while isinstance(expr, relax.Var) and expr in self.aliases:
            expr = self.aliases[expr]
        if isinstance(expr, relax.TupleGetItem):
            return self._resolve(self._members(expr.tuple_value)[int(expr.index)])
        return expr

    def _members(self, expr: relax.Expr) -> tuple[relax.Expr, ...]:
        expr = self.aliases.get(expr, expr)
        if isinstance(expr, relax.Tuple):
            return tuple(member for field in expr.fields for member in self._members(field))
        return self.tuples.get(expr, (self._resolve(expr),))

    def _name_of(self, expr: relax.Expr, what: str, where: str) -> str:
        expr = self._resolve(expr)
        if expr not in self.names:
            raise LoweringError(
                f"{what} is a {type(expr).__name__}",
                where,
                "integer programs keep their constants as parameters of the function, and bind "
                "every intermediate value to a variable",
                "emit it with a block builder, or make it a parameter",
            )
        return self.names[expr]
