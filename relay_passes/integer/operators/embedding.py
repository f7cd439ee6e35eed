"""`integer.embedding`: rows of a table, requantised by their own multipliers."""

from __future__ import annotations

from dataclasses import dataclass

from ...dialect.record import Operand
from ...spec.fixed_point import requantise
from ..checks import check_shift
from ..domain import Domain, Entry, Index, Tensor
from ..operator import Operator, per_channel
from ..traits import Traits
from ..types import INDEX


@dataclass(frozen=True)
class Embedding(Operator):
    """``requantise(table[id], multiplier[id], shift)``.

    Ids are checked where they come in; in compiled code they are clamped, so that no id can read
    outside the table.

    Parameters
    ----------
    shift : int
        Common right shift of the multipliers, 0..62.
    """

    shift: int = 0

    OP = "integer.embedding"
    OPERANDS = (
        Operand("ids", INDEX, "b s", by_token=True),
        Operand("table", ("int8", "int16"), "V C"),
        Operand("multiplier", ("int32",), "1|V"),
    )
    RESULT = "b s C"
    dtype = "int32"
    TRAITS = Traits(elementwise=True, per_token=True, rescales=True, lookup=True)

    def __post_init__(self) -> None:
        check_shift(self)

    def body(self, domain: Domain, **operands: Tensor) -> Tensor:
        ids, table, multiplier = (operands[name] for name in ("ids", "table", "multiplier"))
        (batch, seq_len), (rows, channels) = ids.shape, table.shape

        def entry(token: Index, channel: Index) -> Entry:
            row = domain.lookup(ids[token // seq_len, token % seq_len], rows, ids)
            return requantise(table[row, channel], per_channel(multiplier, row), self.shift)

        return domain.define("embedded", (batch * seq_len, channels), entry, "int32")
