"""Lowering of `canonical.prepend_tokens`."""

from __future__ import annotations

from tvm import relax

from ... import integer
from ..learned_rows import LowerLearnedRows


class LowerPrependTokens(LowerLearnedRows):
    """Learned tokens before every sequence: class and distillation tokens.

    Emits ``integer.prepend_tokens``, int32::

        y = prepend_tokens(x, t)  →  r = integer.requantise(x, m)
                                     y = integer.prepend_tokens(r, t_s32)            # S_y
    """

    op = "canonical.prepend_tokens"

    def join(self, x: relax.Var, rows: relax.Var, name: str) -> relax.Call:
        """Put the rows before every sequence."""
        return integer.prepend_tokens(x, rows, name=name)

    def magnitude(self, x: int, rows: int) -> int:
        """Of either."""
        return max(x, rows)
