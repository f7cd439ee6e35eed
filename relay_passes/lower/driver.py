"""Apply the lowering rules to a module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import tvm
from tvm import relax

from ..canonical import check_canonical, main_function, num_inputs, value_name
from ..dialect.arrays import AnyArray
from ..errors import LoweringError
from ..integer import mask_tokens
from ..quantization_table import ActivationQuant, QuantizationTable
from .context import LoweringContext, symbolic_inputs
from .forms import Form, storage
from .required_scales import (
    Requirement,
    attention_mask,
    live_calls,
    output_fields,
    output_names,
    requirements,
)
from .rule import activation, rules_of
from .value import IntegerValue


class LoweredModel(NamedTuple):
    """The integer program, its constants, and what its integers mean.

    Attributes
    ----------
    module
        One function ``main`` over ``integer.*`` operators; attribute ``num_input``.
    parameters
        Integer arrays by parameter name, in parameter order.
    scales
        JSON-able. ``values``: per canonical name a list of its forms, each with ``value`` (name
        of the integer operator that holds it), ``form``, ``scale`` (number, or one per channel)
        and ``zero_point``. ``outputs``: in order, each with ``name`` (canonical), ``value``,
        ``scale`` (number), ``zero_point`` and ``dtype``. ``inputs``: those that the caller
        quantises, each with ``name``, ``scale``, ``zero_point``, ``low``, ``high`` and ``dtype``;
        absent where there are none. ``nearest``: see `LoweringContext`; absent where it is empty.
    """

    module: tvm.IRModule
    parameters: dict[str, AnyArray]
    scales: dict[str, Any]


def lower_to_integer(
    module: tvm.IRModule, parameters: Mapping[str, AnyArray], table: QuantizationTable
) -> LoweredModel:
    """Lower a canonical module to the integer dialect.

    Expects a module in canonical form and a table with an entry for everything that
    `requirements` lists. Afterwards no float is left: every operator is one of the integer
    dialect, every parameter an integer array, every attribute an integer or a string. Values that
    no output depends on disappear. Each rule states what it does to ranges.

    Parameters
    ----------
    module
        Canonical, batch and sequence length may be symbolic.
    parameters
        Its float weights.
    table
        Scales and integer weights; also names the preset.

    Raises
    ------
    CanonicalError
        If the module is not in canonical form.
    LoweringError
        If a rule cannot lower its operator, or the table lacks an entry.
    RangeError
        If constants or an accumulator do not fit; names the layer.
    """
    check_canonical(module)
    needed = requirements(module, table.preset)
    _check_table(needed, table)
    function = main_function(module)
    count = num_inputs(function)
    names_of_values = [value_name(call) for _, call in live_calls(module)]
    context = LoweringContext(table, parameters, names_of_values)
    images = {
        str(call.args[0].name): table.matmul[value_name(call)]
        for _, call in live_calls(module)
        if value_name(call) in needed and needed[value_name(call)].need.given
    }
    inputs = symbolic_inputs(function, count, images)
    values: dict[relax.Var, IntegerValue | relax.Var] = dict(
        zip(function.params[:count], inputs, strict=True)
    )
    names = output_names(module)
    rules = rules_of(table.preset)
    builder = context.builder
    with builder.function("main", attrs={"num_input": count}):
        with builder.dataflow():
            for variable, call in live_calls(module):
                operands = [values.get(argument, argument) for argument in call.args]
                name = value_name(call)
                rule = rules[call.op.name]
                values[variable] = context.guard(name, partial(rule.lower, call, operands, context))
            mask = values.get(attention_mask(module))
            forms = [_output(values[item], mask, context) for item in output_fields(function)]
            emitted = [builder.emit_output(form.var) for form in forms]
            result = emitted[0] if len(emitted) == 1 else relax.Tuple(emitted)
        builder.emit_func_output(result, [*inputs, *context.variables])
    outputs = [_describe(name, form) for name, form in zip(names, forms, strict=True)]
    scales: dict[str, Any] = {"values": context.values, "outputs": outputs}
    if images:
        scales["inputs"] = [_describe_input(name, quant) for name, quant in images.items()]
    if context.nearest:
        scales["nearest"] = context.nearest
    return LoweredModel(builder.get(), context.parameters, scales)


def _output(
    value: IntegerValue | relax.Var, mask: IntegerValue | relax.Var | None, context: LoweringContext
) -> Form:
    """Return the form in which a value leaves the program: per token, 0 where there is none."""
    form = activation(value).scalar()
    if not isinstance(mask, relax.Var) or len(form.var.ty.shape.values) != 3:
        return form
    name = f"{form.value}.masked"
    return replace(form, var=context.emit(mask_tokens(form.var, mask, name=name)), value=name)


def _describe_input(name: str, quant: ActivationQuant) -> dict[str, Any]:
    return {
        "name": name,
        "scale": quant.scale,
        "zero_point": quant.zero_point,
        "low": quant.low,
        "high": quant.high,
        "dtype": storage(quant),
    }


def _describe(name: str, form: Form) -> dict[str, Any]:
    return {
        "name": name,
        "value": form.value,
        "scale": float(form.scale[0]),
        "zero_point": 0,
        "dtype": str(form.var.ty.dtype),
    }


def _check_table(needed: Mapping[str, Requirement], table: QuantizationTable) -> None:
    """Refuse a table that lacks entries, naming all of them at once."""
    missing = []
    for name, value in needed.items():
        missing += [f"matmul {name}"] if value.matmul and name not in table.matmul else []
        missing += [f"stream {name}"] if value.stream and name not in table.stream else []
        if value.section and name not in getattr(table, value.section):
            missing.append(f"{value.section} {name}")
    if missing:
        raise LoweringError(
            f"the quantisation table lacks {len(missing)} entries",
            where=", ".join(missing[:4]) + (", ..." if len(missing) > 4 else ""),
            why="without a scale a value has no integers",
            todo="calibrate the model with this preset; "
            "ibert_tvm.relay_passes.lower.requirements lists what is needed",
        )
    static = [name for name in needed if needed[name].static and _by_row(table, name)]
    if static:
        raise LoweringError(
            "values that need static scales have a scale per row",
            where=", ".join(static[:4]) + (", ..." if len(static) > 4 else ""),
            why="only weights are multiplied with rows that have scales of their own, and only "
            "what is requantised can be divided by its row",
            todo="calibrate the model again",
        )


def _by_row(table: QuantizationTable, name: str) -> bool:
    return name in table.matmul and table.matmul[name].by_row
