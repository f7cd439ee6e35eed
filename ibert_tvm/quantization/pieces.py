"""Short pieces of calibration texts.

Text in use is not always sentences: names, statuses, single words. The special tokens are half of
such a text, and what they become depends on how much there is beside them, so ranges that sentences
show are too narrow for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["short_pieces"]

_MOST_WORDS = 3


def short_pieces(texts: Sequence[str], seed: int) -> list[str]:
    """Cut one to three neighbouring words out of every text.

    Parameters
    ----------
    texts : sequence of str
        Words are what white space separates.
    seed : int
        Of the choice.

    Returns
    -------
    list of str
        Without those that occur before, or are a text.
    """
    random = np.random.default_rng(seed)
    found: dict[str, None] = {}
    for text in texts:
        words = text.split()
        count = int(random.integers(1, _MOST_WORDS + 1))
        start = int(random.integers(0, max(len(words) - count, 0) + 1))
        found[" ".join(words[start : start + count])] = None
    whole = {*texts, ""}
    return [piece for piece in found if piece not in whole]
