"""A program of the integer dialect: a plain list of operator calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .operator import Operator
from .types import TensorType


@dataclass(frozen=True)
class Step:
    """One operator call.

    Parameters
    ----------
    operator : Operator
        What it computes.
    operands : mapping of str to str
        The values that it reads, by name of the operand: each is an input, a parameter or the name
        of an earlier step.
    type : TensorType
        Of its result.
    """

    operator: Operator
    operands: Mapping[str, str]
    type: TensorType

    @property
    def name(self) -> str:
        """Canonical name of the value."""
        return self.operator.name


@dataclass(frozen=True)
class Program:
    """A function of the integer dialect.

    Parameters
    ----------
    inputs : mapping of str to TensorType
        What a caller passes (ids, mask).
    parameters : mapping of str to TensorType
        Integer constants of the model.
    steps : tuple of Step
        In order of execution.
    outputs : tuple of str
        Names of the values that it returns.
    """

    inputs: Mapping[str, TensorType]
    parameters: Mapping[str, TensorType]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]
