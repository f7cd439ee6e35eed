"""Tokens that are found in a text before it is normalised, the longest first."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from ..common.strict_json import JsonDict
from .errors import refused
from .tables import Array

_MOST = 1024
_WHERE = "added_tokens"


def added_arrays(tokens: Sequence[JsonDict], normalised: bool) -> tuple[Array, ...]:
    """Texts, lengths, ids and trimmed sides of added tokens.

    Parameters
    ----------
    tokens
        ``added_tokens`` of tokenizer.json.
    normalised
        Whether the tokenizer has a normaliser.

    Raises
    ------
    TokenizerFormError
        If one is found otherwise.
    """
    if len(tokens) > _MOST:
        raise refused(_WHERE, f"there are {len(tokens)}; {_MOST} are allowed")
    for token in tokens:
        text = token["content"]
        if token["single_word"]:
            raise refused(_WHERE, f"{text!r} is found as a single word only")
        if token["normalized"] and normalised:
            raise refused(_WHERE, f"{text!r} is found behind the normaliser")
        if text != text.strip() or not text or "\ufffd" in text:
            raise refused(_WHERE, f"{text!r} is empty, or has a space at an end, or U+FFFD")
    for one, other in product(tokens, tokens):
        if one["normalized"] and not other["normalized"]:
            _check_apart(one["content"], other["content"])
    ordered = sorted(tokens, key=lambda token: -len(token["content"].encode()))
    texts = [token["content"].encode() for token in ordered]
    return (
        Array("added_texts", [byte for text in texts for byte in text]),
        Array("added_lengths", [len(text) for text in texts]),
        Array("added_ids", [int(token["id"]) for token in ordered]),
        Array("added_trims", [token["lstrip"] | token["rstrip"] << 1 for token in ordered]),
    )


def _check_apart(one: str, other: str) -> None:
    """The package looks for those that are not normalised first: the others must not overlap."""
    lengths = range(1, min(len(one), len(other)) + 1)
    touching = any(one[-n:] == other[:n] or other[-n:] == one[:n] for n in lengths)
    if touching or one in other or other in one:
        raise refused(_WHERE, f"{one!r} and {other!r} may overlap, and only one is normalised")
