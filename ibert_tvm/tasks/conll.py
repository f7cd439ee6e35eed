"""CoNLL's columns: a word per line with its tag, an empty line between sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from .errors import malformed
from .lines import MAX_ROWS, read_lines
from .samples import Tagged

# Entities of tagged words, as the CoNLL scorer and seqeval's default mode count them.
#
# Written anew in thirty lines instead of depending on seqeval, whose last release is of 2020.

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


_DOCUMENT = "-DOCSTART-"


def read_conll(path: Path, columns: Mapping[str, str] | None = None) -> Tagged:
    """Read sentences.

    Parameters
    ----------
    path : pathlib.Path
        The file. Columns are separated by tabs where a line has one, otherwise by spaces; lines
        that begin with ``-DOCSTART-`` or ``# `` are left out.
    columns
        Places, counted from 1, of the ``text`` (by default the first) and the ``label`` (the last).

    Raises
    ------
    DataError
        If it cannot be read, a line lacks a column, or there is no word.
    """
    places = {what: _place(path, what, number) for what, number in (columns or {}).items()}
    word_at, tag_at = places.get("text", 0), places.get("label", -1)
    words: list[list[str]] = [[]]
    tags: list[list[str]] = [[]]
    for line, text in read_lines(path):
        if not text.strip():
            if words[-1]:
                words.append([])
                tags.append([])
            continue
        if text.startswith((_DOCUMENT, "# ")):
            continue
        fields = text.split("\t") if "\t" in text else text.split()
        if len(fields) < 2 or max(word_at, tag_at) >= len(fields):
            need = max(word_at, tag_at, 1) + 1
            raise malformed(path, line, f"it has {len(fields)} columns, and {need} are needed")
        if not fields[word_at].strip() or not fields[tag_at].strip():
            raise malformed(path, line, "the word or its tag is empty")
        if len(words) > MAX_ROWS:
            raise malformed(path, line, f"there are more than {MAX_ROWS} sentences")
        words[-1].append(fields[word_at].strip())
        tags[-1].append(fields[tag_at].strip())
    if not words[-1]:
        words.pop()
        tags.pop()
    if not words:
        raise malformed(path, 0, "it has no word", "give a file with a word and a tag per line")
    return Tagged(words, tags)


def _place(path: Path, what: str, number: str) -> int:
    if not (number.isascii() and number.isdigit() and 1 <= int(number[:6]) <= 1000):
        raise malformed(
            path,
            0,
            f"the column of the {what} is {number!r}, and CoNLL's columns have no names",
            "give its place, counted from 1: --columns text=1,label=4",
        )
    return int(number) - 1
