"""Lowering rules of the preset ``released``: the arithmetic of the released I-BERT code.

They replace the rules of the operators whose released form differs. What is shared by them:
requantisation by a 31-bit mantissa with an exponent per channel, halves to even (`value`); a value
that a matrix product reads in 8 bits enters additions in those 8 bits too.
"""

from ..rule import LoweringRule
from .add import LowerReleasedAdd
from .attention import LowerReleasedAttention
from .embedding import LowerReleasedEmbedding
from .gelu import LowerReleasedGelu
from .layer_norm import LowerReleasedLayerNorm
from .linear import LowerReleasedLinear

RELEASED_RULES: dict[str, LoweringRule] = {
    rule.op: rule
    for rule in (
        LowerReleasedAdd(),
        LowerReleasedAttention(),
        LowerReleasedEmbedding(),
        LowerReleasedGelu(),
        LowerReleasedLayerNorm(),
        LowerReleasedLinear(),
    )
}

__all__ = ["RELEASED_RULES"]
