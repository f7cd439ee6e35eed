"""What a lowering rule is: a function of a `Node`, registered by `lowers`.

`Need` says which forms of the operands the function reads, so that calibration knows which scales
the table must hold before anything is lowered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from tvm import relax

from ..canonical.operator import CanonicalOperator
from ..dialect.arrays import Integers, Reals
from ..dialect.calls import builder
from ..integer.operator import OPERATORS
from ..quantization_table import ActivationQuant
from ..spec.presets import Preset
from .context import LoweringContext
from .forms import Form
from .value import IntegerValue

MATMUL = "matmul"
FACTOR = "factor"
FACTOR_BY_CHANNEL = "factor by channel"
STREAM = "stream"
SCALAR = "scalar"
TERM = "term"
NATIVE = "native"
"""Forms an operand is read in: 8 bits for the product with a matrix of weights, which take a zero
point and scales by channel; 8 bits for a product of two activations, without a zero point, with one
scale or with scales by channel; the stream form; any form with one scale; at the scale of the
reader's own stream form; whatever the producer yields."""
FACTORS = (FACTOR, FACTOR_BY_CHANNEL)


@dataclass(frozen=True)
class Need:
    """How a rule reads its operands and which scales it needs for its own result.

    Parameters
    ----------
    operands
        Per leading operand that is an activation, one of the forms above.
    result
        Sections of the table (``matmul``, ``stream``) that must hold the result's name whoever
        reads it.
    plain
        Whether the native form surely has one scale and no zero point; None if it has when the
        first operand's has.
    readable
        Whether every rule that takes any form can take the native one. If not, a reader may fall
        back to the stream form, which then needs a scale.
    given
        Whether the integers of the result come from the caller, with one scale.
    one_sided
        Whether the result lies on one side of 0, or nearly: a sign wastes half of 8 bits.
    short
        Whether a sum of 15 bits is worth more than a wide one: it is then taken in 16-bit
        arithmetic.
    averages
        Whether the result is a mean of tokens of the operand that it reads by channel, with as many
        channels: a constant that is taken off that is missing in the result, and nothing else.
    stream_for
        The stream form that suits the rule best as operand, from the largest magnitude; taken where
        nothing else reads the value.
    finest
        The smallest scale that is served: of the operand, or the product of those of two operands
        read as `FACTOR`; from the largest magnitude of the bias that is added to their products.
    """

    operands: tuple[str, ...] = ()
    result: tuple[str, ...] = ()
    plain: bool | None = False
    readable: bool = True
    given: bool = False
    one_sided: bool = False
    short: bool = False
    averages: bool = False
    stream_for: Callable[[float], ActivationQuant] | None = None
    finest: Callable[[float], float] | None = None

    @property
    def sums(self) -> bool:
        """Whether operands come at the scale of the result."""
        return TERM in self.operands


PLAIN = Need(operands=(SCALAR,), plain=True)
"""Any form with one scale is read, and one with one scale comes out."""

_Operator_co = TypeVar("_Operator_co", bound=CanonicalOperator, covariant=True)
Lowered: TypeAlias = IntegerValue | relax.Var
"""An activation, or a variable for ids, masks and weights, which stay what they are."""
NeedOf: TypeAlias = Callable[[Preset, relax.Call | None], Need]
"""A need that depends on the preset or on the call; None stands for one with usual attributes."""


@dataclass(frozen=True)
class Node(Generic[_Operator_co]):
    """A canonical call while it is lowered.

    Parameters
    ----------
    operator : CanonicalOperator
        Its record, with the attributes.
    call
        The call.
    operands : sequence of IntegerValue or relax.Var
        Its operands, lowered.
    context
        Table, weights and builder.
    """

    operator: _Operator_co
    call: relax.Call
    operands: Sequence[Lowered]
    context: LoweringContext

    @property
    def name(self) -> str:
        """Canonical name of the result."""
        return self.operator.name

    @property
    def preset(self) -> Preset:
        """Forms of the non-linear functions."""
        return self.context.preset

    @property
    def x(self) -> IntegerValue:
        """The first operand."""
        return activation(self.operands[0])

    def entry(self, section: str) -> ActivationQuant:
        """Entry of the result in a section of the table."""
        return self.context.table_entry(section, self.name)

    def weight(self, position: int) -> NDArray[np.floating]:
        """Float weight that is an operand."""
        return self.context.weight(self.call.args[position], self.name)

    def in_place_of(self, position: int, array: Integers) -> relax.Var:
        """Parameter with the integers of a weight, under the weight's name."""
        return self.context.parameter(str(self.call.args[position].name), array)

    def parameter(self, label: str, array: Integers) -> relax.Var:
        """Parameter of this call alone."""
        return self.context.parameter(f"{self.name}.{label}", array)

    def emit(self, *operands: object, **attributes: object) -> relax.Var:
        """Emit the integer operator of the same name.

        Parameters
        ----------
        *operands
            As its builder takes them.
        **attributes
            Beside those that both operators have, or in their place.
        """
        record = OPERATORS[self.operator.OP.replace("canonical.", "integer.", 1)]
        own = {field.name for field in fields(self.operator)}
        shared = own & {field.name for field in fields(record)}
        same = {name: getattr(self.operator, name) for name in shared}
        return self.context.emit(builder(record)(*operands, **same | attributes))

    def result(
        self, var: relax.Var, scale: Reals, magnitude: int, zero_point: int = 0
    ) -> IntegerValue:
        """Return the result in this native form, readable by all; see `Form`."""
        return self.value(Form(var, self.name, scale, zero_point, magnitude))

    def value(self, form: Form) -> IntegerValue:
        """Return the result in this native form."""
        return IntegerValue(self.context, self.name, form)


Rule: TypeAlias = Callable[[Node[Any]], Lowered]
"""Of a node whose operator is one of those that it is registered for."""


@dataclass(frozen=True)
class LoweringRule:
    """How one canonical operator is lowered. Matched on the operator, never on a name.

    Parameters
    ----------
    operator
        What is lowered.
    given_need : Need or callable
        See `need`.
    function : callable
        Emits the integer operators of a node and returns the result: a variable for ids.
        LoweringError where the operator cannot be expressed, RangeError where constants do not fit.
    """

    operator: type[CanonicalOperator]
    given_need: Need | NeedOf
    function: Rule

    def need(self, preset: Preset, call: relax.Call | None = None) -> Need:
        """Return the forms and scales that `lower` will ask for."""
        given = self.given_need
        return given if isinstance(given, Need) else given(preset, call)

    def lower(
        self, call: relax.Call, operands: Sequence[Lowered], context: LoweringContext
    ) -> Lowered:
        """Emit the integer operators of a call."""
        return self.function(Node(self.operator.from_dict(call.attrs), call, operands, context))


_RULES: dict[str, dict[str, LoweringRule]] = {}
"""By preset, "" for all of them, and by operator."""
_Function = TypeVar("_Function", bound=Rule)


def lowers(
    *operators: type[CanonicalOperator], need: Need | NeedOf, preset: str = ""
) -> Callable[[_Function], _Function]:
    """Register a function as the lowering rule of canonical operators.

    Parameters
    ----------
    *operators
        What it lowers.
    need : Need or callable
        What it reads.
    preset
        The only preset that it belongs to, where it replaces the common rule.

    Raises
    ------
    TypeError
        At import, if an operator has such a rule already.
    """

    def register(function: _Function) -> _Function:
        known = _RULES.setdefault(preset, {})
        for operator in operators:
            if operator.OP in known:
                other = known[operator.OP].function.__qualname__
                raise TypeError(f"{operator.OP} is lowered by {other} already")
            known[operator.OP] = LoweringRule(operator, need, function)
        return function

    return register


def activation(operand: Lowered) -> IntegerValue:
    """Return `operand` as the activation it must be in canonical form."""
    if not isinstance(operand, IntegerValue):
        raise TypeError(f"operand {operand} is no activation: check_canonical was not run")
    return operand


def rules_of(preset: str) -> dict[str, LoweringRule]:
    """Rules of a preset, by the full name of the canonical operator.

    Parameters
    ----------
    preset
        "accurate", "paper" or "released"; the last replaces some rules, since its arithmetic
        differs in every requantisation.
    """
    chosen = {**_RULES[""], **_RULES.get(preset, {})}
    return {op: chosen[op] for op in sorted(chosen)}
