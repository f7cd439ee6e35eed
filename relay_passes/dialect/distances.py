"""Distances between the tokens of a sequence, as the attention of both dialects limits them."""

UNBOUNDED = 2**31 - 1
"""A distance that no window limits."""
