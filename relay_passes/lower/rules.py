"""All lowering rules by the operator they lower. A new operator is one more file and one line.

The preset ``released`` replaces some of them: its arithmetic differs in every requantisation.
"""

from __future__ import annotations

from .add import LowerAdd
from .add_positions import LowerAddPositions
from .attention import LowerAttention
from .embedding import LowerEmbedding
from .gelu import LowerGelu
from .layer_norm import LowerLayerNorm
from .linear import LowerLinear
from .mean_pool import LowerMeanPool
from .patches import LowerPatches
from .position_ids import LowerPositionIds
from .prepend_tokens import LowerPrependTokens
from .released import RELEASED_RULES
from .relu import LowerRelu
from .rule import LoweringRule
from .select_token import LowerSelectToken
from .tanh import LowerTanh

RULES: dict[str, LoweringRule] = {
    rule.op: rule
    for rule in (
        LowerAdd(),
        LowerAddPositions(),
        LowerAttention(),
        LowerEmbedding(),
        LowerGelu(),
        LowerLayerNorm(),
        LowerLinear(),
        LowerMeanPool(),
        LowerPatches(),
        LowerPositionIds(),
        LowerPrependTokens(),
        LowerRelu(),
        LowerSelectToken(),
        LowerTanh(),
    )
}


def rules_of(preset: str) -> dict[str, LoweringRule]:
    """Rules of a preset, by the full name of the canonical operator.

    Parameters
    ----------
    preset : str
        "accurate", "paper" or "released".

    Returns
    -------
    dict of str to LoweringRule
    """
    return {**RULES, **RELEASED_RULES} if preset == "released" else RULES
