"""Kernels that differ in numbers only: the numbers become an argument, so that one serves all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tvm_ffi
from tvm import ir, relax, s_tir, tirx

from ..spec.q15 import MULTIPLY_ADD, POSITIVE, Q15_MULTIPLY, SATURATE
from .program import IntegerProgram, bindings, relax_functions, with_parameters
from .share_kernels import nameless

# These select code at compile time: of these operators the first operand alone may hold numbers.
# Amounts of shifts to the right, of which every layer has its own, are numbers like others.
_FIXED_AFTER_FIRST = (tirx.LShift, tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)
_ARITHMETIC = (MULTIPLY_ADD, Q15_MULTIPLY)
_CALL = "relax.call_tir"
_ROOT = "root"

Replace = Callable[[tirx.IntImm], tirx.Expr]


class ConstantsAsArguments:
    """Let layers share kernels that are equal but for the values of constants.

    Expects the output of `EmitKernels`, to be followed by `ShareKernels`. Of kernels of one
    structure, the constants that differ are read from a new parameter, an int32 array per call;
    constants that agree, and amounts of shifts to the left, stay in the code. It costs a load per
    constant, and an instruction where an amount was part of another one, and makes code smaller:
    for processors whose memory holds the code. Changes no value; intervals were proven before.
    """

    def __call__(self, program: IntegerProgram) -> IntegerProgram:
        """Apply the pass."""
        module = program.module
        callers = relax_functions(module)
        groups: dict[tvm_ffi.StructuralKey, dict[ir.GlobalVar, int]] = {}
        for name in sorted(callers):
            for kernel, inputs in _calls(callers[name]):
                key = tvm_ffi.StructuralKey(nameless(_rewritten(module[kernel], _zero)))
                groups.setdefault(key, {})[kernel] = inputs
        kernels: dict[ir.GlobalVar, tirx.PrimFunc] = {}
        parameters: dict[ir.GlobalVar, tuple[str, np.ndarray]] = {}
        for members in groups.values():
            table = np.array([_constants(module[kernel]) for kernel in members], np.int64)
            places = np.flatnonzero((table != table[:1]).any(axis=0)).tolist()
            if not places or not _fits_int32(table[:, places]):
                continue
            for (kernel, inputs), row in zip(members.items(), table, strict=True):
                kernels[kernel] = _with_argument(module[kernel], places, inputs)
                name = f"{kernel.name_hint}.constants"
                parameters[kernel] = (name, row[places].astype(np.int32))
        # A builder gives every kernel a variable of its type, which has changed.
        builder = relax.BlockBuilder()
        moved = {
            var: builder.add_func(kernels.get(var, function), var.name_hint)
            for var, function in module.functions_items()
            if isinstance(function, tirx.PrimFunc)
        }
        for name, caller in callers.items():
            builder.add_func(_with_constants(caller, parameters, moved), name)
        return IntegerProgram(builder.get(), {**program.parameters, **dict(parameters.values())})


def _calls(function: relax.Function) -> list[tuple[ir.GlobalVar, int]]:
    """Kernels that a function calls, and how many inputs each takes."""
    values = [binding.value for binding in bindings(function)]
    return [(call.args[0], len(call.args[1].fields)) for call in values if _is_call(call)]


def _is_call(value: relax.Expr) -> bool:
    return isinstance(value, ir.Call) and str(getattr(value.op, "name", "")) == _CALL


def _with_constants(
    function: relax.Function,
    parameters: Mapping[ir.GlobalVar, tuple[str, np.ndarray]],
    moved: Mapping[ir.GlobalVar, ir.GlobalVar],
) -> relax.Function:
    """Take the arrays of constants as parameters, behind all others, and hand them to the calls."""
    new = {
        kernel: relax.Var(name, relax.TensorType(array.shape, str(array.dtype)))
        for kernel, (name, array) in parameters.items()
    }

    def call(value: ir.Call) -> ir.Call:
        if not _is_call(value):
            return value
        kernel, operands, *rest = value.args
        if kernel in new:
            operands = relax.Tuple([*operands.fields, new[kernel]])
        return relax.Call(value.op, [moved[kernel], operands, *rest], value.attrs, value.ty_args)

    changed = tvm_ffi.structural_map(function, (ir.Call, call))
    return with_parameters(changed, [*changed.params, *new.values()])


def _fits_int32(values: np.ndarray) -> bool:
    bounds = np.iinfo(np.int32)
    return bool(values.min() >= bounds.min and values.max() <= bounds.max)


def _zero(constant: tirx.IntImm) -> tirx.Expr:
    return tirx.const(0, str(constant.ty))


def _constants(kernel: tirx.PrimFunc) -> list[int]:
    """Values of the constants that could be arguments, in order."""
    found: list[int] = []

    def note(constant: tirx.IntImm) -> tirx.Expr:
        found.append(int(constant))
        return constant

    _rewritten(kernel, note)
    return found


def _replaced(expr: tirx.Expr, replace: Replace) -> tirx.Expr:
    """Replace the constants of an expression; those in indices and conditions of loads stay."""
    if isinstance(expr, tirx.IntImm):
        return replace(expr)
    if isinstance(expr, _FIXED_AFTER_FIRST):
        return type(expr)(_replaced(expr.a, replace), expr.b)
    if hasattr(expr, "a") and hasattr(expr, "b"):
        return type(expr)(_replaced(expr.a, replace), _replaced(expr.b, replace))
    if isinstance(expr, tirx.Cast):
        return tirx.Cast(str(expr.ty), _replaced(expr.value, replace))
    if isinstance(expr, tirx.Let):
        return tirx.Let(expr.var, _replaced(expr.value, replace), _replaced(expr.body, replace))
    if isinstance(expr, tirx.Select):
        return tirx.Select(
            _replaced(expr.condition, replace),
            _replaced(expr.true_value, replace),
            _replaced(expr.false_value, replace),
        )
    if isinstance(expr, ir.Call):
        operator = str(getattr(expr.op, "name", ""))
        if operator in _ARITHMETIC:
            arguments = [_replaced(argument, replace) for argument in expr.args]
        elif operator in (SATURATE, POSITIVE):
            arguments = [_replaced(expr.args[0], replace), *expr.args[1:]]
        else:
            return expr
        return tirx.call_intrin(str(expr.ty), operator, *arguments)
    return expr


def _rewritten(kernel: tirx.PrimFunc, replace: Replace) -> tirx.PrimFunc:
    """Replace constants in what a kernel stores."""

    def store(statement: tirx.BufferStore) -> tirx.Stmt:
        # Loads from loop variables index; they hold no arithmetic on values.
        value = _replaced(statement.value, replace)
        return tirx.BufferStore(statement.buffer, value, statement.indices)

    return tvm_ffi.structural_map(kernel, (tirx.BufferStore, store))


def _with_argument(kernel: tirx.PrimFunc, places: Sequence[int], inputs: int) -> tirx.PrimFunc:
    """Read the constants at some places from one more parameter, which follows the inputs."""
    numbers = {int(place): index for index, place in enumerate(places)}
    buffer = tirx.decl_buffer((len(numbers),), "int32", name="constants")
    whole = ir.TensorRegion(buffer, [ir.Range(0, len(numbers))], kernel.params[0].ty)
    seen = -1

    def load(constant: tirx.IntImm) -> tirx.Expr:
        nonlocal seen
        seen += 1
        if seen not in numbers:
            return constant
        value = tirx.BufferLoad(buffer, [tirx.const(numbers[seen], "int32")])
        kind = str(constant.ty)
        return value if kind == "int32" else tirx.Cast(kind, value)

    def block(statement: s_tir.SBlock) -> s_tir.SBlock:
        if statement.name_hint == _ROOT or not _reads(statement, buffer):
            return statement
        reads, writes = [*statement.reads, whole], statement.writes
        return s_tir.SBlock(
            *(statement.iter_vars, reads, writes, statement.name_hint),
            *(statement.body, statement.init, statement.alloc_buffers),
            *(statement.match_buffers, statement.annotations, statement.span),
        )

    changed = tvm_ffi.structural_map(_rewritten(kernel, load), (s_tir.SBlock, block))
    params = [*changed.params[:inputs], buffer, *changed.params[inputs:]]
    return tirx.PrimFunc(params, changed.body, changed.ret_type, changed.attrs)


def _reads(statement: s_tir.SBlock, buffer: tirx.Var) -> bool:
    loads: list[ir.TensorLoad] = []
    tvm_ffi.structural_walk(statement.body, (ir.TensorLoad, loads.append))
    return any(load.source.same_as(buffer) for load in loads)
