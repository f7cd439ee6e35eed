"""`integer.distance_products`: what tokens make of a learned vector for each distance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...dialect.record import Operand
from ...errors import LoweringError
from ...spec.distance_term import FRACTION_BITS
from ...spec.values import shift_right_round
from ..checks import check_attribute
from ..domain import Domain, Entry, Index, Tensor
from ..operator import Operator
from ..traits import Traits
from ..types import Dim, TensorType, static


@dataclass(frozen=True)
class DistanceProducts(Operator):
    """Products of the heads of each token with the vectors of its distances, [b, s, H, s].

    Entry [i, h, j] is head h of token i times the vector for the distance d = j - i, which is
    column d + P - 1 of the table, P positions::

        y[i, h, j] = round(sum_c x[i, h D + c] table[h D + c, j - i + P - 1] / 2^shift)

    It is what attention takes as `query_term` of queries, and as `key_term` of keys.

    Parameters
    ----------
    num_heads : int
        H; the channels are H * D.
    shift : int
        Fraction bits that the table has beyond the unit of the result, 0..7.
    """

    num_heads: int
    shift: int

    OP = "integer.distance_products"
    OPERANDS = (
        Operand("x", ("int8",), "b s C"),
        Operand("table", ("int16",), "C D"),
    )
    TRAITS = Traits(takes_epilogue=False, reads_views=("x",))
    dtype = "int32"

    def __post_init__(self) -> None:
        check_attribute(self, "shift", 0, FRACTION_BITS)

    def check_dims(self, dims: Mapping[str, Any]) -> None:
        """Heads divide the channels, and the table has every distance of the sequence."""
        channels, distances, length = dims["C"], dims["D"], dims["s"]
        if self.num_heads < 1 or channels % self.num_heads:
            raise LoweringError(
                f"{self.num_heads} heads do not divide {channels} channels",
                self.where,
                "every head has the same number of channels",
                "set num_heads as the source model does",
            )
        short = isinstance(length, int) and length > (distances + 1) // 2
        if not distances % 2 or short:
            raise LoweringError(
                f"vectors for {distances} distances and sequences of {length} tokens",
                self.where,
                "there is one for each distance from 1 - positions to positions - 1",
                "give vectors for sequences as long as the model takes",
            )

    def result_shape(self, dims: Mapping[str, Any]) -> tuple[Dim, ...]:
        """[b, s, H, s]."""
        return (dims["b"], dims["s"], self.num_heads, dims["s"])

    def sequence_limit(self, types: Mapping[str, TensorType]) -> int | None:
        """As many tokens as the table has positions."""
        return (static(types["table"].shape)[1] + 1) // 2

    def multiply_accumulates(self, types: Mapping[str, TensorType]) -> int:
        """A product for each channel and other token."""
        batch, length, channels = static(types["x"].shape)
        return batch * length * length * channels

    def body(self, domain: Domain, **operands: Tensor) -> Tensor:
        products = domain.distance_products(operands["x"], operands["table"], self.num_heads)

        def entry(b: Index, i: Index, h: Index, j: Index) -> Entry:
            return shift_right_round(products[b, i, h, j], self.shift)

        return domain.define("term", products.shape, entry, "int32")
