"""Channels by number: runs of them, which readers find in place, joined and repeated."""

from __future__ import annotations

from typing import ClassVar

from ...dialect.record import Dims, Operand
from ...dialect.rules import ConcatenateRule
from ..domain import Domain, Entry, Index, T
from ..operator import Operator, Traits
from ..types import DTYPES, NARROW, Dim


class RunOfChannels(Operator, abstract=True):
    """Base of operators whose result is neighbouring channels of x, of the same type."""

    OPERANDS: ClassVar[tuple[Operand, ...]] = (Operand("x", ("uint8", *NARROW), "... C"),)
    KEEPS: ClassVar[str] = "x"
    TRAITS: ClassVar[Traits] = Traits(per_token=True, view=True)

    def run_of(self, channels: int) -> tuple[int, int]:
        """First channel and number of channels, of so many."""
        raise NotImplementedError

    def result_shape(self, dims: Dims) -> tuple[Dim, ...]:
        return (*dims["..."], self.run_of(dims["C"])[1])

    def body(self, domain: Domain[T], **operands: T) -> T:
        x = operands["x"]
        *leading, channels = x.shape
        first, width = self.run_of(channels)
        return domain.define(
            "run_of_channels",
            (*leading, width),
            lambda *index: x[(*index[:-1], index[-1] + first)],
            x.dtype,
        )


class SplitChannels(RunOfChannels):
    """Run number `index` of `parts` equal runs of channels.

    Parameters
    ----------
    index, parts
        Which of how many equal runs.
    """

    index: int
    parts: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.parts:
            raise self.refused(
                f"part {self.index} of {self.parts}",
                "parts are counted from 0",
                "build the call in ibert_tvm.relay_passes.passes.merge_projections",
            )

    def check_dims(self, dims: Dims) -> None:
        """Runs are equal."""
        if dims["C"] % self.parts:
            raise self.refused(
                f"{self.parts} parts do not divide {dims['C']} channels",
                "every part has the same number of channels",
                "merge layers of equal width only",
            )

    def run_of(self, channels: int) -> tuple[int, int]:
        width = channels // self.parts
        return self.index * width, width


class ChannelRun(RunOfChannels):
    """`channels` neighbouring channels from number `first` on.

    Where all runs are equal, `SplitChannels` says the same.

    Parameters
    ----------
    first
        The first of them, counted from 0.
    channels
        How many there are.
    """

    first: int
    channels: int

    def check_dims(self, dims: Dims) -> None:
        """The run lies within the channels."""
        if self.first < 0 or self.channels < 1 or self.first + self.channels > dims["C"]:
            raise self.refused(
                f"{self.channels} channels from number {self.first} on, of {dims['C']}",
                "channels are counted from 0, and a run has one at least",
                "build the call in ibert_tvm.relay_passes.passes.merge_projections",
            )

    def run_of(self, channels: int) -> tuple[int, int]:
        return self.first, self.channels


class GatherChannels(Operator):
    """Channel ``channels[n]`` of x as channel n of the result, of the same type.

    `ibert_tvm.relay_passes.passes.repeat_rows` has a linear layer compute it instead.
    """

    OPERANDS = (Operand("x", ("uint8", *DTYPES), "... C"), Operand("channels", ("int32",), "N"))
    RESULT = "... N"
    KEEPS = "x"
    TRAITS = Traits(per_token=True)

    def body(self, domain: Domain[T], **operands: T) -> T:
        x, channels = operands["x"], operands["channels"]
        *leading, count = x.shape

        def entry(*index: Index) -> Entry:
            return x[(*index[:-1], domain.lookup(channels[index[-1]], count, channels))]

        return domain.define("gathered", (*leading, channels.shape[0]), entry, x.dtype)


class Concatenate(ConcatenateRule, Operator):
    """The channels of a, then those of b, as they are."""

    OPERANDS = (
        Operand("a", ("uint8", *NARROW), "... C"),
        Operand("b", ("uint8", *NARROW), "... D"),
    )
    dtype = "int32"
    TRAITS = Traits(per_token=True)

    def body(self, domain: Domain[T], **operands: T) -> T:
        a, b = operands["a"], operands["b"]
        rows, first = a.shape
        second = b.shape[1]

        def entry(row: Index, channel: Index) -> Entry:
            return domain.choose(
                channel < first,
                # Within the operand wherever it is read. LLVM dies of a maximum here, for MVE.
                a[row, channel % first],
                b[row, (channel - first) % second],
            )

        return domain.define("joined", (rows, first + second), entry, "int32")
