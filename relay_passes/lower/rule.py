"""What a lowering rule is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tvm import relax

from ..quantization_table import ActivationQuant
from ..spec.presets import Preset
from .context import LoweringContext
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
    operands : tuple of str
        Per leading operand that is an activation, one of the forms above.
    result : tuple of str
        Sections of the table (``matmul``, ``stream``) that must hold the result's name whoever
        reads it.
    plain : bool or None
        Whether the native form surely has one scale and no zero point; None if it has when the
        first operand's has.
    readable : bool
        Whether every rule that takes any form can take the native one. If not, a reader may fall
        back to the stream form, which then needs a scale.
    given : bool
        Whether the integers of the result come from the caller, with one scale.
    one_sided : bool
        Whether the result lies on one side of 0, or nearly: a sign wastes half of 8 bits.
    short : bool
        Whether a sum of 15 bits is worth more than a wide one: it is then taken in 16-bit
        arithmetic.
    averages : bool
        Whether the result is a mean of tokens of the operand that it reads by channel, with as many
        channels: a constant that is taken off that is missing in the result, and nothing else.
    stream_for : callable, optional
        The stream form that suits the rule best as operand, from the largest magnitude; taken where
        nothing else reads the value.
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

    @property
    def sums(self) -> bool:
        """Whether operands come at the scale of the result."""
        return TERM in self.operands


_RULES: dict[str, dict[str, type[LoweringRule]]] = {}
"""By preset, "" for all of them, and by operator."""


class LoweringRule(ABC):
    """Lowers one canonical operator. Stateless; matched on the operator, never on a name.

    ``class LowerX(LoweringRule, preset="released")`` is the rule of that preset alone.
    """

    op: ClassVar[str] = ""
    """Full name of the canonical operator; "" in a base class."""

    def __init_subclass__(cls, preset: str = "", **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if cls.op:
            _RULES.setdefault(preset, {})[cls.op] = cls

    @abstractmethod
    def need(self, preset: Preset) -> Need:
        """Return the forms and scales that `lower` will ask for."""

    def need_of(self, call: relax.Call, preset: Preset) -> Need:
        """Return `need` for a call whose attributes matter to it."""
        return self.need(preset)

    @abstractmethod
    def lower(
        self,
        call: relax.Call,
        operands: Sequence[IntegerValue | relax.Var],
        context: LoweringContext,
    ) -> IntegerValue | relax.Var:
        """Emit integer operators for `call`.

        Parameters
        ----------
        call : relax.Call
            The canonical call.
        operands : sequence of IntegerValue or relax.Var
            Lowered operands: activations, or variables for ids, masks and (unlowered) weights.
        context : LoweringContext
            Table, weights and builder.

        Returns
        -------
        IntegerValue or relax.Var
            The result; a variable for ids.

        Raises
        ------
        LoweringError
            If the operator cannot be expressed; RangeError if constants do not fit.
        """


def activation(operand: IntegerValue | relax.Var) -> IntegerValue:
    """Return `operand` as the activation it must be in canonical form."""
    if not isinstance(operand, IntegerValue):
        raise TypeError(f"operand {operand} is no activation: check_canonical was not run")
    return operand


def rules_of(preset: str) -> dict[str, LoweringRule]:
    """Rules of a preset, by the full name of the canonical operator.

    Parameters
    ----------
    preset : str
        "accurate", "paper" or "released"; the last replaces some rules, since its arithmetic
        differs in every requantisation.

    Returns
    -------
    dict of str to LoweringRule
    """
    chosen = {**_RULES[""], **_RULES.get(preset, {})}
    return {op: chosen[op]() for op in sorted(chosen)}
