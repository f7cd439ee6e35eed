"""Integer operators in Relax: registration with TVM, calls, and reading a function back.

A call holds its operands in the order of the record. Where a record has optional operands, the
attribute ``operands`` of the call names those that are there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import tvm.ir
from tvm import IRModule, relax, tirx
from tvm.ir import Op
from tvm.ir import op as _tvm_op

from ..errors import LoweringError
from . import operators  # noqa: F401  (defines the records)
from .operator import OPERATORS, Operator
from .program import Program, Step
from .types import Dim, SymbolicDim, TensorType

RelaxExpr = relax.Expr
_OPERANDS = "operands"
_MAIN = "main"


def operator_name(expr: Any) -> str:
    """Return "integer.linear" and so on, or "" when `expr` is not a call of this dialect."""
    if isinstance(expr, relax.Call) and isinstance(expr.op, Op) and expr.op.name in OPERATORS:
        return str(expr.op.name)
    return ""


def is_integer_op(expr: Any) -> bool:
    """Tell whether `expr` is a call of an integer operator."""
    return operator_name(expr) != ""


def operator_of(call: relax.Call) -> Operator:
    """Record of an integer operator's call, with its attributes."""
    return OPERATORS[call.op.name].from_dict(call.attrs)


def traits_of(expr: Any) -> Any:
    """Traits of the operator that `expr` calls; None when it is not a call of this dialect."""
    name = operator_name(expr)
    return OPERATORS[name].TRAITS if name else None


def operands_of(call: relax.Call) -> dict[str, relax.Expr]:
    """Operands of an integer operator's call by name, in the order of its arguments.

    Raises
    ------
    LoweringError
        If it has more or fewer than it should.
    """
    names = [operand.name for operand in OPERATORS[call.op.name].OPERANDS]
    if call.attrs is not None and _OPERANDS in call.attrs:
        names = str(call.attrs[_OPERANDS]).split(",")
    if len(set(names)) != len(call.args):
        raise LoweringError(
            f"{call.op.name} got {len(call.args)} operands",
            operator_of(call).where,
            f"they are said to be: {', '.join(names)}",
            "build the call with ibert_tvm.relay_passes.integer",
        )
    return dict(zip(names, call.args, strict=True))


def call_operator(operator: Operator, operands: Mapping[str, relax.Expr | None]) -> relax.Call:
    """Build a call.

    Parameters
    ----------
    operator : Operator
        With its attributes.
    operands : mapping of str to relax.Expr or None
        By name; None leaves an optional one out.

    Returns
    -------
    relax.Call

    Raises
    ------
    LoweringError
        If an operand is missing, or its type is not what the operator takes (checked here if all
        operands have types, else when a block builder infers the type of the call).
    """
    _register(type(operator))
    given = {name: value for name, value in operands.items() if value is not None}
    operator.check_operands(given)
    order = [operand.name for operand in operator.OPERANDS if operand.name in given]
    attrs: dict[str, int | str] = operator.to_dict()
    if any(operand.optional for operand in operator.OPERANDS):
        attrs[_OPERANDS] = ",".join(order)
    arguments = [given[name] for name in order]
    call = relax.Call(Op.get(operator.OP), arguments, tvm.ir.make_node("ir.DictAttrs", **attrs))
    if all(isinstance(argument.ty, relax.TensorType) for argument in arguments):
        # An exception that crosses TVM's C++ comes back as a RuntimeError: check on this side.
        infer_type(call)
    return call


def with_attributes(call: relax.Call, **changes: int | str) -> relax.Call:
    """Return the same call with other attributes."""
    attrs = {**dict(call.attrs.items()), **changes}
    return relax.Call(call.op, call.args, tvm.ir.make_node("ir.DictAttrs", **attrs))


def with_operands(call: relax.Call, **changes: relax.Expr) -> relax.Call:
    """Return the same call with other operands, or with optional ones that it had left out."""
    return call_operator(operator_of(call), {**operands_of(call), **changes})


def own_type(expr: relax.Expr, where: str, label: str = "") -> TensorType:
    """Type of a Relax value as the records have it.

    Raises
    ------
    LoweringError
        If it is no tensor of known shape.
    """
    kind = expr.ty
    if not isinstance(kind, relax.TensorType) or kind.shape is None:
        raise LoweringError(
            f"operand {label} has no known shape ({kind})",
            where,
            "widths and kernels depend on shapes",
            "give the variable a TensorType with dimensions (symbolic ones serve)",
        )
    return TensorType(tuple(_dim(extent) for extent in kind.shape.values), str(kind.dtype))


def _dim(extent: Any) -> Dim:
    if hasattr(extent, "value"):
        return int(extent.value)
    if hasattr(extent, "name"):
        return SymbolicDim(str(extent.name))
    symbol, plus = _dim(extent.a), _dim(extent.b)  # a sum, as `SymbolicDim` has it
    if isinstance(symbol, int):
        symbol, plus = plus, symbol
    assert isinstance(symbol, SymbolicDim) and isinstance(plus, int)
    return symbol + plus


def relax_type(type_: TensorType, symbols: Mapping[str, Any]) -> relax.TensorType:
    """Relax's form of a type; `symbols` are its variables by name."""
    shape = [
        dim
        if isinstance(dim, int)
        else symbols[dim.symbol] + dim.plus
        if dim.plus
        else symbols[dim.symbol]
        for dim in type_.shape
    ]
    return relax.TensorType(shape, type_.dtype)


def symbols_of(expr: relax.Expr) -> dict[str, Any]:
    """Symbolic variables in the shape of a value, by name."""
    found = {}
    for extent in expr.ty.shape.values:
        for part in (extent, getattr(extent, "a", None), getattr(extent, "b", None)):
            if part is not None and hasattr(part, "name"):
                found[str(part.name)] = part
    return found


def infer_type(call: relax.Call) -> relax.TensorType:
    """Type of an integer operator's call.

    Raises
    ------
    LoweringError
        If an operand's shape or dtype is not what the operator takes.
    """
    operator = operator_of(call)
    operands = operands_of(call)
    types = {name: own_type(value, operator.where, name) for name, value in operands.items()}
    result = operator.result_type(types)
    symbols: dict[str, Any] = {}
    for value in operands.values():
        symbols |= symbols_of(value)
    return relax_type(result, symbols)


def multiply_accumulates(function: relax.Function) -> int:
    """Count the multiply-accumulates of the matrix products in a function of static shapes.

    Linear layers and both products of attention, Q K^T and P V, are counted; row operations and
    epilogues are not. Padding counts as if it were computed.
    """
    total = 0
    for block in function.body.blocks:
        for binding in block.bindings:
            if is_integer_op(binding.value):
                operator = operator_of(binding.value)
                types = {
                    name: own_type(value, operator.where, name)
                    for name, value in operands_of(binding.value).items()
                }
                total += operator.multiply_accumulates(types)
    return total


_registered: set[str] = set()


def _register(record: type[Operator]) -> None:
    if record.OP in _registered:
        return

    def infer(call: relax.Call, _builder: relax.BlockBuilder) -> relax.TensorType:
        return infer_type(call)

    _tvm_op._ffi_api.RegisterOp(record.OP, record.__doc__)
    tvm.ir.register_op_attr(record.OP, "FInferType", infer)
    tvm.ir.register_op_attr(record.OP, "FPurity", True)
    _registered.add(record.OP)


for _record in OPERATORS.values():
    _register(_record)


def read_program(module: IRModule, function: str = "main") -> Program:
    """Read one function of a module.

    Parameters
    ----------
    module : IRModule
        A module of the integer dialect.
    function : str
        Name of the function.

    Returns
    -------
    Program

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
    program : Program
        Of the integer dialect.

    Returns
    -------
    IRModule
        One function ``main`` of the inputs and the parameters, symbolic dimensions shared; its
        attribute ``num_input`` counts the inputs. `read_program` gives the program back.
    """
    symbols: dict[str, Any] = _Symbols()
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


class _Symbols(dict[str, Any]):
    """Symbolic dimensions by name, made when they are first asked for."""

    def __missing__(self, name: str) -> Any:
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
        value: Any = getattr(binding, "value", None)
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
