"""What poolings have in common: the tokens of each sequence, and which of them the mask keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..dialect.record import Operand
from ..spec import values
from .checks import check_attribute
from .domain import Domain, Entry, Index, Tensor
from .operator import Operator
from .types import MASK, NARROW


@dataclass(frozen=True)
class ScaledPool(Operator):
    """Base of poolings, [b, C], that divide: what is left of the division are fraction bits.

    Without a mask every token counts. x is packed if `slots` are given; the mask must be given,
    then.

    Parameters
    ----------
    fraction_bits : int
        The result's scale is the input's times 2^-fraction_bits.
    """

    fraction_bits: int = 0

    OPERANDS: ClassVar[tuple[Operand, ...]] = (
        Operand("x", NARROW, "b s C"),
        Operand("mask", MASK, "b s", optional=True, is_mask=True),
        Operand("slots", ("int32",), "b s", optional=True, counted=-1),
    )
    RESULT: ClassVar[str] = "b C"
    dtype = "int32"

    def __post_init__(self) -> None:
        check_attribute(self, "fraction_bits", 0, 15)


class Tokens:
    """The tokens of an operand [batch, seq_len, channels], by sequence, channel and position.

    Parameters
    ----------
    domain
        Of the body.
    x
        [rows, channels], packed if there are slots.
    mask
        [batch, seq_len], 0 at padding; None if every token counts.
    slots
        Rows of x by sequence and position; None if they are in order.

    Attributes
    ----------
    shape : tuple of int
        [batch, channels].
    length : int
        Positions of a sequence.
    """

    def __init__(
        self, domain: Domain, x: Tensor, mask: Tensor | None = None, slots: Tensor | None = None
    ) -> None:
        self.domain, self.x, self.mask, self.slots = domain, x, mask, slots
        self.shape = (domain.batch, x.shape[1])
        self.length = x.shape[0] // domain.batch

    def entry(self, batch: Index, channel: Index, token: Index) -> Entry:
        """One entry; of a token that is not kept, any of x."""
        return self.x[self.domain.row_of_token(self.x, self.slots, batch, token), channel]

    def kept(self, batch: Index, token: Index) -> Any:
        """Whether the mask keeps a token: a condition. There must be a mask."""
        assert self.mask is not None
        return values.not_equal(self.mask[batch, token], 0)

    def indicator(self, batch: Index, token: Index) -> Entry:
        """1 for a token that counts, else 0."""
        return 1 if self.mask is None else values.indicator(self.kept(batch, token))

    def sum(self) -> Tensor:
        """Define the sum of the tokens that count, [batch, channels], int32."""
        return self.domain.sum(
            "token_sum",
            self.shape,
            self.length,
            lambda b, c, s: self.entry(b, c, s) * self.indicator(b, s),
            "int32",
        )

    def count(self) -> Tensor:
        """Define their number, [batch], int32."""
        rows = self.shape[:1]
        if self.mask is None:
            return self.domain.define(
                "count", rows, lambda b: self.domain.tokens(self.length), "int32"
            )
        return self.domain.sum("count", rows, self.length, self.indicator, "int32")
