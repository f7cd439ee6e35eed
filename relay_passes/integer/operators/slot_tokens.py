"""`integer.slot_tokens`: the token in each row of a batch without padding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ...dialect.record import Operand
from ..operator import Serial
from ..types import TensorType

_SCRIPT = """
@T.prim_func(s_tir=True)
def main(slots: T.Buffer(({batch}, {seq_len}), "int32"),
         tokens: T.Buffer(({batch}, {seq_len}), "int32")):
    T.func_attr({{"tirx.noalias": True}})
    with T.sblock("root"):
        with T.sblock("tokens"):
            T.reads(slots[0:{batch}, 0:{seq_len}])
            T.writes(tokens[0:{batch}, 0:{seq_len}])
            for b in range({batch}):
                for s in range({seq_len}):
                    tokens[b, s] = 0
            for b in range({batch}):
                for s in range({seq_len}):
                    row = slots[b, s]
                    if row >= 0:
                        tokens[row // {seq_len}, row % {seq_len}] = b * {seq_len} + s
"""


@dataclass(frozen=True)
class SlotTokens(Serial):
    """Token (counted over batch and sequence) in each row of packed values; 0 behind the last."""

    OP = "integer.slot_tokens"
    OPERANDS = (Operand("slots", ("int32",), "b s", counted=-1),)
    RESULT = "b s"

    def evaluate(self, **operands: np.ndarray) -> np.ndarray:
        """Invert the slots."""
        slots = operands["slots"]
        (kept,) = np.nonzero(slots.reshape(-1) >= 0)
        tokens = np.zeros(slots.size, np.int64)
        tokens[: kept.size] = kept
        return tokens.reshape(slots.shape)

    def script(self, types: Mapping[str, TensorType]) -> str:
        """See the base."""
        batch, seq_len = types["slots"].shape
        return _SCRIPT.format(batch=batch, seq_len=seq_len)
