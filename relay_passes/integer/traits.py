"""What passes ask of integer operators, in place of their names."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Traits:
    """What passes ask of an operator.

    Parameters
    ----------
    elementwise
        An entry of the result needs entries at its own place only (and constants, or table rows
        that it looks up), so it joins the kernel that makes its operand.
    takes_epilogue
        Elementwise operators may join its kernel; not where the result has another iteration
        space than what would follow.
    per_token
        Every token is treated by itself, wherever it lies: closed under leaving out padding.
    row_statistics
        It reduces rows of channels, and a kernel may keep a row in registers meanwhile.
    joins_rows
        An entry of the result needs the row at its place only, so it joins a kernel that keeps a
        row and makes its operand.
    rescales
        It only changes the scale of what a sum takes: the sum's kernel may do it instead.
    sums
        It adds two values of one scale; of the two, the one made last brings the kernel.
    view
        The result is a run of its operand's channels, which a reader may find in place:
        ``run_of(channels)`` says which.
    reads_views
        Operands that are read in place where a view makes them.
    offsets
        It has the attributes zero_point and dtype, and bounds low and high where it clamps; the
        result moves with them.
    matrix_product
        It is ``x weight^T + bias`` of 8-bit operands, of either signedness.
    merges
        Its constants by channel may be joined with those of another call with equal attributes.
    gathers
        Every entry of the result is one of an operand's, so that any kernel may look it up.
    by_sequence
        Tokens of one sequence meet, [b, s, C] to [b, s, C]; of packed operands, `starts` says
        where sequences begin.
    """

    elementwise: bool = False
    takes_epilogue: bool = True
    per_token: bool = False
    row_statistics: bool = False
    joins_rows: bool = False
    rescales: bool = False
    sums: bool = False
    view: bool = False
    reads_views: tuple[str, ...] = ()
    offsets: bool = False
    matrix_product: bool = False
    merges: bool = False
    gathers: bool = False
    by_sequence: bool = False
