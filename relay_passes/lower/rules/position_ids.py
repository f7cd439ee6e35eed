"""Lowering of `canonical.position_ids`."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax

from ... import integer
from ...spec.presets import Preset
from ..context import LoweringContext
from ..rule import LoweringRule, Need
from ..value import IntegerValue


class LowerPositionIds(LoweringRule):
    """Positions are integers already: the same operator with an int32 result.

    ``p = position_ids(ids)  →  p = integer.position_ids(ids)``
    """

    op = "canonical.position_ids"

    def need(self, preset: Preset) -> Need:
        """No activation is read or made."""
        return Need()

    def lower(
        self,
        call: relax.Call,
        operands: Sequence[IntegerValue | relax.Var],
        context: LoweringContext,
    ) -> relax.Var:
        return context.emit(
            integer.position_ids(
                operands[0],
                name=str(call.attrs["name"]),
                kind=str(call.attrs["kind"]),
                offset=int(call.attrs["offset"]),
                padding_index=int(call.attrs["padding_index"]),
            )
        )
