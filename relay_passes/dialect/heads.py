"""Heads of attention: how many those of the queries share."""

from __future__ import annotations


def shares_heads(num_heads: int, query_channels: int, key_channels: int) -> bool:
    """Tell whether keys are heads that equally many of the queries' share, one or more.

    Parameters
    ----------
    num_heads : int
        Heads of the queries.
    query_channels, key_channels : int
        Channels of all heads; every head has as many.

    Returns
    -------
    bool
    """
    heads, rest = divmod(key_channels, query_channels // num_heads)
    return heads > 0 and not rest and num_heads % heads == 0
