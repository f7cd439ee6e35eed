"""Attributes and type rules of the operators that both dialects have.

A record of either dialect derives from the class of its name here, then from its dialect's base.
"""

from __future__ import annotations

from .heads import heads_problems
from .record import Dims, Record
from .types import Dim

POSITION_KINDS = ("absolute", "roberta")


class PositionIdsRule(Record, abstract=True):
    """Positions of tokens.

    Parameters
    ----------
    kind : {"absolute", "roberta"}
        "absolute": offset, offset + 1, ... in every row. "roberta":
        cumsum(id != padding_index) * (id != padding_index) + padding_index.
    offset
        First position, kind "absolute" only.
    padding_index
        Id of the padding token, kind "roberta" only.
    """

    kind: str = "absolute"
    offset: int = 0
    padding_index: int = 0

    def __post_init__(self) -> None:
        self.choose("kind", self.kind, POSITION_KINDS)


class RotateRule(Record, abstract=True):
    """Heads of C channels turned by a table of P positions and R columns.

    Parameters
    ----------
    num_heads
        H; the channels are H * D.
    """

    num_heads: int

    def check_dims(self, dims: Dims) -> None:
        """Heads divide the channels, and the table fits them and the sequence."""
        channels, positions, columns = dims["C"], dims["P"], dims["R"]
        for problem in heads_problems(self.num_heads, channels):
            raise self.refused(*problem)
        if columns < 2 or columns % 2 or columns > channels // self.num_heads:
            raise self.refused(
                f"a table of {columns} columns for heads of {channels // self.num_heads} channels",
                "it has a cosine and a sine for each pair of channels that is turned",
                "give as many columns as channels of a head are turned",
            )
        if isinstance(dims["s"], int) and dims["s"] > positions:
            raise self.refused(
                f"a table of {positions} positions for {dims['s']} tokens",
                "every place in a sequence has a row of it",
                "use a shorter sequence, or give the table for sequences as long as the model "
                "takes",
            )


class NormRule(Record, abstract=True):
    """A norm of rows: all channels of a token, or each head where constants are [H or 1, D]."""

    def check_dims(self, dims: Dims) -> None:
        """Heads divide the channels."""
        if "D" not in dims:
            return
        rows, rest = divmod(dims["C"], dims["D"])
        if rest or not rows or dims.get("H", rows) != rows:
            raise self.refused(
                f"constants of {dims.get('H', 1)} heads of {dims['D']} channels for {dims['C']} "
                "channels",
                "a row of them is for each head, or for all of them",
                "give [channels], or [heads, channels of a head], or [1, channels of a head]",
            )


class ConcatenateRule(Record, abstract=True):
    """Channels of two values side by side."""

    def result_shape(self, dims: Dims) -> tuple[Dim, ...]:
        """Channels of both."""
        return (*dims["..."], dims["C"] + dims["D"])


class AttentionPoolRule(Record, abstract=True):
    """Attention with a score for each of H heads."""

    def check_dims(self, dims: Dims) -> None:
        """Heads divide the channels."""
        for problem in heads_problems(dims["H"], dims["C"]):
            raise self.refused(*problem)


class PrependTokensRule(Record, abstract=True):
    """N tokens more in front of a sequence."""

    def result_shape(self, dims: Dims) -> tuple[Dim, ...]:
        """As many tokens more as there are rows."""
        return dims["b"], dims["s"] + dims["N"], dims["C"]


class SliceTokensRule(Record, abstract=True):
    """Some of the tokens of a sequence.

    Parameters
    ----------
    first
        Place of the first one.
    count
        How many.
    """

    first: int
    count: int

    def check_dims(self, dims: Dims) -> None:
        """There are such tokens; a symbolic length is checked when it is specialised."""
        length: Dim = dims["S"] if "S" in dims else dims["s"]
        end = self.first + self.count
        if self.first < 0 or self.count < 1 or (isinstance(length, int) and end > length):
            raise self.refused(
                f"tokens {self.first} to {end - 1} of {length}",
                "tokens are counted from 0, and at least one is kept",
                "slice inside of the sequence",
            )

    def result_shape(self, dims: Dims) -> tuple[Dim, ...]:
        """[b, count, C]."""
        return dims["b"], self.count, dims["C"]


class UnfoldTokensRule(Record, abstract=True):
    """Neighbouring tokens side by side.

    Parameters
    ----------
    width
        Neighbouring tokens.
    stride
        From the first of them to those of the next row.
    before, after
        Tokens of 0 at either end of a sequence, less than `width`.
    """

    width: int
    stride: int
    before: int
    after: int

    def check_dims(self, dims: Dims) -> None:
        """A sequence has as many rows as tokens, or a length that is known."""
        sound = self.stride >= 1 and 0 <= self.before < self.width and 0 <= self.after < self.width
        if not sound or not (self._as_long or self.rows_of(dims["s"]) >= 1):
            raise self.refused(
                f"{self.width} of {dims['s']} tokens with a stride of {self.stride}, and "
                f"{self.before} + {self.after} of 0 around them",
                "a sequence whose length is free keeps it, and one whose length is known has "
                "that many tokens",
                "pad to the same length, or give inputs of one length",
            )

    @property
    def _as_long(self) -> bool:
        return self.stride == 1 and self.before + self.after == self.width - 1

    def rows_of(self, length: Dim) -> int:
        """Rows of a sequence, 0 where the length is symbolic."""
        borders = self.before + self.after
        return count(length, self.width, self.stride, borders) if isinstance(length, int) else 0

    def result_shape(self, dims: Dims) -> tuple[Dim, ...]:
        """As many tokens as before, or as many as windows fit."""
        rows = dims["s"] if self._as_long else self.rows_of(dims["s"])
        return dims["b"], rows, dims["C"] * self.width


class PatchesRule(Record, abstract=True):
    """Images cut into patches.

    Parameters
    ----------
    patch_height, patch_width
        Pixels.
    """

    patch_height: int
    patch_width: int

    def counts(self, height: int, width: int) -> tuple[int, int]:
        """Whole patches, down and across."""
        return (
            count(height, self.patch_height, self.patch_height, 0),
            count(width, self.patch_width, self.patch_width, 0),
        )

    def check_dims(self, dims: Dims) -> None:
        """An image holds at least one whole patch."""
        if min(self.counts(dims["H"], dims["W"])) < 1:
            raise self.refused(
                f"patches of {self.patch_height} x {self.patch_width} of an image of "
                f"{dims['H']} x {dims['W']}",
                "an image holds at least one whole patch",
                "check the patch size and the image size",
            )

    def result_shape(self, dims: Dims) -> tuple[Dim, ...]:
        """[b, patches, planes * area]."""
        down, across = self.counts(dims["H"], dims["W"])
        return dims["b"], down * across, dims["P"] * self.patch_height * self.patch_width


class WindowsRule(Record, abstract=True):
    """Images or features cut into windows, with a border around.

    Parameters
    ----------
    height, width
        Of a window, in pixels; features are 1 high.
    stride_down, stride_across
        From one window to the next.
    top, bottom, left, right
        Rows and columns around an image, less than a window has.
    """

    height: int
    width: int
    stride_down: int
    stride_across: int
    top: int
    bottom: int
    left: int
    right: int

    def check_dims(self, dims: Dims) -> None:
        """A window fits."""
        sides = (
            (self.height, self.stride_down, self.top, self.bottom),
            (self.width, self.stride_across, self.left, self.right),
        )
        sound = all(
            stride >= 1 and 0 <= before < extent and 0 <= after < extent
            for extent, stride, before, after in sides
        )
        if not sound or min(self.counts(dims.get("H", 1), dims["W"])) < 1:
            shown = " x ".join(str(dims[side]) for side in "HW" if side in dims)
            raise self.refused(
                f"windows of {self.height} x {self.width} of an input of {shown}",
                "a window fits, strides are at least 1 and borders narrower than a window",
                "check the sizes",
            )

    def counts(self, height: int, width: int) -> tuple[int, int]:
        """Windows, down and across."""
        return (
            count(height, self.height, self.stride_down, self.top + self.bottom),
            count(width, self.width, self.stride_across, self.left + self.right),
        )

    def result_shape(self, dims: Dims) -> tuple[Dim, ...]:
        """[b, windows, planes * area]."""
        down, across = self.counts(dims.get("H", 1), dims["W"])
        return dims["b"], down * across, dims["P"] * self.height * self.width


def count(extent: int, width: int, stride: int, borders: int) -> int:
    """Return how many windows fit.

    Parameters
    ----------
    extent
        Of the axis.
    width, stride
        Of a window, and from one to the next.
    borders
        What lies around the axis, at both ends together.

    Returns
    -------
    int
        0 where a window does not fit.
    """
    room = extent + borders - width
    return room // stride + 1 if room >= 0 and stride >= 1 else 0
