"""Builders of canonical calls, one for each operator: ``build.linear(x, weight, bias, name=...)``.

A frontend or a test emits what these return with a `relax.BlockBuilder`. Operands come in the order
of the record, by position or by name, then attributes by name.
"""

from __future__ import annotations

from typing import Any

from ..dialect.calls import builder
from .operator import OPERATORS


def __getattr__(name: str) -> Any:
    """Builder ``build.NAME`` of the operator of that name."""
    record = OPERATORS.get(f"canonical.{name}")
    if record is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return builder(record)
