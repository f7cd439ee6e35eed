"""`canonical.position_ids`: positions of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...dialect.record import Operand
from ...dialect.types import TensorType
from ..operator import CANONICAL, INDEX, CanonicalOperator

POSITION_KINDS = ("absolute", "roberta")


@dataclass(frozen=True)
class PositionIds(CanonicalOperator):
    """Positions of `input_ids`.

    Parameters
    ----------
    kind : {"absolute", "roberta"}
        "absolute": offset, offset + 1, ... in every row. "roberta":
        cumsum(id != padding_index) * (id != padding_index) + padding_index.
    offset : int
        First position, kind "absolute" only.
    padding_index : int
        Id of the padding token, kind "roberta" only.
    """

    kind: str = "absolute"
    offset: int = 0
    padding_index: int = 0

    OP = "canonical.position_ids"
    OPERANDS = (Operand("input_ids", INDEX, "b s"),)
    RESULT = "b s"

    def __post_init__(self) -> None:
        CANONICAL.choose("kind", self.kind, POSITION_KINDS, self.where)

    def result_dtype(self, types: Mapping[str, TensorType]) -> str:
        """int64."""
        return INDEX[0]

    def evaluate(self, input_ids: NDArray[Any]) -> NDArray[Any]:
        if self.kind == "absolute":
            return np.broadcast_to(self.offset + np.arange(input_ids.shape[1]), input_ids.shape)
        is_token = input_ids != self.padding_index
        return np.cumsum(is_token, axis=1) * is_token + self.padding_index
