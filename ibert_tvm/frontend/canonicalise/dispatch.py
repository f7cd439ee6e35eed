"""Rules of operators, and tables of them by what the operands are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from tvm import relax

from .builder import Builder
from .mismatch import Mismatch
from .values import Value


class Rule(Protocol):
    """What an operator makes of its operands."""

    def __call__(self, c: Builder, call: relax.Call, op: str, /, *operands: Any) -> Value:
        """Return a value, or raise Mismatch with the reason.

        Parameters
        ----------
        c
            The function under construction.
        call
            The operator, with its attributes.
        op
            Its name, with its node.
        *operands : Value
            Those that are tensors, or tuples of tensors.
        """


Kinds = type[Value] | tuple[type[Value], ...]
Case = tuple[tuple[Kinds, ...], Rule | str]
"""Classes of operands, and the rule for them, or why there is none."""


def by_kind(*cases: Case, otherwise: str, commutes: bool = False) -> Rule:
    """Return the rule of an operator that depends on the classes of its operands.

    Parameters
    ----------
    *cases
        The first that fits is taken.
    otherwise
        Why there is no rule for others.
    commutes
        Whether operands of the opposite order are exchanged.
    """

    def rule(c: Builder, call: relax.Call, op: str, *operands: Value) -> Value:
        for kinds, apply in cases:
            for given in (operands, operands[::-1]) if commutes else (operands,):
                if len(kinds) == len(given) and all(map(isinstance, given, kinds)):
                    if isinstance(apply, str):
                        raise Mismatch(apply)
                    return apply(c, call, op, *given)
        raise Mismatch(otherwise)

    return rule


Apply = Callable[[Builder, str, Any, Any], Value | None]
"""What an elementwise operator makes of two operands; None where other rules decide."""
