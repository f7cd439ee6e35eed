"""Entities from the scores of tokens, as in transformers' token classification pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..common.strict_json import JsonDict
from ..model.scores import softmax
from ..model.tokenization import Tokenizer, Window

OUTSIDE = "O"

_Rows = NDArray[np.float64]
WORDS: dict[str, Callable[[_Rows], _Rows]] = {
    "first": lambda rows: rows[0],
    "max": lambda rows: rows[rows.max(axis=1).argmax()],
    "average": lambda rows: rows.mean(axis=0),
}
"""Probabilities of a word, from those of its tokens [tokens, classes]."""
STRATEGIES = ("none", "simple", *WORDS)
"""Values of `aggregation_strategy`: tokens, neighbouring tokens, or neighbouring words."""


@dataclass(frozen=True)
class TaggedToken:
    """A token, or a word, with its most likely class.

    Attributes
    ----------
    label
        Name of the class.
    score
        Its probability.
    start, end
        Its first character and the one behind its last.
    """

    label: str
    score: float
    start: int
    end: int


def tagged_tokens(
    window: Window,
    probabilities: _Rows,
    name: Callable[[int], str],
    strategy: str = "none",
    continued: Sequence[bool] = (),
) -> list[TaggedToken]:
    """Most likely classes of a window's tokens or words, those of special tokens left out.

    Parameters
    ----------
    window
        The tokens.
    probabilities
        float64 [tokens, classes].
    name
        Name of a class by its number.
    strategy
        One of `STRATEGIES`; those of `WORDS` give words.
    continued
        Whether a token is part of the word before it; needed for words.

    Returns
    -------
    list of TaggedToken
        In the order of the text.
    """
    words: list[list[int]] = []
    for place, text in enumerate(window.texts):
        if text is None:
            continue
        if words and strategy in WORDS and continued[place]:
            words[-1].append(place)
        else:
            words.append([place])
    found = []
    for places in words:
        row = WORDS.get(strategy, WORDS["first"])(probabilities[places])
        start, end = window.offsets[places[0]][0], window.offsets[places[-1]][1]
        found.append(TaggedToken(name(int(row.argmax())), float(row.max()), start, end))
    return found


def tagged_text(
    text: str,
    windows: Sequence[Window],
    logits: Sequence[NDArray[np.float32]],
    tokenizer: Tokenizer,
    name: Callable[[int], str],
    strategy: str = "simple",
) -> list[JsonDict]:
    """Entities of a text that was tagged window by window.

    Parameters
    ----------
    text
        The text.
    windows
        All of its tokens.
    logits
        [tokens, classes] of each window.
    tokenizer
        Says which tokens continue a word.
    name
        Name of a class by its number.
    strategy
        One of `STRATEGIES`.

    Returns
    -------
    list of dict
        As `entities` returns.
    """
    tokens: list[TaggedToken] = []
    for window, rows in zip(windows, logits, strict=True):
        continued = tokenizer.continued(window, text)
        tokens += tagged_tokens(window, softmax(rows), name, strategy, continued)
    return entities(text, tokens, strategy != "none")


def entities(text: str, tokens: Sequence[TaggedToken], grouped: bool) -> list[JsonDict]:
    """Tokens that are part of something, alone or put together.

    Parameters
    ----------
    text
        The text.
    tokens
        All of its tokens.
    grouped
        Join neighbours of one class: ``B-`` begins an entity, ``I-`` or no prefix continues it.
        Another prefix is part of the class, but not of the group's name, as in transformers.

    Returns
    -------
    list of dict
        ``entity`` (or ``entity_group``), ``score`` (the mean of a group), ``word`` (as the text
        has it), ``start``, ``end``; without the class ``O``.
    """
    groups: list[tuple[str, list[TaggedToken]]] = []
    for token in tokens:
        begins, kind = _parts(token.label) if grouped else (True, token.label)
        if groups and groups[-1][0] == kind and not begins:
            groups[-1][1].append(token)
        else:
            groups.append((kind, [token]))
    named = [
        (members[0].label.split("-", 1)[-1] if grouped else kind, members)
        for kind, members in groups
    ]
    return [
        {
            "entity_group" if grouped else "entity": name,
            "score": float(np.mean([token.score for token in members])),
            "word": text[members[0].start : members[-1].end],
            "start": members[0].start,
            "end": members[-1].end,
        }
        for name, members in named
        if name != OUTSIDE
    ]


def _parts(label: str) -> tuple[bool, str]:
    """Whether a label begins an entity, and the entity's class."""
    if label[:2] in ("B-", "I-"):
        return label[0] == "B", label[2:]
    return False, label
