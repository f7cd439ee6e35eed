"""Which scales a module needs before it can be lowered: what calibration has to provide."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import tvm
from tvm import relax

from ..canonical import canonical_calls, main_function, value_name
from ..errors import LoweringError
from ..spec.presets import preset as preset_of
from .rule import MATMUL, NATIVE, SCALAR, STREAM, Need
from .rules import rules_of


@dataclass
class Requirement:
    """What is needed of one canonical value.

    Attributes
    ----------
    name : str
        Canonical name.
    op : str
        Operator that produces it, ``canonical.linear`` for example.
    channels : int
        Extent of its last axis.
    matmul, stream : bool
        Whether the table must hold the name in that section.
    readers : list of tuple of (str, str, int)
        Operator, canonical name and operand position of everything that reads the value.
    weight : str
        Parameter that holds the operator's matrix (linear, embedding), or "".
    is_output : bool
        Whether the module returns it.
    """

    name: str
    op: str
    channels: int
    matmul: bool = False
    stream: bool = False
    readers: list[tuple[str, str, int]] = field(default_factory=list)
    weight: str = ""
    is_output: bool = False


def requirements(module: tvm.IRModule, preset: str) -> dict[str, Requirement]:
    """List what lowering `module` with `preset` needs of every value.

    Parameters
    ----------
    module : tvm.IRModule
        A canonical module.
    preset : str
        "accurate", "paper" or "released".

    Returns
    -------
    dict of str to Requirement
        By canonical name, in program order; ids and values that nothing reads are left out.

    Raises
    ------
    LoweringError
        If an operator has no lowering rule.
    PresetError
        If the preset is unknown.
    """
    chosen, rules = preset_of(preset), rules_of(preset)
    needed: dict[str, Requirement] = {}
    rule_needs: dict[str, Need] = {}  # ``plain`` resolved
    names: dict[relax.Var, str] = {}
    for variable, call in live_calls(module):
        name = value_name(call)
        if call.op.name not in rules:
            raise LoweringError(
                f"no lowering rule for {call.op.name}",
                where=name,
                why=f"there are rules for: {', '.join(sorted(rules))}",
                todo="express the layer with these operators",
            )
        need = rules[call.op.name].need(chosen)
        if need.plain is None:
            need = replace(need, plain=rule_needs[names[call.args[0]]].plain)
        rule_needs[name] = need
        if str(variable.ty.dtype) == "float32":
            names[variable] = name
            needed[name] = Requirement(
                name,
                str(call.op.name),
                int(variable.ty.shape.values[-1]),
                matmul=MATMUL in need.result,
                stream=STREAM in need.result,
                weight=_matrix(call),
            )
        for index, form in enumerate(need.operands):
            operand = names[call.args[index]]
            needed[operand].readers.append((str(call.op.name), name, index))
            _require(needed[operand], form, rule_needs[operand])
    for name in output_names(module):
        needed[name].is_output = True
        _require(needed[name], SCALAR, rule_needs[name])
    return needed


def _require(value: Requirement, form: str, producer: Need) -> None:
    if form == MATMUL:
        value.matmul = True
    elif (
        form == STREAM
        or (form == SCALAR and not (producer.plain and producer.readable))
        or (form == NATIVE and not producer.readable)
    ):
        value.stream = True


def _matrix(call: relax.Call) -> str:
    position = {"canonical.linear": 1, "canonical.embedding": 0}.get(str(call.op.name))
    return "" if position is None else str(call.args[position].name)


def live_calls(module: tvm.IRModule) -> list[tuple[relax.Var, relax.Call]]:
    """Return the canonical calls that an output depends on, in order.

    Parameters
    ----------
    module : tvm.IRModule
        A canonical module.

    Returns
    -------
    list of tuple of (relax.Var, relax.Call)
    """
    wanted = set(output_fields(main_function(module)))
    kept = []
    for variable, call in reversed(list(canonical_calls(module))):
        if variable in wanted:
            kept.append((variable, call))
            wanted.update(call.args)
    return kept[::-1]


def attention_mask(module: tvm.IRModule) -> relax.Var | None:
    """Return the mask that every attention of a canonical module reads.

    Returns
    -------
    relax.Var or None
        None if there is no attention, or one without a mask, or there are several masks.
    """
    calls = [call for _, call in live_calls(module) if call.op.name == "canonical.attention"]
    masks = [call.args[3] if len(call.args) > 3 else None for call in calls]
    first = masks[0] if masks else None
    return first if all(mask is not None and mask.same_as(first) for mask in masks) else None


def output_names(module: tvm.IRModule) -> list[str]:
    """Canonical names of the values that ``main`` returns, in order.

    Parameters
    ----------
    module : tvm.IRModule
        A canonical module.

    Returns
    -------
    list of str

    Raises
    ------
    LoweringError
        If an output is not the result of a canonical operator.
    """
    calls = {variable: value_name(call) for variable, call in canonical_calls(module)}
    return [_resolve(item, calls) for item in output_fields(main_function(module))]


def output_fields(function: relax.Function) -> list[relax.Expr]:
    """Expressions that `function` returns, with aliases and tuples of the last block resolved."""
    aliases = _aliases(function)
    body = function.body.body
    body = aliases.get(body, body)
    fields = list(body.fields) if isinstance(body, relax.Tuple) else [body]
    return [_follow(item, aliases) for item in fields]


def _aliases(function: relax.Function) -> dict[relax.Var, relax.Expr]:
    return {
        binding.var: binding.value
        for block in function.body.blocks
        for binding in block.bindings
        if isinstance(binding.value, (relax.Var, relax.Tuple))
    }


def _follow(item: relax.Expr, aliases: dict[relax.Var, relax.Expr]) -> relax.Expr:
    while item in aliases:
        item = aliases[item]
    return item


def _resolve(item: relax.Expr, calls: dict[relax.Var, str]) -> str:
    if item not in calls:
        label = getattr(item, "name", type(item).__name__)
        raise LoweringError(
            f"output {label} is not computed by the model",
            where="function main",
            why="an output is the result of a canonical operator",
            todo="return a computed value",
        )
    return calls[item]
