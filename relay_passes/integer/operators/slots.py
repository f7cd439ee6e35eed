"""Where the tokens of a batch without padding lie."""

from __future__ import annotations

import re
from collections.abc import Mapping
from textwrap import indent
from typing import ClassVar

import numpy as np

from ...dialect.record import Dims, Operand
from ..domain import Domain, Entry, Index, T
from ..operator import Operator, Serial, Traits
from ..types import MASK, NARROW, Dim, TensorType

_POSITIONS = re.compile(r"(\d{1,9}(,\d{1,9})*)?", re.ASCII)
# TVM's parser looks up the sources of the whole stack for a last decorator with arguments.
_SCRIPT = """
@T.prim_func(s_tir=True)
@T.prim_func
def main({read}: T.Buffer(({batch}, {seq_len}), "{dtype}"),
         {made}: T.Buffer({shape}, "int32")):
    T.func_attr({{"tirx.noalias": True}})
    with T.sblock("root"):
        with T.sblock("{made}"):
            T.reads({read}[0:{batch}, 0:{seq_len}])
            T.writes({made}[{whole}])
{body}
"""


class TokenByToken(Serial, abstract=True):
    """Base of operators that go over a batch [batch, seq_len] token by token.

    Class variables
    ---------------
    MADE
        Name of the result in the script.
    BODY
        The script's statements on it and on the operand, which has its own name.
    """

    MADE: ClassVar[str] = ""
    BODY: ClassVar[str] = ""

    def script(self, types: Mapping[str, TensorType]) -> str:
        ((read, type_),) = types.items()
        shape, (batch, seq_len) = self.result_type(types).shape, type_.shape
        body = self.BODY.format(batch=batch, seq_len=seq_len, operator=self)
        return _SCRIPT.format(
            read=read,
            made=self.MADE,
            batch=batch,
            seq_len=seq_len,
            dtype=type_.dtype,
            shape=shape,
            whole=", ".join(f"0:{extent}" for extent in shape),
            body=indent(body.strip("\n"), " " * 12),
        )


class TokenSlots(TokenByToken):
    """Row of each token in packed values; -1 for one that is masked and at no selected position.

    Parameters
    ----------
    selected
        Positions that are kept whatever the mask says, separated by commas.
    """

    selected: str = ""

    OPERANDS = (Operand("mask", MASK, "b s", is_mask=True),)
    RESULT = "b s"
    LEAST = -1
    MADE = "slots"
    BODY = """
count = T.sblock_alloc_buffer((1,), "int32")
count[0] = 0
for b in range({batch}):
    for s in range({seq_len}):
        if mask[b, s] != 0{operator.or_selected}:
            slots[b, s] = count[0]
            count[0] = count[0] + 1
        else:
            slots[b, s] = -1
"""

    def __post_init__(self) -> None:
        if not _POSITIONS.fullmatch(self.selected):
            raise self.refused(
                f"selected positions {self.selected!r}",
                "they are numbers, separated by commas",
                "give positions counted from 0",
            )

    def check_dims(self, dims: Dims) -> None:
        """Sequences have such tokens; symbolic ones are checked when they are specialised."""
        if isinstance(dims["s"], int) and max(self.numbers, default=0) >= dims["s"]:
            raise self.refused(
                f"token {max(self.numbers)} of sequences of {dims['s']} tokens",
                "tokens are counted from 0",
                "compile for longer sequences",
            )

    @property
    def numbers(self) -> tuple[int, ...]:
        """The positions in `selected`."""
        return tuple(int(position) for position in self.selected.split(",") if position)

    def evaluate(self, **operands: np.ndarray) -> np.ndarray:
        """Count the kept tokens."""
        keep = operands["mask"] != 0
        keep[:, list(self.numbers)] = True
        return np.where(keep, np.cumsum(keep).reshape(keep.shape) - 1, -1)

    @property
    def or_selected(self) -> str:
        """The condition, in a script, that a token is at a selected position."""
        return "".join(f" or s == {position}" for position in self.numbers)


class SlotStarts(TokenByToken):
    """First row of each sequence in packed values, and last the number of rows in use."""

    OPERANDS = (Operand("slots", ("int32",), "b s", counted=-1),)
    MADE = "starts"
    BODY = """
count = T.sblock_alloc_buffer((1,), "int32")
count[0] = 0
for b in range({batch}):
    starts[b] = count[0]
    for s in range({seq_len}):
        count[0] = count[0] + T.Select(slots[b, s] >= 0, 1, 0)
starts[{batch}] = count[0]
"""

    def result_shape(self, dims: Dims) -> tuple[Dim, ...]:
        """[b + 1]."""
        return (dims["b"] + 1,)

    def evaluate(self, **operands: np.ndarray) -> np.ndarray:
        """Count the kept tokens of each sequence."""
        return np.concatenate([[0], np.cumsum((operands["slots"] >= 0).sum(axis=1))])


class SlotTokens(TokenByToken):
    """Token (counted over batch and sequence) in each row of packed values; 0 behind the last."""

    OPERANDS = (Operand("slots", ("int32",), "b s", counted=-1),)
    RESULT = "b s"
    MADE = "tokens"
    BODY = """
for b in range({batch}):
    for s in range({seq_len}):
        tokens[b, s] = 0
for b in range({batch}):
    for s in range({seq_len}):
        row = slots[b, s]
        if row >= 0:
            tokens[row // {seq_len}, row % {seq_len}] = b * {seq_len} + s
"""

    def evaluate(self, **operands: np.ndarray) -> np.ndarray:
        """Invert the slots."""
        slots = operands["slots"]
        (kept,) = np.nonzero(slots.reshape(-1) >= 0)
        tokens = np.zeros(slots.size, np.int64)
        tokens[: kept.size] = kept
        return tokens.reshape(slots.shape)


class PackTokens(Operator):
    """Row r gets the number of token ``tokens[r]``, of the same type."""

    OPERANDS = (
        Operand("x", (*NARROW, "int64"), "b s"),
        Operand("tokens", ("int32",), "b s", counted=0),
    )
    RESULT = "b s"
    KEEPS = "x"
    TRAITS = Traits(takes_epilogue=False, gathers=True)

    def body(self, domain: Domain[T], **operands: T) -> T:
        x, tokens = operands["x"], operands["tokens"]
        seq_len = x.shape[1]

        def entry(batch: Index, token: Index) -> Entry:
            source = domain.index(tokens[batch, token])
            return x[source // seq_len, source % seq_len]

        return domain.define("packed", x.shape, entry, x.dtype)
