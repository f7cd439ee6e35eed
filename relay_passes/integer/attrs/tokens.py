"""Attributes of operators that make, move or choose tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .base import OpAttrs, choose

POSITION_KINDS = ("absolute", "roberta")


@dataclass(frozen=True)
class PositionIdsAttrs(OpAttrs):
    """Attributes of `integer.position_ids` (the same as `canonical.position_ids`).

    Parameters
    ----------
    kind : str
        "absolute": ``offset + 0 .. seq - 1`` in every row. "roberta":
        ``cumsum(id != padding_index) * (id != padding_index) + padding_index``.
    offset, padding_index : int
        See `kind`.
    """

    kind: str = "absolute"
    offset: int = 0
    padding_index: int = 0

    OP: ClassVar[str] = "integer.position_ids"

    def __post_init__(self) -> None:
        choose("kind", self.kind, POSITION_KINDS, self.name)


@dataclass(frozen=True)
class EmbeddingAttrs(OpAttrs):
    """Attributes of `integer.embedding`.

    Parameters
    ----------
    shift : int
        Common right shift of the per-row multipliers, 0..62.
    """

    shift: int = 0

    OP: ClassVar[str] = "integer.embedding"


@dataclass(frozen=True)
class PatchesAttrs(OpAttrs):
    """Attributes of `integer.patches`.

    Parameters
    ----------
    patch_height, patch_width : int
        Size of a patch in pixels.
    """

    patch_height: int
    patch_width: int

    OP: ClassVar[str] = "integer.patches"


@dataclass(frozen=True)
class PrependTokensAttrs(OpAttrs):
    """Attributes of `integer.prepend_tokens`: only the name."""

    OP: ClassVar[str] = "integer.prepend_tokens"


@dataclass(frozen=True)
class AddPositionsAttrs(OpAttrs):
    """Attributes of `integer.add_positions`: only the name."""

    OP: ClassVar[str] = "integer.add_positions"


@dataclass(frozen=True)
class MeanPoolAttrs(OpAttrs):
    """Attributes of `integer.mean_pool`.

    Parameters
    ----------
    fraction_bits : int
        The result's scale is the input's times 2^-fraction_bits.
    """

    fraction_bits: int = 0

    OP: ClassVar[str] = "integer.mean_pool"


@dataclass(frozen=True)
class SelectTokenAttrs(OpAttrs):
    """Attributes of `integer.select_token`.

    Parameters
    ----------
    index : int
        Position in the sequence; not negative.
    """

    index: int = 0

    OP: ClassVar[str] = "integer.select_token"


@dataclass(frozen=True)
class MaskTokensAttrs(OpAttrs):
    """Attributes of `integer.mask_tokens`: only the name."""

    OP: ClassVar[str] = "integer.mask_tokens"


@dataclass(frozen=True)
class TokenSlotsAttrs(OpAttrs):
    """Attributes of `integer.token_slots`.

    Parameters
    ----------
    selected : str
        Positions that are kept whatever the mask says, separated by commas.
    """

    selected: str = ""

    OP: ClassVar[str] = "integer.token_slots"

    @property
    def positions(self) -> tuple[int, ...]:
        """The positions in `selected`."""
        return tuple(int(position) for position in self.selected.split(",") if position)


@dataclass(frozen=True)
class SlotTokensAttrs(OpAttrs):
    """Attributes of `integer.slot_tokens`: only the name."""

    OP: ClassVar[str] = "integer.slot_tokens"


@dataclass(frozen=True)
class SlotStartsAttrs(OpAttrs):
    """Attributes of `integer.slot_starts`: only the name."""

    OP: ClassVar[str] = "integer.slot_starts"


@dataclass(frozen=True)
class PackTokensAttrs(OpAttrs):
    """Attributes of `integer.pack_tokens`: only the name."""

    OP: ClassVar[str] = "integer.pack_tokens"
