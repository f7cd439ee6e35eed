"""What a lowering rule is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tvm import relax

from ..spec.presets import Preset
from .context import LoweringContext
from .value import IntegerValue

MATMUL = "matmul"
STREAM = "stream"
SCALAR = "scalar"
TERM = "term"
NATIVE = "native"
"""Forms an operand is read in: 8 bits for a matrix product; the stream form; any form with one
scale; at the scale of the reader's own stream form; whatever the producer yields."""


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
    """

    operands: tuple[str, ...] = ()
    result: tuple[str, ...] = ()
    plain: bool | None = False
    readable: bool = True


class LoweringRule(ABC):
    """Lowers one canonical operator. Stateless; matched on the operator, never on a name."""

    op: ClassVar[str]
    """Full name of the canonical operator."""

    @abstractmethod
    def need(self, preset: Preset) -> Need:
        """Return the forms and scales that `lower` will ask for."""

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
