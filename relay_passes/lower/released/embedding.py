"""Lowering of `canonical.embedding`, preset ``released``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from ... import integer
from ...errors import LoweringError
from ...spec.presets import Preset
from ..context import LoweringContext
from ..forms import Form
from ..rule import LoweringRule, Need
from ..value import IntegerValue
from .value import ReleasedValue


class LowerReleasedEmbedding(LoweringRule, preset="released"):
    """Row lookup in an int8 table with one scale for all rows.

    The row leaves as it is, and the sum that reads it requantises it as it does every term::

        w = embedding(table, ids)  →  w = integer.embedding(ids, table_s8, 1)
    """

    op = "canonical.embedding"

    def need(self, preset: Preset) -> Need:
        """Ids are no activation; the table has one scale."""
        return Need(plain=True)

    def lower(
        self,
        call: relax.Call,
        operands: Sequence[IntegerValue | relax.Var],
        context: LoweringContext,
    ) -> IntegerValue:
        name = str(call.attrs["name"])
        rows = context.table_weight("embeddings", name)
        if not np.all(rows.scale == rows.scale[0]):
            raise LoweringError(
                "the rows of an embedding have different scales",
                where=name,
                why="the released code has one scale for a table",
                todo="give all rows one scale",
            )
        out = context.emit(
            integer.embedding(
                operands[1],
                context.parameter(call.args[0].name, rows.values),
                context.parameter("released.one", np.array([1], np.int32)),
                name=name,
                shift=0,
            )
        )
        magnitude = int(np.abs(rows.values.astype(np.int64)).max(initial=1))
        return ReleasedValue(context, name, Form(out, name, rows.scale[:1], 0, magnitude))
