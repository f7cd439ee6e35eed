"""Lowering of `canonical.add_positions`."""

from __future__ import annotations

from tvm import relax

from ... import integer
from ..learned_rows import LowerLearnedRows


class LowerAddPositions(LowerLearnedRows):
    """One row of a table added to every token of a sequence of static length.

    Emits ``integer.add_positions``, int32, one bit more than its terms::

        y = add_positions(x, t)  →  r = integer.requantise(x, m)
                                    y = integer.add_positions(r, t_s32)              # S_y
    """

    op = "canonical.add_positions"

    def join(self, x: relax.Var, rows: relax.Var, name: str) -> relax.Call:
        """Add the rows to every sequence."""
        return integer.add_positions(x, rows, name=name)

    def magnitude(self, x: int, rows: int) -> int:
        """Of a sum."""
        return x + rows
