"""What the package tokenizers does with each code point, found out by asking it.

Its Unicode tables are those of several Rust crates, each of another version of Unicode, and none is
Python's. So no table of Python decides anything here: blocks of code points go through the
component itself, and those that it changes go through one by one.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

CODE_POINTS = 0x110000
HANGUL_BASE, HANGUL_COUNT = 0xAC00, 11172
"""Syllables whose parts are computed."""
_SURROGATES = range(0xD800, 0xE000)
_BLOCK = 256
_INERT, _INERT_MARK = "\U00010380", "\U0010ff00"
"""A letter, and a private character, that no component makes of another or joins with one."""


def component(section: str, record: str) -> Any:
    """A part of a tokenizer as an object of the package.

    Parameters
    ----------
    section
        Of tokenizer.json: ``normalizer`` or ``pre_tokenizer``.
    record
        What stands there.
    """
    names = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
    parts = {**dict.fromkeys(names), section: json.loads(record)}
    model = {"type": "BPE", "vocab": {}, "merges": []}
    document = {"version": "1.0", "added_tokens": [], **parts, "model": model}
    return getattr(Tokenizer.from_str(json.dumps(document)), section)


CharacterMap = dict[int, str]
"""What becomes of a code point; those that stay as they are are left out."""


def blocks() -> Iterator[str]:
    """All code points, 256 at a time."""
    for start in range(0, CODE_POINTS, _BLOCK):
        if start not in _SURROGATES:
            yield "".join(map(chr, range(start, start + _BLOCK)))


def character_map(normalize: Callable[[str], str]) -> CharacterMap:
    """What a normaliser makes of each code point alone."""
    found: CharacterMap = {}
    for block in blocks():
        made = normalize(block)
        if made == block:
            continue
        if not made:
            found |= dict.fromkeys(map(ord, block), "")
            continue
        between = _INERT if normalize(_INERT) == _INERT else _INERT_MARK
        block = block.replace(between, "")
        parts = normalize(between.join(block)).split(between)
        for character, part in zip(block, parts, strict=True):
            if part != character:
                found[ord(character)] = part
    return found


def composed(first: Mapping[int, str], then: Mapping[int, str]) -> CharacterMap:
    """One map that does what two do one after the other."""
    both = {
        code: text and "".join(then.get(ord(character), character) for character in text)
        for code, text in first.items()
    }
    both |= {code: text for code, text in then.items() if code not in first}
    return {code: text for code, text in both.items() if text != chr(code)}


def combining_classes(decompose: Callable[[str], str]) -> dict[int, int]:
    """Canonical combining classes, from the order in which NFD puts marks; 0 is left out.

    Parameters
    ----------
    decompose
        NFD of the package.
    """
    lowest, highest = "\u0334", "\u0345"  # of the classes 1 and 240

    def swapped(text: str) -> bool:
        return text != text[::-1] and decompose(text) == text[::-1]

    def is_mark(character: str) -> bool:
        return swapped(highest + character) or swapped(character + lowest)

    # A mark that Python knows and the package does not is no member of a class.
    listed = [chr(code) for code in range(0x1F000, 0x2FF, -1) if unicodedata.combining(chr(code))]
    known = {unicodedata.combining(mark): mark for mark in listed if is_mark(mark)}
    marks = dict(sorted(known.items()))
    found = {}
    for block in blocks():
        between = [mark.join(block) for mark in (lowest, highest)]
        if [*map(decompose, between)] == between:
            continue
        for character in block:
            if is_mark(character):
                found[ord(character)] = next(
                    number
                    for number, mark in marks.items()
                    if not swapped(mark + character) and not swapped(character + mark)
                )
    return found


def compositions(
    compose: Callable[[str], str], decomposed: Mapping[int, str]
) -> dict[tuple[int, int], int]:
    """Pairs of code points that NFC joins, syllables of Hangul left out.

    Parameters
    ----------
    compose
        NFC of the package.
    decomposed
        Its NFD, by code point.
    """
    pairs = {}
    for code, text in decomposed.items():
        if code not in range(HANGUL_BASE, HANGUL_BASE + HANGUL_COUNT) and len(text) > 1:
            first = compose(text[:-1])
            if len(first) == 1 and compose(first + text[-1]) == chr(code):
                pairs[ord(first), ord(text[-1])] = code
    return pairs


def hangul(code: int) -> str:
    """Parts of a syllable of Hangul."""
    number = code - HANGUL_BASE
    parts = (0x1100 + number // 588, 0x1161 + number % 588 // 28, 0x11A7 + number % 28)
    return "".join(map(chr, parts[: 3 if number % 28 else 2]))


DROPPED, ALONE = 0, 1
"""Classes of code points between words, and of those that are a word each; others form words."""


def word_classes(pre_tokenizer: Any, kinds: Sequence[str]) -> dict[int, int] | None:
    """Classes by which a pre-tokenizer forms words: neighbours of one class are one word.

    Parameters
    ----------
    pre_tokenizer
        One that looks at single code points.
    kinds
        A member of each class; the first stands for all code points that are not in the result.

    Returns
    -------
    dict of int to int
        `DROPPED`, `ALONE`, or 2 and the index in `kinds`; None if a code point is of none of them.
    """

    def words(text: str) -> list[tuple[int, int]]:
        return [place for _, place in pre_tokenizer.pre_tokenize_str(text)]

    usual = kinds[0]
    found: dict[int, int] = {}
    for block in blocks():
        if words(f"{usual}{block}{usual}") == [(0, len(block) + 2)]:
            continue
        classes: list[int | None] = [None] * len(block)
        for number, kind in enumerate(kinds):
            text = kind + "".join(f"{character}{kind}" for character in block)
            starts, covered = set(), [False] * len(text)
            for start, end in words(text):
                starts.add(start)
                covered[start:end] = [True] * (end - start)
            for index in range(len(block)):
                place = 2 * index + 1
                if not covered[place]:
                    classes[index] = DROPPED
                elif place not in starts and classes[index] is None:
                    classes[index] = 2 + number
        for index, character in enumerate(block):
            kind_of = classes[index]
            if kind_of is None and words(character * 2) != [(0, 1), (1, 2)]:
                return None
            if kind_of != 2:
                found[ord(character)] = ALONE if kind_of is None else kind_of
    return found
