"""Which scales a module needs before it can be lowered: what calibration has to provide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import tvm
from tvm import relax

from ..canonical import (
    OPERATORS,
    canonical_calls,
    main_function,
    matrix_of,
    output_fields,
    value_name,
)
from ..dialect.calls import operands_of
from ..errors import LoweringError
from ..quantization_table import ActivationQuant
from ..spec.presets import preset as preset_of
from .rule import FACTORS, MATMUL, NATIVE, SCALAR, STREAM, Need, rules_of


@dataclass(frozen=True)
class Reader:
    """What reads a value.

    Attributes
    ----------
    name
        Canonical name of its result.
    form
        How it reads the value, one of the forms of `ibert_tvm.relay_passes.lower.rule`.
    stream_for, finest
        See `Need`.
    """

    name: str
    form: str
    stream_for: Callable[[float], ActivationQuant] | None = None
    finest: Callable[[float], float] | None = field(default=None, compare=False)


@dataclass
class Requirement:
    """What is needed of one canonical value.

    Attributes
    ----------
    name
        Canonical name.
    op
        Operator that produces it, ``canonical.linear`` for example: for messages.
    channels
        Extent of its last axis.
    need
        Of the rule that lowers the operator.
    section, weight
        Section of the table that holds the integers of the operator's matrix, and the matrix's
        parameter; "" if it has none.
    bias
        The parameter that is its bias; "" if it has none.
    matmul, stream
        Whether the table must hold the name in that section.
    readers
        Everything that reads the value.
    is_output
        Whether the module returns it.
    of_layers
        Whether it is what linear layers compute, or an elementwise function of that, and nothing
        else reads the values in between: the layers might compute more channels as well.
    """

    name: str
    op: str
    channels: int
    need: Need
    section: str = ""
    weight: str = ""
    bias: str = ""
    matmul: bool = False
    stream: bool = False
    readers: list[Reader] = field(default_factory=list)
    is_output: bool = False
    of_layers: bool = False

    @property
    def factor_forms(self) -> set[str]:
        """Forms in which products of two activations read it."""
        return {reader.form for reader in self.readers} & set(FACTORS)

    @property
    def static(self) -> bool:
        """Whether its 8-bit form must have static scales.

        The caller quantises inputs, attention and rotations yield 8 bits themselves, and products
        of two activations have no place for magnitudes of rows.
        """
        return self.need.given or MATMUL in self.need.result or bool(self.factor_forms)

    @property
    def layers(self) -> list[str]:
        """Names of the layers that multiply it by weights."""
        return [reader.name for reader in self.readers if reader.form == MATMUL]

    @property
    def stream_for(self) -> Callable[[float], ActivationQuant] | None:
        """The stream form that suits all readers best, if they agree on one."""
        wishes = {reader.stream_for for reader in self.readers}
        return wishes.pop() if len(wishes) == 1 else None


def requirements(module: tvm.IRModule, preset: str) -> dict[str, Requirement]:
    """List what lowering `module` with `preset` needs of every value.

    Parameters
    ----------
    module
        A canonical module.
    preset
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
        need = rules[call.op.name].need(chosen, call)
        if need.plain is None:
            need = replace(need, plain=rule_needs[names[call.args[0]]].plain)
        rule_needs[name] = need
        if str(variable.ty.dtype) == "float32":
            names[variable] = name
            needed[name] = Requirement(
                name,
                str(call.op.name),
                int(variable.ty.shape.values[-1]),
                need,
                *matrix_of(call),
                bias=getattr(operands_of(call).get("bias"), "name", ""),
                matmul=MATMUL in need.result,
                stream=STREAM in need.result,
            )
        for index, form in enumerate(need.operands):
            operand = names[call.args[index]]
            needed[operand].readers.append(Reader(name, form, need.stream_for, need.finest))
            _require(needed[operand], form, rule_needs[operand])
    for name in output_names(module):
        needed[name].is_output = True
        _require(needed[name], SCALAR, rule_needs[name])
    for _, call in live_calls(module):
        if value_name(call) in needed:
            sources = [needed[names[argument]] for argument in call.args if argument in names]
            needed[value_name(call)].of_layers = _of_layers(call, sources)
    return needed


def _of_layers(call: relax.Call, sources: list[Requirement]) -> bool:
    if not OPERATORS[call.op.name].ELEMENTWISE:
        return matrix_of(call)[0] == "weights"
    return all(
        source.of_layers and len(source.readers) == 1 and not source.is_output for source in sources
    )


def _require(value: Requirement, form: str, producer: Need) -> None:
    if form == MATMUL or form in FACTORS:
        value.matmul = True
        # Rows of a table have the scale that a reader asks for; what matrix products read is
        # requantised from the stream form.
        value.stream |= bool(producer.plain) and not producer.readable
    elif (
        form == STREAM
        or (form == SCALAR and not (producer.plain and producer.readable))
        or (form == NATIVE and not producer.readable)
    ):
        value.stream = True


def live_calls(module: tvm.IRModule) -> list[tuple[relax.Var, relax.Call]]:
    """Return the canonical calls that an output depends on, in order.

    Parameters
    ----------
    module
        A canonical module.
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
    masks = [
        operands_of(call).get(operand.name)
        for _, call in live_calls(module)
        for operand in OPERATORS[call.op.name].OPERANDS
        if operand.is_mask and OPERATORS[call.op.name].BY_SEQUENCE
    ]
    first = masks[0] if masks else None
    return first if all(mask is not None and mask.same_as(first) for mask in masks) else None


def output_names(module: tvm.IRModule) -> list[str]:
    """Canonical names of the values that ``main`` returns, in order.

    Parameters
    ----------
    module
        A canonical module.

    Raises
    ------
    LoweringError
        If an output is not the result of a canonical operator.
    """
    calls = {variable: value_name(call) for variable, call in canonical_calls(module)}
    return [_resolve(item, calls) for item in output_fields(main_function(module))]


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
