"""Norms of rows: the channels of a token, or of one of its heads.

Statistics of a row come first, then the entries that follow from them. The names of stages are
those of the blocks in emitted code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from functools import partial
from typing import ClassVar, Generic

from ...dialect.heads import BY_CHANNEL_OF_ROW
from ...dialect.record import Operand, flattened
from ...dialect.rules import NormRule
from ...spec import layer_norm, short_layer_norm
from ...spec.layer_norm import LayerNormConstants
from ...spec.released import ReleasedLayerNorm as ReleasedConstants
from ...spec.released import layer_norm as released_norm
from ...spec.short_layer_norm import ShortLayerNorm
from ...spec.values import known
from ..checks import SHORT_DTYPES, STORAGE_DTYPES, check_bounds, check_shift
from ..domain import Domain, Entry, Index, T
from ..operator import Operator, Traits
from ..types import NARROW, TensorType

Function = Callable[..., Entry]
_TRAITS = Traits(per_token=True, row_statistics=True)


class Rows(Generic[T]):
    """The rows of an operand, and unless they are taken as they are, their sums and means.

    Parameters
    ----------
    domain
        Of the body.
    x
        [rows, channels].
    bounded
        Brings an entry to the width that the rest is defined for.
    deviation
        ``deviation(entry, mean)`` of a bounded entry; None for deviations from 0.
    mean_of
        ``mean_of(sum, channels)``.

    Attributes
    ----------
    total, mean
        Sum and mean of each row; None where deviations are from 0.
    """

    def __init__(
        self,
        domain: Domain[T],
        x: T,
        bounded: Function,
        deviation: Function | None = None,
        mean_of: Function = layer_norm.mean_of,
    ) -> None:
        self.domain = domain
        self.rows, self.channels = x.shape
        self.shape = self.rows, self.channels
        self.bounded: Function = lambda row, channel: bounded(x[row, channel])
        self.deviation: Function = self.bounded
        self.total: T | None = None
        self.mean: T | None = None
        if deviation is None:
            return
        self.total = domain.sum("sum", (self.rows,), self.channels, self.bounded)
        mean = self.number("mean", lambda total: mean_of(total, self.channels), self.total)
        self.mean = mean
        self.deviation = lambda row, channel: deviation(self.bounded(row, channel), mean[row])

    def sum(self, name: str, term: Function) -> T:
        """Define the sum over each row of ``term(deviation)``."""
        return self.domain.sum(
            name,
            (self.rows,),
            self.channels,
            lambda row, channel: term(self.deviation(row, channel)),
        )

    def number(self, name: str, function: Function, *of: T, dtype: str = "int32") -> T:
        """Define a number of each row, a function of others."""
        return self.domain.define(
            name, (self.rows,), lambda row: function(*(number[row] for number in of)), dtype
        )

    def normalised(
        self, function: Function, numbers: tuple[T, ...], constants: tuple[T, ...], dtype: str
    ) -> T:
        """Define the result by ``function(deviation, *numbers, *constants)``, these by channel.

        Rows that are heads of a token read the constants of their head, or share one row of them.
        """

        def of_row(constant: T, row: Index, channel: Index) -> Entry:
            if len(constant.shape) == 1:
                return constant[channel]
            heads = constant.shape[0]
            return constant[row % heads if heads > 1 else 0, channel]

        return self.domain.define(
            "normalised",
            (self.rows, self.channels),
            lambda row, channel: function(
                self.deviation(row, channel),
                *(number[row] for number in numbers),
                *(of_row(constant, row, channel) for constant in constants),
            ),
            dtype,
        )


def wide_inverse(row: Rows[T], constants: LayerNormConstants) -> T:
    """Define the inverse root of each row's mean square, for inputs of 21 bits; int64."""
    squares = row.sum("square_sum", layer_norm.square)
    half = row.number("half_bits", lambda v: layer_norm.root_half_bits(v, constants), squares)
    return row.number(
        "inverse",
        lambda v, h: layer_norm.inverse_std(v, h, constants),
        squares,
        half,
        dtype="int64",
    )


def short_inverse(row: Rows[T], constants: ShortLayerNorm) -> tuple[T, T]:
    """Define the bits of each row's root and its reciprocal, for inputs of 15 bits."""
    norm, k = short_layer_norm, constants
    squares = row.domain.square_sum("square_sum", row.bounded, row.total, row.mean, row.shape)
    half = row.number("half_bits", lambda v: norm.root_half_bits(v, k), squares)
    root = row.number("square_root", lambda v, h: norm.root(v, h, k), squares, half)
    bits = row.number("root_bits", lambda s: norm.root_bits(s, k), root)
    return bits, row.number("inverse", norm.reciprocal, root, bits)


class ScaledNorm(NormRule, Operator, abstract=True):
    """Base of norms that end in ``clamp((n gain + offset + half) >> shift, low, high)``.

    A gain [C] is of a norm over all channels of a token. One of two dimensions, [H, D] or [1, D],
    is of a norm over each of the H runs of D channels, its heads: each is a row of the body, which
    so gets [tokens H, D]. The offset is of the same rows; without one nothing is added, and no mean
    taken off.

    Class variables
    ---------------
    DTYPES
        Types that the result may have.

    Parameters
    ----------
    constants
        Of an input of 21 bits, or of one of 15 bits, which needs no product of 64 bits per entry.
    shift
        Right shift of ``n * gain``.
    low, high
        Closed interval of the result, within `dtype`.
    dtype
        One of `DTYPES`.
    """

    constants: LayerNormConstants | ShortLayerNorm
    shift: int
    low: int
    high: int
    dtype: str

    OPERANDS: ClassVar[tuple[Operand, ...]] = (
        Operand("x", NARROW, "... C"),
        Operand("gain", ("int32",), BY_CHANNEL_OF_ROW),
    )
    RESULT: ClassVar[str] = "... C"
    TRAITS: ClassVar[Traits] = _TRAITS
    DTYPES: ClassVar[tuple[str, ...]] = STORAGE_DTYPES

    def __post_init__(self) -> None:
        check_bounds(self, self.DTYPES)
        check_shift(self)

    def result_type(self, types: Mapping[str, TensorType]) -> TensorType:
        """Gain and offset are of the same rows."""
        result = super().result_type(types)
        gain = types["gain"].shape[-1]
        offset = types["offset"].shape[-1] if "offset" in types else gain
        if gain != offset:
            raise self.refused(
                f"an offset of {offset} channels beside a gain of {gain}",
                "both are of the same rows",
                "give both by channel, or both by channel of a head",
            )
        return result

    def rows_per_token(self, types: Mapping[str, TensorType]) -> int:
        """As many as heads are normalised for themselves."""
        width, channels = types["gain"].shape[-1], types["x"].shape[-1]
        assert isinstance(width, int) and isinstance(channels, int)  # the type rule checked
        return channels // width

    def result_dtype(self, types: Mapping[str, TensorType]) -> str:
        return self.dtype

    def body(self, domain: Domain[T], **operands: T) -> T:
        """Statistics of a row, then its normalised entries."""
        x, k = operands["x"], self.constants
        requantised = {"shift": self.shift, "low": self.low, "high": self.high}
        centred = "offset" in operands
        by_channel = tuple(operands[name] for name in ("gain", "offset") if name in operands)
        numbers: tuple[T, ...]
        normalise: Function
        if isinstance(k, ShortLayerNorm):
            deviation = short_layer_norm.deviation if centred else None
            row = Rows(domain, x, short_layer_norm.bounded, deviation)
            numbers = short_inverse(row, k)
            normalise = partial(short_layer_norm.normalise, constants=k, **requantised)
        else:
            deviation = layer_norm.deviation if centred else None
            row = Rows(domain, x, lambda entry: layer_norm.bounded(entry, k), deviation)
            numbers = (wide_inverse(row, k),)
            normalise = partial(layer_norm.normalise, constants=k, **requantised)

        def without_offset(*entries: Entry) -> Entry:
            # The short form rounds n down: half a unit of it.
            return normalise(*entries, entries[-1] >> 1 if isinstance(k, ShortLayerNorm) else 0)

        function = normalise if centred else without_offset
        return row.normalised(function, numbers, by_channel, self.dtype)


class RmsNorm(ScaledNorm):
    """i-layer-norm without mean and offset: ``clamp((n gain + half) >> shift, low, high)``.

    Parameters
    ----------
    constants
        input_limit, epsilon, reciprocal_bits, normalised_bits.
    shift, low, high, dtype
        See `ScaledNorm`; dtype int8, uint8, int16 or int32.
    """

    constants: LayerNormConstants = field(metadata=flattened("norm", LayerNormConstants))


class RmsNormShort(ScaledNorm):
    """i-RMSNorm of an input of 15 bits, without 64-bit products per entry.

    Parameters
    ----------
    constants
        epsilon, root_fraction_bits.
    shift, low, high, dtype
        See `ScaledNorm`; dtype int8, uint8 or int16.
    """

    constants: ShortLayerNorm = field(metadata=flattened("norm", ShortLayerNorm))

    DTYPES = SHORT_DTYPES


_WITH_OFFSET = (*ScaledNorm.OPERANDS, Operand("offset", ("int32",), BY_CHANNEL_OF_ROW))


class LayerNorm(ScaledNorm):
    """i-layer-norm over the last axis: ``clamp((n gain + offset + half) >> shift, low, high)``.

    Parameters
    ----------
    constants
        input_limit, epsilon, reciprocal_bits, normalised_bits.
    shift, low, high, dtype
        See `ScaledNorm`; dtype int8, uint8, int16 or int32.
    """

    constants: LayerNormConstants = field(metadata=flattened("norm", LayerNormConstants))

    OPERANDS = _WITH_OFFSET


class LayerNormShort(ScaledNorm):
    """i-layer-norm of an input of 15 bits, without 64-bit products per entry.

    Parameters
    ----------
    constants
        epsilon, root_fraction_bits.
    shift, low, high, dtype
        See `ScaledNorm`; dtype int8, uint8 or int16.
    """

    constants: ShortLayerNorm = field(metadata=flattened("norm", ShortLayerNorm))

    OPERANDS = _WITH_OFFSET
    DTYPES = SHORT_DTYPES


class ReleasedLayerNorm(Operator):
    """Released i-layer-norm over the last axis, at the scale ``gamma sqrt(C) / 2^30`` per channel.

    Parameters
    ----------
    constants : ReleasedLayerNorm
        shift.
    """

    constants: ReleasedConstants = field(metadata=flattened("norm", ReleasedConstants))

    OPERANDS = (Operand("x", NARROW, "... C"), Operand("offset", ("int64",), "C"))
    RESULT = "... C"
    dtype = "int64"
    TRAITS = _TRAITS

    def body(self, domain: Domain[T], **operands: T) -> T:
        """Statistics of a row, then its normalised entries."""
        x, k = operands["x"], self.constants

        def deviation(entry: Entry, mean: Entry) -> Entry:
            # A mean lies among the values; that its interval is that of x, the sum's cannot tell.
            return entry - known(mean, *domain.bounds(x))

        row = Rows(domain, x, lambda entry: entry, deviation, released_norm.mean_of)
        squares = row.sum("square_sum", lambda d: released_norm.square(d, k))
        half = row.number("half_bits", released_norm.root_half_bits, squares)
        factor = row.number(
            "inverse", lambda v, h: released_norm.factor(v, h, k), squares, half, dtype="int64"
        )
        return row.normalised(released_norm.normalise, (factor,), (operands["offset"],), self.dtype)
