"""Matrix products, and the parts and row scales of their operands."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from ...dialect.arrays import Integers
from ...dialect.record import Dims, Operand
from ...spec import nibbles, parts, row_scale
from ...spec.values import absolute, maximum
from ..checks import check_attribute, check_bounds, check_half_bytes
from ..domain import Domain, Entry, Index, T
from ..operator import Elementwise, Operator, Traits, per_channel
from ..types import NARROW, Dim, TensorType, static


class Linear(Operator):
    """``x weight^T + bias``, in int32.

    x has value semantics (no hidden offset; its zero point is folded in the bias).
    """

    OPERANDS: ClassVar[tuple[Operand, ...]] = (
        Operand("x", ("int8", "uint8", "int16"), "... K"),
        Operand("weight", ("int8",), "N K", packed="entries"),
        Operand("bias", ("int32",), "N"),
    )
    RESULT = "... N"
    dtype = "int32"
    TRAITS = Traits(per_token=True, matrix_product=True)

    def matrix(self, weights: Mapping[str, Integers], channels: int) -> Integers:
        """The weight [N, K] of 8 bits, of the arrays of operands and the channels of x."""
        return weights["weight"]

    def multiply_accumulates(self, types: Mapping[str, TensorType]) -> int:
        """All entries of x with all rows of the weight."""
        return math.prod(static(types["x"].shape)) * static(types["weight"].shape)[0]

    def body(self, domain: Domain[T], **operands: T) -> T:
        return domain.linear(operands["x"], operands["weight"], operands["bias"])


class NibbleLinear(Linear):
    """``x widened(weight, scales)^T + bias``, in int32, of a weight in half bytes.

    What an entry is, and how a weight is packed, says `ibert_tvm.relay_passes.spec.nibbles`: 8
    bits, so that products and their bounds are those of `Linear`. Kernels widen what they multiply.
    """

    OPERANDS: ClassVar[tuple[Operand, ...]] = (
        Operand("x", ("int8", "uint8", "int16"), "... K"),
        Operand("weight", ("uint8",), "N B", packed="entries"),
        Operand("scales", ("uint8",), "N G", packed="columns"),
        Operand("bias", ("int32",), "N"),
    )

    def check_dims(self, dims: Dims) -> None:
        """The bytes of a row are those of the channels of x."""
        check_half_bytes(self, dims, dims["K"])

    def matrix(self, weights: Mapping[str, Integers], channels: int) -> Integers:
        """What the half bytes stand for."""
        return nibbles.unpack(weights["weight"], weights["scales"], channels)

    def body(self, domain: Domain[T], **operands: T) -> T:
        x = operands["x"]
        weight = domain.widened(operands["weight"], operands["scales"], x.shape[-1])
        return domain.linear(x, weight, operands["bias"])


class OperandPart(Elementwise):
    """``part(x) + zero_point``, of `ibert_tvm.relay_passes.spec.parts`.

    `ibert_tvm.relay_passes.passes.split_operands` has products with both parts in the place of one.

    Parameters
    ----------
    part
        "high" or "low".
    dtype
        int8 or uint8; an x whose parts do not fit is refused.
    zero_point
        Added to the part.
    """

    part: str
    dtype: str
    zero_point: int = 0

    OPERANDS = (Operand("x", ("int16",), "... C"),)
    TRAITS = Traits(elementwise=True, per_token=True, offsets=True)
    STAGE = "part"

    def __post_init__(self) -> None:
        self.choose("part", self.part, ("high", "low"))
        self.choose("dtype", self.dtype, ("int8", "uint8"))

    def entry(self, x: Entry) -> Entry:
        of = parts.high_part if self.part == "high" else parts.low_part
        return of(x, parts.OPERAND_BITS) + self.zero_point


class JoinParts(Elementwise):
    """``2^8 high + x``: x is the product with low parts, `high` that with high ones."""

    OPERANDS = (Operand("x", ("int32",), "... C"), Operand("high", ("int32",), "... C"))
    dtype = "int32"
    STAGE = "joined"

    def entry(self, x: Entry, high: Entry) -> Entry:
        return parts.joined(high, x, parts.OPERAND_BITS)


class RowMagnitude(Operator):
    """``max(1, max_c |x[..., c]|)``, x clamped to 15 bits and a sign: [..., 1]."""

    OPERANDS = (Operand("x", NARROW, "... C"),)
    dtype = "int32"
    TRAITS = Traits(per_token=True, takes_epilogue=False, row_statistics=True, joins_rows=True)

    def result_shape(self, dims: Dims) -> tuple[Dim, ...]:
        """One number of each row."""
        return (*dims["..."], 1)

    def body(self, domain: Domain[T], **operands: T) -> T:
        x = operands["x"]
        rows, channels = x.shape
        largest = domain.max(
            "largest",
            (rows,),
            channels,
            lambda row, channel: absolute(row_scale.bounded(x[row, channel])),
        )
        return domain.define(
            "magnitude", (rows, 1), lambda row, _: maximum(largest[row], 1), self.dtype
        )


class QuantiseRows(Operator):
    """``clamp(round(127 x / m) + zero_point, low, high)``, m being the magnitude of the row.

    Parameters
    ----------
    low, high
        Closed interval of the result, within `dtype`.
    dtype
        int8 or uint8.
    zero_point
        Added after the division.
    """

    low: int
    high: int
    dtype: str
    zero_point: int = 0

    OPERANDS = (Operand("x", NARROW, "... C"), Operand("magnitude", ("int32",), "... 1"))
    RESULT = "... C"
    TRAITS = Traits(per_token=True, offsets=True, takes_epilogue=False, joins_rows=True)

    def __post_init__(self) -> None:
        check_bounds(self, ("int8", "uint8"))

    def body(self, domain: Domain[T], **operands: T) -> T:
        """The reciprocal of each row, then its entries."""
        x, magnitude = operands["x"], operands["magnitude"]
        rows, channels = x.shape
        largest = domain.define(
            "row_magnitude",
            (rows,),
            lambda row: row_scale.bounded_magnitude(magnitude[row, 0]),
            "int32",
        )
        shift = domain.define(
            "row_shift", (rows,), lambda row: row_scale.normalising_shift(largest[row]), "int32"
        )
        factor = domain.define(
            "row_reciprocal",
            (rows,),
            lambda row: row_scale.reciprocal(largest[row], shift[row]),
            "int32",
        )
        return domain.define(
            "quantised",
            (rows, channels),
            lambda row, channel: row_scale.quantise(
                x[row, channel],
                largest[row],
                shift[row],
                factor[row],
                self.zero_point,
                self.low,
                self.high,
            ),
            self.dtype,
        )


MOST_SHIFTED = 16


class ScaleRows(Operator):
    """``floor(x m / 2^shift) + bias``, m being the magnitude of the row, clamped to [1, 2^15).

    Parameters
    ----------
    shift
        0..16.
    """

    shift: int

    OPERANDS = (
        Operand("x", ("int32",), "... C"),
        Operand("magnitude", ("int32",), "... 1"),
        Operand("bias", ("int32",), "1|C"),
    )
    RESULT = "... C"
    dtype = "int32"
    TRAITS = Traits(elementwise=True, per_token=True, merges=True)

    def __post_init__(self) -> None:
        check_attribute(self, "shift", 0, MOST_SHIFTED)

    def body(self, domain: Domain[T], **operands: T) -> T:
        x, magnitude, bias = (operands[name] for name in ("x", "magnitude", "bias"))

        def entry(row: Index, channel: Index) -> Entry:
            # A row of one may be its own magnitude, and is then read as one value: TVM matches no
            # region that is read both at 0 and at a variable.
            m = row_scale.bounded_magnitude(magnitude[row, channel if x.shape[-1] == 1 else 0])
            return row_scale.restored(x[row, channel], m, self.shift, per_channel(bias, channel))

        return domain.define("scaled", x.shape, entry, self.dtype)
