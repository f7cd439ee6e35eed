"""The integer dialect: operators whose meaning is the integer specification.

Each operator is a record, one class in `ibert_tvm.relay_passes.integer.operators`: operands,
attributes, type rule, meaning and traits. `evaluate` runs a program with NumPy and `ranges` proves
widths. ``integer.linear(x, w, b, name=...)`` builds a Relax call of `Linear`: operands in the order
of the record, by position or by name, then its attributes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from . import operators
from .operator import OPERATORS, Operator

if TYPE_CHECKING:
    from tvm import relax

__all__ = ["OPERATORS", "Operator", "builder", "operators"]


def builder(record: type[Operator]) -> Callable[..., relax.Call]:
    """Builder of an operator's calls.

    Parameters
    ----------
    record : type of Operator
        Its record.

    Returns
    -------
    callable
        ``build(*operands, *attributes, **by_name) -> relax.Call``, both in the order of the record;
        None leaves an optional operand out.
    """
    known = [operand.name for operand in record.OPERANDS]
    attributes = [field.name for field in fields(record) if field.name != "name"]

    def build(*given: Any, **by_name: Any) -> relax.Call:
        from .relax_ops import RelaxExpr, call_operator

        count = next(
            (i for i, x in enumerate(given) if x is not None and not isinstance(x, RelaxExpr)),
            len(given),
        )
        if count > len(known) or len(given) - count > len(attributes):
            raise TypeError(
                f"{record.OP} takes {', '.join(known)}, then {', '.join(attributes) or 'no more'}, "
                f"and got {count} operands and {len(given) - count} attributes by position"
            )
        values = dict(zip(known, given[:count], strict=False))
        values |= dict(zip(attributes, given[count:], strict=False)) | by_name
        operands = {name: values.pop(name) for name in known if name in values}
        return call_operator(record(**values), operands)

    build.__doc__ = record.__doc__
    return build


def __getattr__(name: str) -> Any:
    """Builder ``integer.NAME`` of the operator of that name."""
    record = OPERATORS.get(f"integer.{name}")
    if record is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return builder(record)
