"""Emission of one fused kernel: a private Relax function becomes one PrimFunc of plain loops."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from tvm import relax, s_tir, te, tirx

from ..errors import LoweringError
from ..integer import attrs as integer_attrs
from ..integer.ops import attributes, operator_name
from ..integer.work import multiply_accumulates
from .attention import emit_attention
from .context import KernelContext
from .elementwise import (
    emit_add,
    emit_add_positions,
    emit_add_short,
    emit_embedding,
    emit_gelu,
    emit_patches,
    emit_position_ids,
    emit_prepend_tokens,
    emit_relu,
    emit_requantise,
    emit_requantise_even,
    emit_requantise_short,
    emit_select_token,
    emit_split_channels,
    emit_tanh,
)
from .layout import KernelLayout
from .linear import emit_linear
from .packing import (
    emit_mask_tokens,
    emit_pack_tokens,
    emit_slot_starts,
    emit_slot_tokens,
    emit_token_slots,
    row_count_argument,
)
from .pooling import emit_mean_pool
from .released_norm import emit_released_layer_norm
from .row_norm import emit_layer_norm
from .short_norm import emit_layer_norm_short
from .stage import Stage

Bounds = Mapping[str, tuple[int, int]]


def storage_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape in which kernels pass a value on: tokens of all batch rows are one axis.

    [batch, sequence, channels] is stored as [batch * sequence, channels]; everything else as it is.
    """
    if len(shape) == 3:
        return (shape[0] * shape[1], shape[2])
    return shape


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
    batch, seq_len
        Static shape.
    """

    def __init__(
        self,
        layout: KernelLayout,
        parameters: Mapping[str, np.ndarray],
        bounds: Bounds,
        batch: int,
        seq_len: int,
    ) -> None:
        self.layout = layout
        self.parameters = parameters
        self.bounds = bounds
        self.batch = batch
        self.seq_len = seq_len

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
        context = KernelContext(self.layout, self.batch, self.seq_len, self.parameters)
        serial = self._serial(function)
        if serial is not None:
            return self._marked(serial, function, context)
        stages: dict[relax.Var, Stage] = {}
        weights = packed_operands(function)
        for var in function.params:
            if var not in weights:
                stages[var] = self._argument(var)
        for block in function.body.blocks:
            for binding in block.bindings:
                if operator_name(binding.value):
                    stages[binding.var] = self._operator(context, binding.value, stages)
                elif isinstance(binding.value, relax.Var):
                    stages[binding.var] = stages[binding.value]
        body = function.body.body
        results = list(body.fields) if isinstance(body, relax.Tuple) else [body]
        arguments = [
            context.packed_weight(var.name) if var in weights else stages[var].tensor
            for var in function.params
        ]
        outputs = [stages[var].tensor for var in results]
        if counted:
            context.attributes["ibert.row_count"] = len(arguments)
            arguments.append(row_count_argument(context))
            self._note_keys(context, function)
        func = te.create_prim_func([*arguments, *outputs])
        if context.merged_output:
            func = _merge_axes(func)
        return self._marked(func, function, context)

    def _marked(
        self, func: tirx.PrimFunc, function: relax.Function, context: KernelContext
    ) -> tirx.PrimFunc:
        """Add the attributes that schedules and reports read."""
        for key in ("ibert.kernel", "ibert.layer"):
            func = func.with_attr(key, function.attrs[key])
        func = func.with_attr("ibert.macs", multiply_accumulates(function))
        for key, value in context.attributes.items():
            func = func.with_attr(key, value)
        return func

    @staticmethod
    def _note_keys(context: KernelContext, function: relax.Function) -> None:
        """Say which operands of packed attention are read from the first key of a sequence on."""
        runs: dict[relax.Var, relax.Var] = {}
        for binding in function.body.blocks[0].bindings:
            call = binding.value
            if operator_name(call) == "integer.split_channels":
                runs[binding.var] = call.args[0]
            elif operator_name(call) == "integer.attention":
                read = [runs.get(var, var) for var in call.args[1:3]]
                params = list(function.params)
                context.attributes["ibert.keys"] = [params.index(var) for var in read]

    def _serial(self, function: relax.Function) -> tirx.PrimFunc | None:
        """Kernel of an operator that counts tokens; None for any other."""
        call = function.body.blocks[0].bindings[0].value
        emit = _SERIAL.get(operator_name(call))
        if emit is None:
            return None
        dtype = str(call.args[0].ty.dtype)
        return emit(attributes(call), self.batch, self.seq_len, dtype)

    def _argument(self, var: relax.Var) -> Stage:
        shape = static_shape(var.ty)
        dtype = str(var.ty.dtype)
        tensor = te.placeholder(storage_shape(shape), dtype, name="input")
        if var.name in self.parameters:
            array = self.parameters[var.name]
            return Stage(tensor, int(array.min()), int(array.max()), self.layout.arithmetic)
        low, high = self.bounds.get(var.name, integer_attrs.dtype_bounds(dtype))
        return Stage(tensor, low, high, self.layout.arithmetic)

    def _operator(
        self, context: KernelContext, call: relax.Call, stages: Mapping[relax.Var, Stage]
    ) -> Stage:
        op = operator_name(call)
        attrs = attributes(call)
        if op == "integer.linear":
            x, weight, bias = call.args
            return emit_linear(context, stages[x], weight.name, stages[bias], attrs.name)
        operands = [stages[arg] for arg in call.args]
        emit = _EMITTERS.get(op)
        if emit is None:
            raise LoweringError(
                what=f"no kernel for {op}",
                where=attrs.name,
                why="emission has no rule for this operator",
                todo="report this model",
            )
        return emit(context, attrs, *operands)


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


def packed_operands(function: relax.Function) -> set[relax.Var]:
    """Parameters that linear layers of a fused function read as their weights."""
    return {
        binding.value.args[1]
        for block in function.body.blocks
        for binding in block.bindings
        if operator_name(binding.value) == "integer.linear"
    }


_EMITTERS: dict[str, Callable[..., Stage]] = {
    "integer.requantise": emit_requantise,
    "integer.requantise_short": emit_requantise_short,
    "integer.requantise_even": emit_requantise_even,
    "integer.gelu": emit_gelu,
    "integer.relu": emit_relu,
    "integer.tanh": emit_tanh,
    "integer.add": emit_add,
    "integer.add_short": emit_add_short,
    "integer.add_positions": emit_add_positions,
    "integer.patches": emit_patches,
    "integer.prepend_tokens": emit_prepend_tokens,
    "integer.embedding": emit_embedding,
    "integer.position_ids": emit_position_ids,
    "integer.select_token": emit_select_token,
    "integer.split_channels": emit_split_channels,
    "integer.layer_norm": emit_layer_norm,
    "integer.layer_norm_short": emit_layer_norm_short,
    "integer.released_layer_norm": emit_released_layer_norm,
    "integer.attention": emit_attention,
    "integer.mean_pool": emit_mean_pool,
    "integer.mask_tokens": emit_mask_tokens,
    "integer.pack_tokens": emit_pack_tokens,
}
_SERIAL: dict[str, Callable[..., tirx.PrimFunc]] = {
    "integer.token_slots": emit_token_slots,
    "integer.slot_tokens": emit_slot_tokens,
    "integer.slot_starts": emit_slot_starts,
}
