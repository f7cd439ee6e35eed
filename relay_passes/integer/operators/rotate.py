"""`integer.rotate`: rotary position embeddings, requantised."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ...dialect.record import Operand
from ...dialect.rotation import rotation_problem
from ...errors import LoweringError
from ...spec import rotation
from ...spec.short_requantise import requantise_short
from ...spec.values import select, short
from ..checks import SHORT_DTYPES, check_attribute, check_bounds, check_short_shift
from ..domain import Domain, Entry, Index, Tensor
from ..operator import Operator, per_channel
from ..traits import Traits
from ..types import TensorType, static


@dataclass(frozen=True)
class Rotate(Operator):
    """Turn pairs of channels of every head by the angles of a token's place, [b, s, H D].

    Of the first R channels of a head, channel i and channel i + R/2 are turned by angle i; the
    others stay. Row p of the table has R/2 cosines, then as many sines, in Q15. Products keep
    `raised` fraction bits; their sum is requantised in 16-bit arithmetic.

    Parameters
    ----------
    num_heads : int
        H.
    raised : int
        Fraction bits that x gets, 0..7: as many as leave it within 16 bits.
    shift, low, high, dtype, zero_point
        Requantisation, as of `RequantiseShort`.
    """

    num_heads: int
    raised: int
    shift: int
    low: int
    high: int
    dtype: str
    zero_point: int = 0

    OP = "integer.rotate"
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
        check_bounds(self, SHORT_DTYPES)
        check_short_shift(self)
        check_attribute(self, "raised", 0, rotation.FRACTION_BITS)

    def check_dims(self, dims: Mapping[str, Any]) -> None:
        """Heads divide the channels, and the table fits them and the sequence."""
        problem = rotation_problem(self.num_heads, dims)
        if problem is not None:
            raise LoweringError(problem[0], self.where, *problem[1:])

    def needs_places(self, operands: Collection[str]) -> bool:
        """Angles are a matter of places."""
        return True

    def sequence_limit(self, types: Mapping[str, TensorType]) -> int | None:
        """As many tokens as the table has rows."""
        return static(types["table"].shape)[0]

    def body(self, domain: Domain, **operands: Tensor) -> Tensor:
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
