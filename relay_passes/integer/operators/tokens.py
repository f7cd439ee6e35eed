"""Tokens: looked up, masked, prepended, cut out and moved."""

from __future__ import annotations

from typing import ClassVar

from ...dialect.record import Dims, Operand
from ...dialect.rules import PrependTokensRule, SliceTokensRule, UnfoldTokensRule
from ...spec.fixed_point import requantise
from ...spec.values import not_equal, select
from ..borders import Axis, filled
from ..checks import check_attribute, check_half_bytes, check_shift
from ..domain import Domain, Entry, Index, T, half_byte
from ..operator import Operator, Traits, per_channel
from ..types import INDEX, LARGEST_INDEX, MASK, NARROW, Dim


class Embedding(Operator):
    """``requantise(table[id], multiplier[id], shift)``.

    Ids are checked where they come in; in compiled code they are clamped, so that no id can read
    outside the table.

    Parameters
    ----------
    shift
        Common right shift of the multipliers, 0..62.
    """

    shift: int = 0

    OPERANDS: ClassVar[tuple[Operand, ...]] = (
        Operand("ids", INDEX, "b s", by_token=True),
        Operand("table", ("int8", "int16"), "V C", rows_of="ids"),
        Operand("multiplier", ("int32",), "1|V", rows_of="ids"),
    )
    RESULT = "b s C"
    dtype = "int32"
    TRAITS = Traits(elementwise=True, per_token=True, rescales=True)

    def __post_init__(self) -> None:
        check_shift(self)

    def body(self, domain: Domain[T], **operands: T) -> T:
        ids, table, multiplier = (operands[name] for name in ("ids", "table", "multiplier"))
        (batch, seq_len), (rows, channels) = ids.shape, table.shape

        def entry(token: Index, channel: Index) -> Entry:
            row = domain.lookup(ids[token // seq_len, token % seq_len], rows, ids)
            return requantise(table[row, channel], per_channel(multiplier, row), self.shift)

        return domain.define("embedded", (batch * seq_len, channels), entry, "int32")


class NibbleEmbedding(Embedding):
    """``requantise(entry[id], multiplier, shift)``, of a table in half bytes.

    What an entry is, and how a table is packed, says `ibert_tvm.relay_passes.spec.nibbles`.

    Parameters
    ----------
    channels
        Entries of a row.
    """

    channels: int = 0

    OPERANDS: ClassVar[tuple[Operand, ...]] = (
        Operand("ids", INDEX, "b s", by_token=True),
        Operand("table", ("uint8",), "V B", rows_of="ids"),
        Operand("scales", ("uint8",), "V G", rows_of="ids"),
        Operand("rows", ("uint8",), "V", rows_of="ids"),
        Operand("multiplier", ("int32",), "1"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_attribute(self, "channels", 1, LARGEST_INDEX)

    def check_dims(self, dims: Dims) -> None:
        """The bytes of a row are those of its channels."""
        check_half_bytes(self, dims, self.channels)

    def result_shape(self, dims: Dims) -> tuple[Dim, ...]:
        """[b, s, channels]."""
        return (dims["b"], dims["s"], self.channels)

    def body(self, domain: Domain[T], **operands: T) -> T:
        ids, table, scales = (operands[name] for name in ("ids", "table", "scales"))
        (batch, seq_len), rows = ids.shape, operands["rows"]
        multiplier = operands["multiplier"]

        def entry(token: Index, channel: Index) -> Entry:
            row = domain.lookup(ids[token // seq_len, token % seq_len], rows.shape[0], ids)
            value = half_byte(domain, table, scales, row, channel) * rows[row]
            return requantise(value, multiplier[0], self.shift)

        return domain.define("embedded", (batch * seq_len, self.channels), entry, "int32")


class MaskTokens(Operator):
    """x where the mask is not 0, else 0; x is packed if `slots` are given, the result is not."""

    OPERANDS = (
        Operand("x", ("uint8", *NARROW), "b s C"),
        Operand("mask", MASK, "b s", is_mask=True),
        Operand("slots", ("int32",), "b s", optional=True, counted=-1),
    )
    RESULT = "b s C"
    KEEPS = "x"
    TRAITS = Traits(takes_epilogue=False)

    def body(self, domain: Domain[T], **operands: T) -> T:
        x, mask, slots = operands["x"], operands["mask"], operands.get("slots")
        seq_len = mask.shape[1]

        def entry(row: Index, channel: Index) -> Entry:
            batch, token = row // seq_len, row % seq_len
            found = x[domain.row_of_token(x, slots, batch, token), channel]
            return select(not_equal(mask[batch, token], 0), found, 0)

        return domain.define("masked", x.shape, entry, x.dtype)


class PrependTokens(PrependTokensRule, Operator):
    """The rows `tokens`, then those of x; both at one scale."""

    OPERANDS = (Operand("x", NARROW, "b s C"), Operand("tokens", ("int32",), "N C"))
    dtype = "int32"

    def body(self, domain: Domain[T], **operands: T) -> T:
        x, tokens = operands["x"], operands["tokens"]
        count, channels = tokens.shape
        old = x.shape[0] // domain.batch
        new = old + count

        def entry(row: Index, channel: Index) -> Entry:
            batch, token = row // new, row % new
            return domain.choose(
                token < count,
                tokens[domain.at_most(token, count - 1), channel],
                x[batch * old + domain.at_least(token - count, 0), channel],
            )

        return domain.define("tokens", (domain.batch * new, channels), entry, "int32")


class ShiftTokens(Operator):
    """``y[s] = x[s + distance]``, 0 where the sequence has no such token; padding counts as one.

    Parameters
    ----------
    distance
        Positive: the token behind.
    """

    distance: int

    OPERANDS = (Operand("x", NARROW, "b s C"),)
    RESULT = "b s C"
    KEEPS = "x"

    def __post_init__(self) -> None:
        check_attribute(self, "distance", -LARGEST_INDEX, LARGEST_INDEX)

    def body(self, domain: Domain[T], **operands: T) -> T:
        x = operands["x"]
        length = x.shape[0] // domain.batch

        def entry(row: Index, channel: Index) -> Entry:
            batch, token = row // length, row % length
            if self.distance < 0:
                place = domain.at_least(token + self.distance, 0)
                inside = token >= -self.distance
            else:
                place = domain.at_most(token + self.distance, length - 1)
                inside = token < length - self.distance
            found = x[batch * length + place, channel]
            return select(domain.condition(inside), found, 0)

        return domain.define("shifted", x.shape, entry, x.dtype)


class SliceTokens(SliceTokensRule, Operator):
    """Tokens `first` to ``first + count - 1`` of x."""

    OPERANDS = (Operand("x", NARROW, "b s C"),)
    KEEPS = "x"

    def __post_init__(self) -> None:
        check_attribute(self, "first", 0, LARGEST_INDEX)
        check_attribute(self, "count", 1, LARGEST_INDEX)

    def body(self, domain: Domain[T], **operands: T) -> T:
        x = operands["x"]
        length = x.shape[0] // domain.batch

        def entry(row: Index, channel: Index) -> Entry:
            batch, token = row // self.count, row % self.count
            return x[batch * length + token + self.first, channel]

        return domain.define("kept", (domain.batch * self.count, x.shape[1]), entry, x.dtype)


class UnfoldTokens(UnfoldTokensRule, Operator):
    """``y[t, k C + c] = x[t stride + k - before, c]``, 0 outside; padding counts as a token."""

    OPERANDS = (Operand("x", NARROW, "b s C"),)
    KEEPS = "x"

    def __post_init__(self) -> None:
        check_attribute(self, "width", 1, LARGEST_INDEX)
        check_attribute(self, "stride", 1, LARGEST_INDEX)
        check_attribute(self, "before", 0, self.width - 1)
        check_attribute(self, "after", 0, self.width - 1)

    def body(self, domain: Domain[T], **operands: T) -> T:
        x = operands["x"]
        length, channels = x.shape[0] // domain.batch, x.shape[1]
        rows = self.rows_of(length)
        last = (rows - 1) * self.stride + self.width - 1 - self.before
        axis = Axis(length, self.before, max(0, last - (length - 1)))

        def entry(row: Index, column: Index) -> Entry:
            token = row % rows * self.stride + column // channels - self.before
            place = row // rows * length + axis.nearest(domain, token)
            return filled(domain, x[place, column % channels], [(axis, token)], 0)

        shape = (domain.batch * rows, channels * self.width)
        return domain.define("unfolded", shape, entry, x.dtype)
