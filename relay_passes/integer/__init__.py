"""The integer dialect: operators whose meaning is the integer specification.

Each operator is a record, one class in `ibert_tvm.relay_passes.integer.operators`: operands,
attributes, type rule, meaning and traits. `evaluate` runs a program with NumPy and `ranges` proves
widths. ``integer.linear(x, w, b, name=...)`` builds a Relax call of `Linear`: operands in the order
of the record, by position or by name, then its attributes.
"""

from __future__ import annotations

from typing import Any

from . import operators
from .operator import OPERATORS, Operator

__all__ = ["OPERATORS", "Operator", "operators"]


def __getattr__(name: str) -> Any:
    """Builder ``integer.NAME`` of the operator of that name."""
    record = OPERATORS.get(f"integer.{name}")
    if record is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ..dialect.calls import builder

    return builder(record)
