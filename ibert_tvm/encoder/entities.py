"""Entities from the scores of tokens, as in transformers' token classification pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..common.strict_json import JsonDict
from ..model.tokenization import Window

OUTSIDE = "O"


@dataclass(frozen=True)
class TaggedToken:
    """A token with its most likely class.

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
    window: Window, probabilities: NDArray[np.float64], name: Callable[[int], str]
) -> list[TaggedToken]:
    """Most likely classes of a window's tokens, those of special tokens left out.

    Parameters
    ----------
    window
        The tokens.
    probabilities
        float64 [tokens, classes].
    name
        Name of a class by its number.

    Returns
    -------
    list of TaggedToken
        In the order of the text.
    """
    found = []
    for place, text in enumerate(window.texts):
        if text is not None:
            best = int(probabilities[place].argmax())
            start, end = window.offsets[place]
            found.append(TaggedToken(name(best), float(probabilities[place, best]), start, end))
    return found


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
    return [
        {
            "entity_group" if grouped else "entity": kind,
            "score": float(np.mean([token.score for token in members])),
            "word": text[members[0].start : members[-1].end],
            "start": members[0].start,
            "end": members[-1].end,
        }
        for kind, members in groups
        if kind != OUTSIDE
    ]


def _parts(label: str) -> tuple[bool, str]:
    """Whether a label begins an entity, and the entity's class."""
    if label[:2] in ("B-", "I-"):
        return label[0] == "B", label[2:]
    return False, label
