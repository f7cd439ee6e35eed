"""Operators as Relax has them: registration with TVM, calls, and types.

A call holds its operands in the order of the record. Where a record has optional operands, the
attribute ``operands`` of the call names those that are there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from ibert_tvm.common.extras import as_missing_extra

# Everything of the passes that needs TVM comes through here.
try:
    import tvm.ir
    from tvm import relax
    from tvm.ir import Op
    from tvm.ir import op as _tvm_op
except ModuleNotFoundError as error:
    raise as_missing_extra(error, "the compiler") from error

from ..errors import CompilerError, LoweringError
from .record import RECORDS, Record
from .types import Dim, SymbolicDim, TensorType

_OPERANDS = "operands"
_registered: set[str] = set()


def register(record: type[Record]) -> None:
    """Make an operator known to TVM, with its type inference."""
    if record.OP in _registered:
        return

    def infer(call: relax.Call, _builder: relax.BlockBuilder) -> relax.TensorType:
        return infer_type(call)

    _tvm_op._ffi_api.RegisterOp(record.OP, record.__doc__)
    tvm.ir.register_op_attr(record.OP, "FInferType", infer)
    tvm.ir.register_op_attr(record.OP, "FPurity", True)
    _registered.add(record.OP)


def record_of(call: relax.Call) -> Record:
    """Record of a call, with its attributes."""
    return RECORDS[call.op.name].from_dict(call.attrs)


def operands_of(call: relax.Call) -> dict[str, relax.Expr]:
    """Operands of a call by name, in the order of its arguments.

    Raises
    ------
    CompilerError
        If it has more or fewer than it should.
    """
    record = RECORDS[call.op.name]
    names = [operand.name for operand in record.OPERANDS]
    if call.attrs is not None and _OPERANDS in call.attrs:
        names = str(call.attrs[_OPERANDS]).split(",")
    if len(set(names)) != len(call.args):
        raise record.DIALECT.error(
            f"{call.op.name} got {len(call.args)} operands",
            record_of(call).where,
            f"they are said to be: {', '.join(names)}",
            f"build the call with {record.DIALECT.package}",
        )
    return dict(zip(names, call.args, strict=True))


def call_operator(operator: Record, operands: Mapping[str, relax.Expr | None]) -> relax.Call:
    """Build a call.

    Parameters
    ----------
    operator
        With its attributes.
    operands
        By name; None leaves an optional one out.

    Raises
    ------
    CompilerError
        If an operand is missing, or its type is not what the operator takes (checked here if all
        operands have types, else when a block builder infers the type of the call).
    """
    register(type(operator))
    given = {name: value for name, value in operands.items() if value is not None}
    operator.check_operands(given)
    order = [operand.name for operand in operator.OPERANDS if operand.name in given]
    attrs = operator.to_dict()
    if any(operand.optional for operand in operator.OPERANDS):
        attrs[_OPERANDS] = ",".join(order)
    arguments = [given[name] for name in order]
    call = relax.Call(Op.get(operator.OP), arguments, tvm.ir.make_node("ir.DictAttrs", **attrs))
    if all(isinstance(argument.ty, relax.TensorType) for argument in arguments):
        # An exception that crosses TVM's C++ comes back as a RuntimeError: check on this side.
        infer_type(call)
    return call


def builder(record: type[Record]) -> Callable[..., relax.Call]:
    """Builder of an operator's calls.

    Parameters
    ----------
    record
        The operator.

    Returns
    -------
    callable
        ``build(*operands, *attributes, **by_name) -> relax.Call``, both in the order of the record;
        None leaves an optional operand out.
    """
    known = [operand.name for operand in record.OPERANDS]
    attributes = [field.name for field in fields(record) if field.name != "name"]

    def build(*given: Any, **by_name: Any) -> relax.Call:
        count = next(
            (i for i, x in enumerate(given) if x is not None and not isinstance(x, relax.Expr)),
            len(given),
        )
        if count > len(known) or len(given) - count > len(attributes):
            raise TypeError(
                f"{record.OP} takes {', '.join(known)}, then {', '.join(attributes) or 'no more'}, "
                f"and got {count} operands and {len(given) - count} attributes by position"
            )
        values = dict(zip(known, given[:count], strict=False))
        values |= dict(zip(attributes, given[count:], strict=False)) | by_name
        operands = {name: values.pop(name) for name in known if name in values}
        return call_operator(record(**values), operands)

    build.__doc__ = record.__doc__
    return build


def bindings(function: relax.Function) -> list[relax.VarBinding]:
    """All bindings of a function, in order."""
    return [binding for block in function.body.blocks for binding in block.bindings]


def with_attributes(call: relax.Call, **changes: int | str) -> relax.Call:
    """Return the same call with other attributes."""
    attrs = {**dict(call.attrs.items()), **changes}
    return relax.Call(call.op, call.args, tvm.ir.make_node("ir.DictAttrs", **attrs))


def with_operands(call: relax.Call, **changes: relax.Expr) -> relax.Call:
    """Return the same call with other operands, or with optional ones that it had left out."""
    return call_operator(record_of(call), {**operands_of(call), **changes})


def own_type(
    expr: relax.Expr, where: str, label: str = "", error: type[CompilerError] = LoweringError
) -> TensorType:
    """Type of a Relax value as the records have it.

    Raises
    ------
    CompilerError
        If it is no tensor of known shape.
    """
    kind = expr.ty
    if not isinstance(kind, relax.TensorType) or kind.shape is None:
        raise error(
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


def types_of(call: relax.Call) -> dict[str, TensorType]:
    """Types of a call's operands by name.

    Raises
    ------
    CompilerError
        If one is no tensor of known shape.
    """
    record = record_of(call)
    return {
        name: own_type(value, record.where, name, record.DIALECT.error)
        for name, value in operands_of(call).items()
    }


def infer_type(call: relax.Call) -> relax.TensorType:
    """Type of a call.

    Raises
    ------
    CompilerError
        If an operand's shape or dtype is not what the operator takes.
    """
    result = record_of(call).result_type(types_of(call))
    symbols: dict[str, Any] = {}
    for value in call.args:
        symbols |= symbols_of(value)
    return relax_type(result, symbols)
