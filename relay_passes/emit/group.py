"""Emission of one fused kernel: a private Relax function becomes one PrimFunc of plain loops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from tvm import relax, s_tir, te, tirx
from tvm.script import from_source

from ..dialect.calls import bindings, operands_of, own_type
from ..integer.operator import Serial
from ..integer.relax_ops import (
    calls,
    is_integer_op,
    multiply_accumulates,
    operator_of,
    rows_per_token,
    traits_of,
)
from ..integer.types import dtype_bounds, is_per_token, rows_of
from .domain import KernelDomain, PackedWeight
from .layout import KernelLayout
from .stage import Stage

Bounds = Mapping[str, tuple[int, int]]


def storage_shape(shape: tuple[int, ...], split: int = 1) -> tuple[int, ...]:
    """Shape in which kernels pass a value on: tokens of all batch rows are one axis.

    [batch, sequence, channels] is stored as [batch * sequence, channels]; everything else as it is.
    A kernel whose rows are heads, `split` of them in a token, has [batch * sequence * split,
    channels / split], which is the same memory.
    """
    return rows_of(shape, split) if is_per_token(shape) or split > 1 else shape


def split_of(function: relax.Function) -> int:
    """Rows that a fused function makes of the channels of one token."""
    calls = [binding.value for binding in bindings(function)]
    return max((rows_per_token(call) for call in calls), default=1)


def static_shape(kind: relax.TensorType) -> tuple[int, ...]:
    """Dimensions of a type whose shape is static."""
    return tuple(int(size) for size in kind.shape.values)


class GroupEmitter:
    """Emit the body of a fused function.

    Parameters
    ----------
    layout
        Operand layout of the target.
    parameters
        Integer arrays by parameter name.
    bounds
        Proven interval of every value, by canonical name.
    batch
        Sequences of the static shape.
    """

    def __init__(
        self, layout: KernelLayout, parameters: Mapping[str, np.ndarray], bounds: Bounds, batch: int
    ) -> None:
        self.layout = layout
        self.parameters = parameters
        self.bounds = bounds
        self.batch = batch

    def emit(self, function: relax.Function, counted: bool = False) -> tirx.PrimFunc:
        """Emit one fused function.

        Parameters
        ----------
        function
            Function of one kernel.
        counted
            Whether the kernel works on packed tokens and is told how many rows hold one.

        Returns
        -------
        tvm.tirx.PrimFunc
            Unscheduled; its buffers are the function's arguments in order, if `counted` the result
            of ``integer.slot_starts``, then its results.
        """
        domain = KernelDomain(self.layout, self.batch, str(function.attrs["ibert.layer"]))
        first = bindings(function)[0].value
        if calls(first, Serial):
            return self._marked(self._serial(first), function, domain)
        weights = packed_operands(function)
        split = split_of(function)
        if split > 1:
            domain.attributes["ibert.rows_per_token"] = split
        stages: dict[relax.Var, Any] = {
            var: self._packed(var, weights[var])
            if var in weights
            else self._argument(domain, var, split)
            for var in function.params
        }
        products = _products_read_by_runs(function)
        for binding in bindings(function):
            if binding.var in products:
                continue
            if is_integer_op(binding.value):
                operands = operands_of(binding.value)
                of_run = products.get(operands.get("x"))
                if of_run is not None:
                    operator = operator_of(binding.value)
                    stages[binding.var] = _run_of_product(domain, of_run, operator, stages)
                    continue
                stages[binding.var] = operator_of(binding.value).body(
                    domain, **{name: stages[var] for name, var in operands.items()}
                )
            elif isinstance(binding.value, relax.Var):
                stages[binding.var] = stages[binding.value]
        body = function.body.body
        results = list(body.fields) if isinstance(body, relax.Tuple) else [body]
        arguments = [stages[var].tensor for var in function.params]
        if domain.keys:
            domain.attributes["ibert.keys"] = [_place(arguments, key) for key in domain.keys]
        if counted:
            domain.attributes["ibert.row_count"] = len(arguments)
            arguments.append(row_count_argument(self.batch))
        outputs = [_stored(stages[var], str(var.ty.dtype)) for var in results]
        func = te.create_prim_func([*arguments, *outputs])
        if domain.merged_output:
            func = _merge_axes(func)
        return self._marked(func, function, domain)

    def _marked(
        self, func: tirx.PrimFunc, function: relax.Function, domain: KernelDomain
    ) -> tirx.PrimFunc:
        """Add the attributes that schedules and reports read."""
        for key in ("ibert.kernel", "ibert.layer"):
            func = func.with_attr(key, function.attrs[key])
        func = func.with_attr("ibert.macs", multiply_accumulates(function))
        for key, value in domain.attributes.items():
            func = func.with_attr(key, value)
        return func

    @staticmethod
    def _serial(call: relax.Call) -> tirx.PrimFunc:
        """Kernel of an operator that counts: loops as they are, in one block."""
        operator = operator_of(call)
        assert isinstance(operator, Serial)
        operands = operands_of(call)
        types = {name: own_type(var, operator.where, name) for name, var in operands.items()}
        func = from_source(operator.script(types))
        return func.with_attr("ibert.serial", list(operator.numbers))

    def _packed(self, var: relax.Var, packed: str) -> PackedWeight:
        array = self.parameters[var.name]
        shape = self.layout.packed_shape(*array.shape, packed=packed)
        return PackedWeight(array, te.placeholder(shape, str(array.dtype), name="weight"))

    def _argument(self, domain: KernelDomain, var: relax.Var, split: int) -> Stage:
        shape = static_shape(var.ty)
        dtype = str(var.ty.dtype)
        constant = var.name in self.parameters
        stored = shape if constant else storage_shape(shape, split)
        tensor = te.placeholder(stored, dtype, name="input")
        if constant:
            array = self.parameters[var.name]
            return domain.stage(tensor, int(array.min()), int(array.max()))
        low, high = self.bounds.get(var.name, dtype_bounds(dtype))
        return domain.stage(tensor, low, high)


def _products_read_by_runs(function: relax.Function) -> dict[relax.Var, relax.Call]:
    """Matrix products of a fused function of whose sums runs of channels are read."""
    inner = bindings(function)
    views = [b.value for b in inner if traits_of(b.value).view]
    read = [operands_of(view)["x"] for view in views]
    return {binding.var: binding.value for binding in inner if binding.var in read}


def _run_of_product(
    domain: KernelDomain, product: relax.Call, view: Any, stages: Mapping[relax.Var, Any]
) -> Stage:
    """A run of the columns of a product: the product with these rows of its weight."""
    operands = {name: stages[var] for name, var in operands_of(product).items()}
    first, count = view.run_of(operands["weight"].array.shape[0])
    for name, operand in operands.items():
        if isinstance(operand, PackedWeight):
            operands[name] = operand.run(first, count)
    bias = operands["bias"]
    operands["bias"] = domain.define("bias", (count,), lambda n: bias[n + first])
    return cast(Stage, operator_of(product).body(domain, **operands))


def _stored(stage: Stage, dtype: str) -> te.Tensor:
    """A result in its own type, where what follows in the kernel goes on with a wider one."""
    if stage.dtype == dtype:
        return stage.tensor
    return te.compute(stage.shape, lambda *index: stage.tensor(*index).astype(dtype), name="stored")


def row_count_argument(batch: int) -> te.Tensor:
    """Parameter that tells a kernel on packed tokens how many rows hold one: `slot_starts`."""
    return te.placeholder((batch + 1,), "int32", name="starts")


def _place(arguments: list[te.Tensor], tensor: te.Tensor) -> int:
    """Position of the argument that a tensor is, or is a run of channels of."""
    while tensor.op.input_tensors:
        (tensor,) = tensor.op.input_tensors
    return next(place for place, other in enumerate(arguments) if other.same_as(tensor))


def _merge_axes(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Store a result of [batch, seq_len, heads, head_dim] as [batch * seq_len, heads * head_dim].

    The block keeps its four loops: a schedule can tile one head, and no index needs a division.
    """
    schedule = s_tir.Schedule(func)
    (block,) = schedule.get_output_blocks(schedule.get_sblock("root"))
    _batch, seq_len, _heads, head_dim = (
        int(size) for size in schedule.get(block).writes[0].source.ty.shape
    )
    schedule.transform_layout(
        block, ("write", 0), lambda b, s, h, d: (b * seq_len + s, h * head_dim + d)
    )
    return schedule.mod["main"]


def packed_operands(function: relax.Function) -> dict[relax.Var, str]:
    """Parameters that a fused function reads in the order of the dot-product instruction, and how.

    How says the operand's record: `ibert_tvm.relay_passes.dialect.record.Operand.packed`.
    """
    found: dict[relax.Var, str] = {}
    for binding in bindings(function):
        if is_integer_op(binding.value):
            operands = operands_of(binding.value)
            found |= {
                operands[operand.name]: operand.packed
                for operand in operator_of(binding.value).OPERANDS
                if operand.packed
            }
    return found
