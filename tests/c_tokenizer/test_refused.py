"""What the C form does not implement is refused, with its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import pre_tokenizers

from ibert_tvm.c_tokenizer.errors import TokenizerFormError
from ibert_tvm.c_tokenizer.text import c_tokenizer, check_same
from ibert_tvm.common.errors import VerificationError
from tests.snapshots import Messages

from .forms import (
    BYTE_PIECES,
    added,
    byte_pairs,
    character_pairs,
    tokenizer_of,
    unigram,
    word_piece,
)

_REPLACE = {"type": "Replace", "pattern": {"String": "ab"}, "content": "c"}


def _unigram(score: float, unknown: int | None) -> dict[str, Any]:
    return {"type": "Unigram", "vocab": [["a", score]], "unk_id": unknown, "byte_fallback": False}


def _characters(vocabulary: list[str], *merges: list[str], **changes: object) -> dict[str, Any]:
    document = character_pairs()
    numbers = {piece: number for number, piece in enumerate(vocabulary)}
    document["model"] |= {"vocab": numbers, "merges": [*merges], "unk_token": None, **changes}
    return {**document, "added_tokens": []}


REFUSED: dict[str, Callable[[], dict[str, Any]]] = {
    "a normaliser": lambda: word_piece({"type": "Strip", "strip_left": True, "strip_right": True}),
    "a replacement": lambda: word_piece(_REPLACE),
    "a pre-tokenizer": lambda: word_piece(pre_tokenizer={"type": "UnicodeScripts"}),
    "how punctuation is cut": lambda: word_piece(
        pre_tokenizer={"type": "Punctuation", "behavior": "MergedWithNext"}
    ),
    "a model": lambda: word_piece(model={"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}),
    "a byte less": lambda: byte_pairs(merges=[], vocab={"a": 0}),
    "a suffix": lambda: byte_pairs(end_of_word_suffix="</w>"),
    "characters alone": lambda: _characters(["a"], byte_fallback=False),
    "a byte's token less": lambda: _characters(["a", *BYTE_PIECES[1:]]),
    "a merge of a byte": lambda: _characters([*BYTE_PIECES, "a", "a<0x41>"], ["a", "<0x41>"]),
    "a good score": lambda: unigram(model=_unigram(1.0, 0)),
    "nothing unknown": lambda: unigram(model=_unigram(-1.0, None)),
    "first of words": lambda: unigram(
        pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="first")]
        )
    ),
    "single words": lambda: word_piece(added_tokens=[added("[MASK]", 4, single_word=True)]),
    "added behind": lambda: word_piece(added_tokens=[added("[MASK]", 4, normalized=True)]),
    "a space in an added token": lambda: word_piece(added_tokens=[added(" x", 4)]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_part_without_a_c_form(case: str, messages: Messages) -> None:
    with messages.raises(TokenizerFormError):
        c_tokenizer(tokenizer_of(REFUSED[case]()))


def test_an_unknown_token_that_is_missing(messages: Messages) -> None:
    document = word_piece()
    document["model"]["unk_token"] = "[NONE]"
    with messages.raises(TokenizerFormError):
        c_tokenizer(tokenizer_of(document))


def test_other_ids(messages: Messages) -> None:
    with messages.raises(VerificationError):
        check_same("a text", [1, 2], [1, 3])
