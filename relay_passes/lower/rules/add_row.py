"""Lowering of `canonical.add_row`."""

from __future__ import annotations

from tvm import relax

from ... import integer
from ..learned_rows import LowerLearnedRows


class LowerAddRow(LowerLearnedRows):
    """One number per channel added to every token.

    Emits ``integer.add_row``, int32, one bit more than its terms::

        y = add_row(x, r)  →  t = integer.requantise(x, m)
                              y = integer.add_row(t, r_s32)                       # S_y
    """

    op = "canonical.add_row"

    def join(self, x: relax.Var, rows: relax.Var, name: str) -> relax.Call:
        """Add the row to every token."""
        return integer.add_row(x, rows, name=name)

    def magnitude(self, x: int, rows: int) -> int:
        """Of a sum."""
        return x + rows
