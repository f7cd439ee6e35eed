"""The beginning of a long text that gives all the tokens which a model reads of it.

The package tokenizers takes a text whole and then cuts its tokens: of a document of 60,000
characters a model with 256 tokens reads the first 1,500.
"""

from __future__ import annotations

from typing import Any

from .tokenizer_limits import cuts_of


class Beginnings:
    """Cuts texts where a tokenizer gives the same tokens for what stands before.

    Parameters
    ----------
    tokenizer
        A `tokenizers.Tokenizer` whose components were checked.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._cuts = cuts_of(tokenizer)
        added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
        # No two characters of a text stand on both sides of a line break.
        self._added = "\n".join([*added, *map(str.lower, added)])

    def of(self, text: str, characters: int) -> str:
        """Cut a text behind so many characters, or where that is possible; it may stay whole."""
        if self._cuts is None or len(text) <= characters:
            return text
        for found in self._cuts.finditer(text, characters):
            end = found.start()
            # An added token is found before all else, and must not be taken apart.
            around = text[end - 1 : end + 1]
            if around not in self._added and around.lower() not in self._added:
                return text[:end]
        return text
