"""Shapes of rotary position embeddings, in every dialect."""

from __future__ import annotations

from .record import Dims


def rotation_problem(num_heads: int, dims: Dims) -> tuple[str, str, str] | None:
    """Tell what is wrong with the shapes of a rotation: what, why and what to do; None if nothing.

    Parameters
    ----------
    num_heads
        Heads.
    dims
        ``s`` tokens (unless symbolic), ``C`` channels, and a table of ``P`` positions and ``R``
        columns.
    """
    channels, positions, columns = dims["C"], dims["P"], dims["R"]
    if num_heads < 1 or channels % num_heads:
        return (
            f"{channels} channels do not divide by {num_heads} heads",
            "every head has the same number of channels",
            "check num_heads",
        )
    if columns < 2 or columns % 2 or columns > channels // num_heads:
        return (
            f"a table of {columns} columns for heads of {channels // num_heads} channels",
            "it has a cosine and a sine for each pair of channels that is turned",
            "give as many columns as channels of a head are turned",
        )
    if isinstance(dims["s"], int) and dims["s"] > positions:
        return (
            f"a table of {positions} positions for {dims['s']} tokens",
            "every place in a sequence has a row of it",
            "use a shorter sequence, or give the table for sequences as long as the model takes",
        )
    return None
