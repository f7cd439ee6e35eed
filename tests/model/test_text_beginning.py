"""Long texts give the tokens of the package's truncation, though only their beginning is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.c_tokenizer.forms import added, byte_pairs, lines, tokenizer_of, unigram, word_piece
from tests.c_tokenizer.test_equal import FAMILIES
from tests.examples import examples

SPLIT = {"type": "Split", "pattern": {"String": " "}, "behavior": "Removed", "invert": False}
WHOLE = {"first piece", "pairs of characters", "no words"}
"""Families whose pieces may hold spaces."""


def replacing(content: str, **pattern: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def albert() -> dict[str, Any]:
    steps = [replacing('"', String="``"), {"type": "NFKD"}, replacing(" ", Regex=" {2,}")]
    return unigram(normalizer={"type": "Sequence", "normalizers": steps})


FORMS = {**FAMILIES, "albert": albert}


def texts() -> list[str]:
    """In every script; with much punctuation, and with added tokens behind one another."""
    drawn = [*lines(300, seed=5)]
    joined = [" ".join(drawn[at : at + 20]) for at in range(0, 300, 20)]
    dense = "".join(drawn[:60]).replace(" ", "")
    return [*joined, dense, "[[SEP]]a.[MASK].b" * 90, "." * 999, "a, b. c; <mask> d" * 90]


@pytest.mark.parametrize(
    "family", examples([*FAMILIES, "albert"], "uncased", "byte pairs", "albert")
)
def test_kept_tokens_are_those_of_the_package(family: str) -> None:
    tokenizer = tokenizer_of(FORMS[family]())
    package = tokenizer.fast_copy()
    for length in (4, 9, 40):
        package.enable_truncation(length)
        rows, truncated = tokenizer.rows(texts(), length)
        expected = package.encode_batch(texts())
        assert [ids for ids, _ in rows] == [one.ids for one in expected]
        assert truncated == tuple(i for i, one in enumerate(expected) if one.overflowing)
    beginning = tokenizer._beginnings.of("a word, and others " * 99, 100)
    assert len(beginning) < 110 or family in WHOLE


@pytest.mark.parametrize(
    "document",
    [
        word_piece(pre_tokenizer=SPLIT),
        word_piece(pre_tokenizer=None),
        word_piece(replacing("", String=" ")),
        word_piece(replacing(" ", String=",")),
        word_piece(replacing("x", Regex=", ")),
        word_piece({"type": "ByteLevel"}),
        byte_pairs(pre_tokenizer={"type": "ByteLevel", "add_prefix_space": False,
                                  "trim_offsets": True, "use_regex": False}),
    ],
)  # fmt: skip
def test_a_text_stays_whole_where_its_parts_are_not_known(document: dict[str, Any]) -> None:
    text = "a word, and others " * 99
    assert tokenizer_of(document)._beginnings.of(text, 100) is text


def test_added_tokens_stay_whole() -> None:
    tokens = [added("word, and", 4), added("S. O", 3, normalized=True)]
    beginnings = tokenizer_of(word_piece(added_tokens=tokens))._beginnings
    assert beginnings.of("a word, and others", 3) == "a word, and"
    assert beginnings.of("a s. o b", 2) == "a s. o"


def test_the_left_side_and_pairs_are_read_to_their_ends() -> None:
    text = "hello world " * 50 + "the end"
    left = tokenizer_of(word_piece(), truncation_side="left")
    package = left.fast_copy()
    package.enable_truncation(8, direction="left")
    assert left.rows([text], 8)[0][0][0] == package.encode(text).ids
    right = tokenizer_of(word_piece())
    package.enable_truncation(9)
    for pair in ((text, "the end"), ("the end", text), (text, text)):
        np.testing.assert_array_equal(right.rows([pair], 9)[0][0][0], package.encode(*pair).ids)
