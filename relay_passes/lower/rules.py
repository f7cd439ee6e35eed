"""All lowering rules by the operator they lower. A new operator is one more file and one line."""

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
