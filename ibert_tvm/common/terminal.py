"""Texts that cannot command the terminal that shows them."""

from __future__ import annotations

import unicodedata


def printable(text: str) -> str:
    """Return a text with its control characters as escapes, but for line ends and tabs.

    Labels, names and texts come with models: a sequence in one could clear a screen, or show a line
    that nobody printed. Characters that change the direction of writing are escaped as well.
    """
    return "".join(
        ascii(letter)[1:-1]
        if unicodedata.category(letter) in ("Cc", "Cf", "Cs") and letter not in "\n\t\u200c\u200d"
        else letter
        for letter in text
    )
