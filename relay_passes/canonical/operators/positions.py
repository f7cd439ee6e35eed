"""What depends on the places of tokens: their numbers, and rotary embeddings."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...dialect.arrays import Floats, Ids
from ...dialect.record import Operand
from ...dialect.rules import PositionIdsRule, RotateRule
from ...dialect.types import TensorType, static
from ..operator import FLOAT, INDEX, CanonicalOperator


class PositionIds(PositionIdsRule, CanonicalOperator):
    """Positions of `input_ids`; see `PositionIdsRule`."""

    OPERANDS = (Operand("input_ids", INDEX, "b s"),)
    RESULT = "b s"

    def result_dtype(self, types: Mapping[str, TensorType]) -> str:
        """int64."""
        return INDEX[0]

    def served_by(self, rows: int) -> int:
        """Tokens of the longest sequence that a table of so many rows serves."""
        return rows - (self.padding_index + 1 if self.kind == "roberta" else self.offset)

    def evaluate(self, input_ids: Ids) -> Floats:
        if self.kind == "absolute":
            return np.broadcast_to(self.offset + np.arange(input_ids.shape[1]), input_ids.shape)
        is_token = input_ids != self.padding_index
        return np.cumsum(is_token, axis=1) * is_token + self.padding_index


class Rotate(RotateRule, CanonicalOperator):
    """Turn pairs of channels of every head by the angles of a token's place in its sequence.

    Row p of the table has the cosines, then the sines of R/2 angles. Of the first R channels of a
    head, channel i and channel i + R/2 are turned by angle i; the others stay::

        y[i]       = x[i] cos[p, i]       - x[i + R/2] sin[p, i]
        y[i + R/2] = x[i + R/2] cos[p, i] + x[i] sin[p, i]

    Rows may have any amplitude. A token that is not to be turned has cosines 1 and sines 0.
    """

    OPERANDS = (Operand("x", FLOAT, "b s C"), Operand("table", FLOAT, "P R"))
    RESULT = "b s C"

    def longest(self, types: Mapping[str, TensorType]) -> int | None:
        return static(types["table"].shape)[0]

    def evaluate(self, x: Floats, table: Floats) -> Floats:
        dims = {"s": x.shape[1], "C": x.shape[2], "P": table.shape[0], "R": table.shape[1]}
        self.check_dims(dims)
        rows = table[: x.shape[1], None]
        cosine, sine = rows[..., : dims["R"] // 2], rows[..., dims["R"] // 2 :]
        heads = x.reshape(*x.shape[:2], self.num_heads, -1)
        first, second, rest = np.split(heads, (dims["R"] // 2, dims["R"]), axis=-1)
        turned = (first * cosine - second * sine, second * cosine + first * sine)
        return np.concatenate((*turned, rest), axis=-1).reshape(x.shape)
