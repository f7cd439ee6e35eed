"""Attributes of the `integer.*` operators: one frozen dataclass per operator.

An attribute is an int or a string, never a float: the integer module holds no float at all. The
constants of an approximation (a dataclass of `relay_passes.spec`) are flattened with a prefix, so
that the DictAttrs of a call stay flat and survive JSON unchanged. Every class converts both ways:
``LinearAttrs(...).to_attrs()`` and ``LinearAttrs.from_call(call)``.
"""

from .arithmetic import (
    GELU_FORMS,
    AddAttrs,
    AddShortAttrs,
    GeluAttrs,
    LinearAttrs,
    ReluAttrs,
    RequantiseAttrs,
    RequantiseEvenAttrs,
    RequantiseShortAttrs,
    TanhAttrs,
)
from .attention import (
    SOFTMAX_MODES,
    AttentionAttrs,
    SplitChannelsAttrs,
)
from .base import (
    SHORT_DTYPES,
    STORAGE_DTYPES,
    OpAttrs,
    dtype_bounds,
)
from .norms import (
    LayerNormAttrs,
    ReleasedLayerNormAttrs,
    ShortLayerNormAttrs,
)
from .tokens import (
    POSITION_KINDS,
    AddPositionsAttrs,
    EmbeddingAttrs,
    MaskTokensAttrs,
    MeanPoolAttrs,
    PackTokensAttrs,
    PatchesAttrs,
    PositionIdsAttrs,
    PrependTokensAttrs,
    SelectTokenAttrs,
    SlotStartsAttrs,
    SlotTokensAttrs,
    TokenSlotsAttrs,
)

__all__ = [
    "GELU_FORMS",
    "POSITION_KINDS",
    "SHORT_DTYPES",
    "SOFTMAX_MODES",
    "STORAGE_DTYPES",
    "AddAttrs",
    "AddPositionsAttrs",
    "AddShortAttrs",
    "AttentionAttrs",
    "EmbeddingAttrs",
    "GeluAttrs",
    "LayerNormAttrs",
    "LinearAttrs",
    "MaskTokensAttrs",
    "MeanPoolAttrs",
    "OpAttrs",
    "PackTokensAttrs",
    "PatchesAttrs",
    "PositionIdsAttrs",
    "PrependTokensAttrs",
    "ReleasedLayerNormAttrs",
    "ReluAttrs",
    "RequantiseAttrs",
    "RequantiseEvenAttrs",
    "RequantiseShortAttrs",
    "SelectTokenAttrs",
    "ShortLayerNormAttrs",
    "SlotStartsAttrs",
    "SlotTokensAttrs",
    "SplitChannelsAttrs",
    "TanhAttrs",
    "TokenSlotsAttrs",
    "dtype_bounds",
]
