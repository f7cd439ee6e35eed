"""Heads: runs of channels of one width."""

from __future__ import annotations

BY_CHANNEL_OF_ROW = "C or 1|H D"
"""Shape of a norm's constants: one per channel of a token, or per channel of a head, for each of
its H heads or for all of them."""


def shares_heads(num_heads: int, query_channels: int, key_channels: int) -> bool:
    """Tell whether keys are heads that equally many of the queries' share, one or more.

    Parameters
    ----------
    num_heads
        Heads of the queries.
    query_channels, key_channels
        Channels of all heads; every head has as many.
    """
    heads, rest = divmod(key_channels, query_channels // num_heads)
    return heads > 0 and not rest and num_heads % heads == 0


def norm_rows(channels: int, width: int, own: int | None) -> int | None:
    """Rows that a norm over `width` of the channels of a token has for each token.

    Parameters
    ----------
    channels, width
        Of a token, and of a row: a head.
    own
        How many rows of a token have weights of their own; without it they share one row of them.

    Returns
    -------
    int or None
        None where rows are no heads of the channels, or have other weights.
    """
    rows, rest = divmod(channels, width)
    return None if rest or not rows or own not in (None, rows) else rows
