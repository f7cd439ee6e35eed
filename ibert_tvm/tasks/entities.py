"""Entities of tagged words, as the CoNLL scorer and seqeval's default mode count them.

Written anew in thirty lines instead of depending on seqeval, whose last release is of 2020.
"""

from __future__ import annotations

from collections.abc import Sequence

Entity = tuple[str, int, int]
OUTSIDE = "O"


def entities_of(tags: Sequence[str]) -> set[Entity]:
    """Find the entities in one sentence's tags.

    IOB1, IOB2, IOE and IOBES (BILOU's ``L`` and ``U`` too) are understood, and tags that no scheme
    allows, such as an ``I-`` that continues nothing, begin an entity. A tag without a prefix
    (``PER``) counts as ``I-PER``.

    Parameters
    ----------
    tags
        Of every word.

    Returns
    -------
    set of (str, int, int)
        Type, first word, and the one behind the last.
    """
    found: set[Entity] = set()
    kind, start, ended = "", 0, True
    for place, tag in enumerate([*tags, OUTSIDE]):
        prefix, this = split_tag(tag)
        begins = prefix in "BSU" or ended or this != kind
        if kind and (begins or not this):
            found.add((kind, start, place))
        if this and begins:
            start = place
        kind, ended = this, prefix in "ESLU"
    return found


def split_tag(tag: str) -> tuple[str, str]:
    """Prefix and type of a tag; an empty type for ``O``."""
    if tag == OUTSIDE:
        return "O", ""
    if tag[1:2] == "-" and tag[0] in "BIESLU":
        return tag[0], tag[2:] or "_"
    return "I", tag
