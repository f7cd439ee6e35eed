"""`integer.position_ids`: the positions of tokens."""

from __future__ import annotations

from dataclasses import dataclass

from ...dialect.record import Operand
from ...spec.values import indicator, not_equal, select
from ..checks import check_attribute, choose
from ..domain import Domain, Entry, Index, Tensor
from ..operator import Operator
from ..traits import Traits
from ..types import INDEX, LARGEST_INDEX

POSITION_KINDS = ("absolute", "roberta")


@dataclass(frozen=True)
class PositionIds(Operator):
    """Positions of the tokens, as `canonical.position_ids` has them.

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

    OP = "integer.position_ids"
    OPERANDS = (Operand("input_ids", INDEX, "b s"),)
    RESULT = "b s"
    dtype = "int32"
    TRAITS = Traits(takes_epilogue=False)

    def __post_init__(self) -> None:
        choose("kind", self.kind, POSITION_KINDS, self.name)
        check_attribute(self, "offset", 0, LARGEST_INDEX)
        check_attribute(self, "padding_index", 0, LARGEST_INDEX)

    @property
    def needs_no_operand(self) -> bool:
        """Absolute positions do not depend on the tokens."""
        return self.kind == "absolute"

    def longest_sequence(self, rows: int) -> int:
        """Longest sequence whose positions are rows of a table."""
        return rows - (self.offset if self.kind == "absolute" else self.padding_index + 1)

    def body(self, domain: Domain, **operands: Tensor) -> Tensor:
        ids = operands["input_ids"]
        batch, seq_len = ids.shape
        if self.kind == "absolute":
            return domain.define(
                "positions",
                (batch, seq_len),
                lambda row, column: domain.number(
                    column + self.offset, self.offset, self.offset + seq_len - 1
                ),
                "int32",
            )

        def is_token(row: Index, column: Index) -> Entry:
            return indicator(not_equal(ids[row, column], self.padding_index))

        counted = domain.sum(
            "counted",
            (batch, seq_len),
            seq_len,
            lambda row, column, k: select(domain.condition(k <= column), is_token(row, k), 0),
        )
        return domain.define(
            "positions",
            (batch, seq_len),
            lambda row, column: counted[row, column] * is_token(row, column) + self.padding_index,
            "int32",
        )
