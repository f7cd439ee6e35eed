"""`integer.slot_starts`: where the sequences of a batch without padding begin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...dialect.record import Operand
from ..operator import Serial
from ..traits import Traits
from ..types import Dim, TensorType

_SCRIPT = """
@T.prim_func(s_tir=True)
def main(slots: T.Buffer(({batch}, {seq_len}), "int32"),
         starts: T.Buffer(({batch} + 1,), "int32")):
    T.func_attr({{"tirx.noalias": True}})
    with T.sblock("root"):
        with T.sblock("starts"):
            T.reads(slots[0:{batch}, 0:{seq_len}])
            T.writes(starts[0:{batch} + 1])
            count = T.sblock_alloc_buffer((1,), "int32")
            count[0] = 0
            for b in range({batch}):
                starts[b] = count[0]
                for s in range({seq_len}):
                    count[0] = count[0] + T.Select(slots[b, s] >= 0, 1, 0)
            starts[{batch}] = count[0]
"""


@dataclass(frozen=True)
class SlotStarts(Serial):
    """First row of each sequence in packed values, and last the number of rows in use."""

    OP = "integer.slot_starts"
    OPERANDS = (Operand("slots", ("int32",), "b s", counted=-1),)
    TRAITS = Traits(takes_epilogue=False, serial=True, counts_rows=True)

    def result_shape(self, dims: Mapping[str, Any]) -> tuple[Dim, ...]:
        """[b + 1]."""
        return (dims["b"] + 1,)

    def evaluate(self, **operands: np.ndarray) -> np.ndarray:
        """Count the kept tokens of each sequence."""
        return np.concatenate([[0], np.cumsum((operands["slots"] >= 0).sum(axis=1))])

    def script(self, types: Mapping[str, TensorType]) -> str:
        """See the base."""
        batch, seq_len = types["slots"].shape
        return _SCRIPT.format(batch=batch, seq_len=seq_len)
