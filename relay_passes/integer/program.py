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
    operator
        What it computes.
    operands
        The values that it reads, by name of the operand: each is an input, a parameter or the name
        of an earlier step.
    type
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
    inputs
        What a caller passes (ids, mask).
    parameters
        Integer constants of the model.
    steps
        In order of execution.
    outputs
        Names of the values that it returns.
    """

    inputs: Mapping[str, TensorType]
    parameters: Mapping[str, TensorType]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]
