"""`integer.token_slots`: the rows of the tokens of a batch without padding."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...dialect.record import Operand
from ...errors import LoweringError
from ..operator import Serial
from ..types import MASK, TensorType

_POSITIONS = re.compile(r"(\d{1,9}(,\d{1,9})*)?", re.ASCII)
_SCRIPT = """
@T.prim_func(s_tir=True)
def main(mask: T.Buffer(({batch}, {seq_len}), "{dtype}"),
         slots: T.Buffer(({batch}, {seq_len}), "int32")):
    T.func_attr({{"tirx.noalias": True}})
    with T.sblock("root"):
        with T.sblock("slots"):
            T.reads(mask[0:{batch}, 0:{seq_len}])
            T.writes(slots[0:{batch}, 0:{seq_len}])
            count = T.sblock_alloc_buffer((1,), "int32")
            count[0] = 0
            for b in range({batch}):
                for s in range({seq_len}):
                    if mask[b, s] != 0{selected}:
                        slots[b, s] = count[0]
                        count[0] = count[0] + 1
                    else:
                        slots[b, s] = -1
"""


@dataclass(frozen=True)
class TokenSlots(Serial):
    """Row of each token in packed values; -1 for one that is masked and at no selected position.

    Parameters
    ----------
    selected : str
        Positions that are kept whatever the mask says, separated by commas.
    """

    selected: str = ""

    OP = "integer.token_slots"
    OPERANDS = (Operand("mask", MASK, "b s", is_mask=True),)
    RESULT = "b s"
    LEAST = -1

    def __post_init__(self) -> None:
        if not _POSITIONS.fullmatch(self.selected):
            raise LoweringError(
                f"selected positions {self.selected!r}",
                self.name,
                "they are numbers, separated by commas",
                "give positions counted from 0",
            )

    def check_dims(self, dims: Mapping[str, Any]) -> None:
        """Sequences have such tokens; symbolic ones are checked when they are specialised."""
        if isinstance(dims["s"], int) and max(self.positions, default=0) >= dims["s"]:
            raise LoweringError(
                f"token {max(self.positions)} of sequences of {dims['s']} tokens",
                self.where,
                "tokens are counted from 0",
                "compile for longer sequences",
            )

    @property
    def positions(self) -> tuple[int, ...]:
        """The positions in `selected`."""
        return tuple(int(position) for position in self.selected.split(",") if position)

    def evaluate(self, **operands: np.ndarray) -> np.ndarray:
        """Count the kept tokens."""
        keep = operands["mask"] != 0
        keep[:, list(self.positions)] = True
        return np.where(keep, np.cumsum(keep).reshape(keep.shape) - 1, -1)

    def script(self, types: Mapping[str, TensorType]) -> str:
        """See the base."""
        batch, seq_len = types["mask"].shape
        selected = "".join(f" or s == {position}" for position in self.positions)
        return _SCRIPT.format(
            batch=batch, seq_len=seq_len, dtype=types["mask"].dtype, selected=selected
        )
