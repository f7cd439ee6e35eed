"""What depends on the places of tokens: their numbers, rotary embeddings, distances."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ...dialect.heads import distance_problems, heads_problems
from ...dialect.record import Dims, Operand
from ...dialect.rules import PositionIdsRule, RotateRule
from ...spec import rotation
from ...spec.distance_term import FRACTION_BITS
from ...spec.short_requantise import requantise_short
from ...spec.values import indicator, not_equal, select, shift_right_round, short
from ..checks import check_attribute, check_requantisation
from ..domain import Domain, Entry, Index, T
from ..operator import Operator, Traits, per_channel
from ..types import INDEX, LARGEST_INDEX, Dim, TensorType, static


class PositionIds(PositionIdsRule, Operator):
    """Positions of the tokens, as `canonical.position_ids` has them."""

    OPERANDS = (Operand("input_ids", INDEX, "b s"),)
    RESULT = "b s"
    dtype = "int32"
    TRAITS = Traits(takes_epilogue=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_attribute(self, "offset", 0, LARGEST_INDEX)
        check_attribute(self, "padding_index", 0, LARGEST_INDEX)

    @property
    def needs_no_operand(self) -> bool:
        """Absolute positions do not depend on the tokens."""
        return self.kind == "absolute"

    def fixed_ids(self) -> int:
        """Positions count from the padding's id."""
        return 0 if self.kind == "absolute" else self.padding_index + 1

    def longest_sequence(self, rows: int) -> int:
        """Longest sequence whose positions are rows of a table."""
        return rows - (self.offset if self.kind == "absolute" else self.padding_index + 1)

    def body(self, domain: Domain[T], **operands: T) -> T:
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


class Rotate(RotateRule, Operator):
    """Turn pairs of channels of every head by the angles of a token's place, [b, s, H D].

    Of the first R channels of a head, channel i and channel i + R/2 are turned by angle i; the
    others stay. Row p of the table has R/2 cosines, then as many sines, in Q15. Products keep
    `raised` fraction bits; their sum is requantised in 16-bit arithmetic.

    Parameters
    ----------
    raised
        Fraction bits that x gets, 0..7: as many as leave it within 16 bits.
    shift, low, high, dtype, zero_point
        Requantisation, as of `RequantiseShort`.
    """

    raised: int
    shift: int
    low: int
    high: int
    dtype: str
    zero_point: int = 0

    # tokens: the token in each row, where values per token are packed.
    OPERANDS = (
        Operand("x", ("int8", "int16"), "b s C"),
        Operand("table", ("int16",), "P R"),
        Operand("multiplier", ("int16",), "1|C"),
        Operand("tokens", ("int32",), "b s", optional=True, by_token=True, counted=0),
    )
    RESULT = "b s C"
    TRAITS = Traits(takes_epilogue=False, per_token=True, reads_views=("x",), offsets=True)

    def __post_init__(self) -> None:
        check_requantisation(self, short=True)
        check_attribute(self, "raised", 0, rotation.FRACTION_BITS)

    def needs_places(self, operands: Collection[str]) -> bool:
        """Angles are a matter of places."""
        return True

    def sequence_limit(self, types: Mapping[str, TensorType]) -> int | None:
        """As many tokens as the table has rows."""
        return static(types["table"].shape)[0]

    def body(self, domain: Domain[T], **operands: T) -> T:
        x, table, multiplier = (operands[name] for name in ("x", "table", "multiplier"))
        rows, channels = x.shape
        width, angles = channels // self.num_heads, table.shape[1] // 2
        length, tokens = rows // domain.batch, operands.get("tokens")

        def place(row: Index) -> Index:
            if tokens is None:
                return row % length
            return domain.index(tokens[row // length, row % length]) % length

        def entry(row: Index, channel: Index) -> Entry:
            head, within = channel // width, channel % width
            part, angle = within // angles, within % angles
            # Of channels that are not turned too this is a place that exists.
            partner = head * width + (part + 1) % 2 * angles + angle
            cosine = table[place(row), angle]
            sine = short(table[place(row), angles + angle])
            sine = select(domain.condition(part < 1), -sine, sine)
            value = rotation.rotate(x[row, channel], x[row, partner], cosine, sine, self.raised)
            if 2 * angles < width:
                kept = rotation.unturned(x[row, channel], self.raised)
                value = select(domain.condition(part < 2), value, kept)
            factor = per_channel(multiplier, channel)
            return requantise_short(
                value, factor, 0, self.shift, self.zero_point, self.low, self.high
            )

        return domain.define("rotated", x.shape, entry, self.dtype)


class DistanceProducts(Operator):
    """Products of the heads of each token with the vectors of its distances, [b, s, H, s].

    Entry [i, h, j] is head h of token i times the vector for the distance d = j - i, which is
    column d + P - 1 of the table, P positions::

        y[i, h, j] = round(sum_c x[i, h D + c] table[h D + c, j - i + P - 1] / 2^shift)

    It is what attention takes as `query_term` of queries, and as `key_term` of keys.

    Parameters
    ----------
    num_heads
        H; the channels are H * D.
    shift
        Fraction bits that the table has beyond the unit of the result, 0..7.
    """

    num_heads: int
    shift: int

    OPERANDS = (Operand("x", ("int8",), "b s C"), Operand("table", ("int16",), "C D"))
    TRAITS = Traits(takes_epilogue=False, reads_views=("x",))
    dtype = "int32"

    def __post_init__(self) -> None:
        check_attribute(self, "shift", 0, FRACTION_BITS)

    def check_dims(self, dims: Dims) -> None:
        """Heads divide the channels, and the table has every distance of the sequence."""
        for problem in (
            *heads_problems(self.num_heads, dims["C"]),
            *distance_problems(dims["D"], dims["s"]),
        ):
            raise self.refused(*problem)

    def result_shape(self, dims: Dims) -> tuple[Dim, ...]:
        """[b, s, H, s]."""
        return (dims["b"], dims["s"], self.num_heads, dims["s"])

    def sequence_limit(self, types: Mapping[str, TensorType]) -> int | None:
        """As many tokens as the table has positions."""
        return (static(types["table"].shape)[1] + 1) // 2

    def multiply_accumulates(self, types: Mapping[str, TensorType]) -> int:
        """A product for each channel and other token."""
        batch, length, channels = static(types["x"].shape)
        return batch * length * length * channels

    def body(self, domain: Domain[T], **operands: T) -> T:
        products = domain.distance_products(operands["x"], operands["table"], self.num_heads)

        def entry(b: Index, i: Index, h: Index, j: Index) -> Entry:
            return shift_right_round(products[b, i, h, j], self.shift)

        return domain.define("term", products.shape, entry, "int32")
