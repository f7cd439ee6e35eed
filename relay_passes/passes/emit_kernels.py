"""Emit every fused function as a kernel of plain loops, and store weights as kernels read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import relax

from ..emit.group import GroupEmitter, packed_operands, split_of, static_shape, storage_shape
from ..emit.layout import KernelLayout
from ..errors import CompilerError, LoweringError
from ..integer.operators.slots import SlotStarts
from ..integer.operators.tokens import MaskTokens
from ..integer.relax_ops import calls, is_integer_op
from ..integer.types import is_per_token
from .program import IntegerProgram, bindings, is_primitive, num_inputs, relax_functions


class EmitKernels:
    """Lower ``Primitive`` functions over ``integer.*`` operators to TIR.

    Expects the output of `FuseEpilogues`. Afterwards every Relax function consists of ``call_tir``
    on integer PrimFuncs marked with ``ibert.kernel``; values of shape [batch, sequence, channels]
    are passed on as [batch * sequence, channels] and reshaped only where they enter the function or
    leave it.
    Weights of linear layers are packed, in the types of the functions and in the parameters. Each
    expression comes from the integer specification, traced with the intervals that the range
    analysis proved.

    Parameters
    ----------
    layout
        Operand layout of the target.
    bounds
        Proven interval of every value, by canonical name.
    """

    def __init__(self, layout: KernelLayout, bounds: Mapping[str, tuple[int, int]]) -> None:
        self.layout = layout
        self.bounds = bounds

    def __call__(self, program: IntegerProgram) -> IntegerProgram:
        """Apply the pass."""
        emission = _Emission(self, program)
        for name, function in relax_functions(program.module).items():
            emission.lower(name, function)
        parameters = {
            name: self.layout.pack(array, packed)
            if (packed := emission.packed.get(name))
            else array
            for name, array in program.parameters.items()
        }
        return IntegerProgram(emission.builder.get(), parameters)


class _Emission:
    def __init__(self, emit: EmitKernels, program: IntegerProgram) -> None:
        self.emit = emit
        self.program = program
        self.builder = relax.BlockBuilder()
        self.packed = _packed_names(program)

    def lower(self, name: str, function: relax.Function) -> None:
        batch = int(function.attrs["ibert.shape"][0])
        emitter = GroupEmitter(self.emit.layout, self.program.parameters, self.emit.bounds, batch)
        inputs = num_inputs(function)
        packed = "ibert.packed" in function.attrs
        starts: relax.Expr | None = None
        new: dict[Any, Any] = {}
        for index, var in enumerate(function.params):
            new[var] = var if index < inputs else self._stored(var)
        builder = self.builder
        with builder.function(
            name, [new[var] for var in function.params], attrs=dict(function.attrs.items())
        ):
            with builder.dataflow():
                for var in function.params[:inputs]:
                    new[var] = self._enter(var)
                for binding in bindings(function):
                    rows = starts if packed and self._on_packed_rows(binding) else None
                    new[binding.var] = self._binding(binding, new, emitter, rows)
                    if self._makes_starts(binding):
                        starts = new[binding.var]
                body = function.body.body
                leaving = new[body]
                fields = leaving.fields if isinstance(leaving, relax.Tuple) else [leaving]
                results = [
                    builder.emit_output(self._leave(value, kind))
                    for value, kind in zip(fields, _fields(body.ty), strict=True)
                ]
            builder.emit_func_output(results[0] if len(results) == 1 else results)

    def _stored(self, var: relax.Var) -> relax.Var:
        if var.name in self.packed:
            weight = self.program.parameters[var.name]
            shape = self.emit.layout.packed_shape(*weight.shape, packed=self.packed[var.name])
            return relax.Var(var.name, relax.TensorType(shape, str(weight.dtype)))
        return relax.Var(var.name, var.ty)

    def _enter(self, var: relax.Var) -> relax.Expr:
        """Return an input as kernels take it; features have the shape of a value per token."""
        shape = static_shape(var.ty)
        stored = storage_shape(shape)
        return var if stored == shape else self.builder.emit(relax.op.reshape(var, stored))

    def _leave(self, value: relax.Expr, kind: relax.TensorType) -> relax.Expr:
        shape = static_shape(kind)
        if storage_shape(shape) == shape:
            return value
        return relax.op.reshape(value, shape)

    def _anchors(self, binding: relax.VarBinding) -> list[relax.Call]:
        """Operators of the kernel that a binding calls; none if it calls none."""
        value = binding.value
        if not isinstance(value, relax.Call):
            return []
        return [inner.value for inner in bindings(self.program.module[value.op])]

    def _makes_starts(self, binding: relax.VarBinding) -> bool:
        """Whether a kernel counts the rows in use: [batch + 1] numbers from the slots."""
        return any(calls(call, SlotStarts) for call in self._anchors(binding))

    def _on_packed_rows(self, binding: relax.VarBinding) -> bool:
        """Whether a kernel of a packed function makes values whose first rows hold the tokens."""
        first = _fields(binding.var.ty)[0]
        known = [call for call in self._anchors(binding) if is_integer_op(call)]
        in_place = any(calls(call, MaskTokens) for call in known)
        return is_per_token(first.shape.values) and bool(known) and not in_place

    def _binding(
        self,
        binding: relax.VarBinding,
        new: Mapping[Any, Any],
        emitter: GroupEmitter,
        starts: relax.Expr | None,
    ) -> relax.Expr:
        value = binding.value
        if isinstance(value, relax.TupleGetItem):
            whole = new[value.tuple_value]
            if isinstance(whole, relax.Tuple):
                return whole.fields[value.index]
            return self.builder.emit(relax.TupleGetItem(whole, value.index))
        if isinstance(value, relax.Tuple):
            return relax.Tuple([new[field] for field in value.fields])
        if isinstance(value, relax.Var):
            return new[value]
        kernel = self.program.module[value.op]
        try:
            emitted = emitter.emit(kernel, counted=starts is not None)
        except CompilerError as error:
            raise error.at(str(kernel.attrs["ibert.layer"])) from None
        split = split_of(kernel)
        kinds = _fields(binding.var.ty)
        results = [
            relax.TensorType(storage_shape(static_shape(kind), split), str(kind.dtype))
            for kind in kinds
        ]
        arguments = [new[arg] for arg in value.args]
        if split > 1:
            arguments = [self._by_rows(arg, split) for arg in arguments]
        func = self.builder.add_func(emitted, value.op.name_hint)
        call = relax.call_tir(
            func,
            [*arguments, *([] if starts is None else [starts])],
            results[0] if len(results) == 1 else results,
        )
        made = self.builder.emit(call)
        if split == 1:
            return made
        stored = [storage_shape(static_shape(kind)) for kind in kinds]
        if len(stored) == 1:
            return self.builder.emit(relax.op.reshape(made, stored[0]))
        parts = (relax.TupleGetItem(made, index) for index in range(len(stored)))
        return relax.Tuple(
            [
                self.builder.emit(relax.op.reshape(self.builder.emit(part), shape))
                for part, shape in zip(parts, stored, strict=True)
            ]
        )

    def _by_rows(self, value: relax.Expr, split: int) -> relax.Expr:
        """An argument of a kernel whose rows are heads; constants stay."""
        if getattr(value, "name", None) in self.program.parameters:
            return value
        shape = storage_shape(static_shape(value.ty), split)
        return self.builder.emit(relax.op.reshape(value, shape))


def _fields(kind: relax.Type) -> list[relax.TensorType]:
    """Types in a tuple's; of any other that alone."""
    return list(kind.fields) if isinstance(kind, relax.TupleType) else [kind]


def _packed_names(program: IntegerProgram) -> dict[str, str]:
    """How parameters are packed that linear layers read as their weights, and nothing else reads.

    Raises
    ------
    LoweringError
        If something else reads one too: it would find it packed.
    """
    packed: dict[str, str] = {}
    plain: set[str] = set()
    for function in program.module.functions.values():
        if isinstance(function, relax.Function) and is_primitive(function):
            weights = packed_operands(function)
            packed |= {var.name: how for var, how in weights.items()}
            plain |= {var.name for var in function.params if var not in weights}
    if shared := sorted(packed.keys() & plain):
        raise LoweringError(
            what="a weight is read by a linear layer and by another operator",
            where=shared[0],
            why="linear layers read their weights in packed form, and there is one copy",
            todo="give the linear layer a copy of the weight under a name of its own",
        )
    return packed
