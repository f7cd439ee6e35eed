"""Short pieces of calibration texts.

Text in use is not always sentences: names, statuses, single words. The special tokens are half of
such a text, and what they become depends on how much there is beside them, so ranges that sentences
show are too narrow for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_MOST_WORDS = 3

Text = str | tuple[str, str]
"""A text, or a pair of texts."""


def short_pieces(texts: Sequence[Text], seed: int) -> list[Text]:
    """Cut one to three neighbouring words out of every text, and out of both texts of a pair.

    Parameters
    ----------
    texts
        Words are what white space separates.
    seed
        Of the choice.

    Returns
    -------
    list of str or of (str, str)
        Without those that occur before, or are a text.
    """
    random = np.random.default_rng(seed)
    found: dict[Text, None] = {}
    for text in texts:
        if isinstance(text, str):
            found[_piece(text, random)] = None
        else:
            found[_piece(text[0], random), _piece(text[1], random)] = None
    whole = {*texts, "", ("", "")}
    return [piece for piece in found if piece not in whole]


def _piece(text: str, random: np.random.Generator) -> str:
    words = text.split()
    count = int(random.integers(1, _MOST_WORDS + 1))
    start = int(random.integers(0, max(len(words) - count, 0) + 1))
    return " ".join(words[start : start + count])
