"""The C form gives the ids of the package tokenizers, for every family and in every script."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import pre_tokenizers

from ibert_tvm.c_tokenizer.text import HostTokenizer, c_tokenizer, check_on_probes
from ibert_tvm.common.errors import ModelError
from ibert_tvm.model.tokenization import Tokenizer
from tests.examples import examples

from .forms import (
    TEXTS,
    added,
    byte_pairs,
    character_pairs,
    compare,
    host_of,
    lines,
    tokenizer_of,
    unigram,
    with_byte_pieces,
    word_piece,
)


def _bert(**changes: object) -> dict[str, Any]:
    usual = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None}
    return {"type": "BertNormalizer", **usual, "lowercase": True, **changes}


def _sequence(*names: str) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": [{"type": name} for name in names]}


FAMILIES: dict[str, Callable[[], dict[str, Any]]] = {
    "uncased": lambda: word_piece(),
    "cased": lambda: word_piece(_bert(lowercase=False)),
    "accents": lambda: word_piece(_bert(strip_accents=False)),
    "as it is": lambda: word_piece(_bert(clean_text=False, handle_chinese_chars=False)),
    "NFC": lambda: word_piece(_sequence("NFC", "Lowercase")),
    "NFKC": lambda: word_piece(_sequence("NFKC", "StripAccents")),
    "NFD": lambda: word_piece(_sequence("NFD")),
    "NFKD": lambda: word_piece(_sequence("Nmt", "NFKD", "StripAccents", "Lowercase")),
    "words": lambda: word_piece(
        pre_tokenizer={
            "type": "Sequence",
            "pretokenizers": [
                {"type": "WhitespaceSplit"},
                {"type": "Punctuation", "behavior": "Isolated"},
                {"type": "Digits", "individual_digits": False},
            ],
        }
    ),
    "runs": lambda: word_piece(pre_tokenizer={"type": "Whitespace"}),
    "trimmed": lambda: word_piece(
        added_tokens=[
            added("[MASK]", 4, lstrip=True),
            added("[SEP]", 3, rstrip=True),
            added("[SE", 2),
        ]
    ),
}

_USUAL = ("NFKC", "byte pairs", "pieces of words")
FAMILIES |= {
    "byte pairs": lambda: byte_pairs(),
    "space before": lambda: byte_pairs(
        True,
        normalizer={"type": "NFC"},
        added_tokens=[added("<mask>", 4, lstrip=True)],
        ignore_merges=True,
    ),
}

FAMILIES |= {
    "pieces": lambda: unigram(),
    "pieces of words": lambda: unigram(
        pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]),
        double=True,
    ),
    "first piece": lambda: unigram(pre_tokenizers.Metaspace(prepend_scheme="first", split=False)),
    "no space before": lambda: unigram(
        pre_tokenizers.Metaspace(prepend_scheme="never"), normalizer={"type": "Nmt"}
    ),
}

FAMILIES |= {
    "pieces of bytes": lambda: with_byte_pieces(unigram()),
    "pairs of characters": lambda: character_pairs(),
    "pairs of words": lambda: character_pairs(
        several=False,
        normalizer=None,
        pre_tokenizer={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"},
        added_tokens=[],
    ),
    "no words": lambda: word_piece(pre_tokenizer=None),
}


@pytest.mark.slow_cases(6)
@pytest.mark.parametrize("family", examples([*FAMILIES], *_USUAL))
def test_every_family_in_every_script(family: str) -> None:
    tokenizer = tokenizer_of(FAMILIES[family]())
    host = host_of(tokenizer)
    assert check_on_probes(host, tokenizer) == len(TEXTS)
    assert compare(host, tokenizer, [*lines(400, seed=1)]) > 400


@pytest.mark.record
@pytest.mark.parametrize(
    "family",
    [
        *("uncased", "NFKC", "byte pairs", "pieces of words"),
        *("pairs of characters", "pieces of bytes"),
    ],
)
def test_many_lines(family: str) -> None:
    """On 100,000 lines; with SentencePiece's map see `test_graphemes`."""
    tokenizer = tokenizer_of(FAMILIES[family]())
    assert compare(host_of(tokenizer), tokenizer, [*lines(100_000, seed=7)]) > 800_000


@pytest.mark.representatives(1)
@pytest.mark.parametrize("side", ["left", "right"])
def test_long_texts_are_cut(side: str) -> None:
    tokenizer = tokenizer_of(word_piece(), truncation_side=side, model_max_length=11)
    host = host_of(tokenizer)
    for length in (2, 3, 7, 30):
        for text in TEXTS[::3]:
            batch = tokenizer.encode([text], min(length, 11), allow_empty=True)
            assert host.ids(text.encode(), length) == batch.input_ids[0].tolist()
    with pytest.raises(ValueError, match="status 15"):
        host.ids(b"", 1)


def test_a_word_beyond_the_memory() -> None:
    tokenizer = tokenizer_of(byte_pairs())
    form = c_tokenizer(tokenizer)
    word = "abc" * 300
    with pytest.raises(ValueError, match="status 16"):
        HostTokenizer(form).ids(word.encode(), 1000)
    compare(HostTokenizer(form, work_bytes=9 * 904), tokenizer, [word, f"{word} {word}"])


@pytest.fixture(scope="module")
def minilm() -> tuple[HostTokenizer, Tokenizer]:
    from ibert_tvm.demo import find_model
    from ibert_tvm.model.tokenization import tokenizer_files

    try:
        tokenizer = Tokenizer(tokenizer_files(find_model()))
    except ModelError as error:
        pytest.skip(f"the demo's model is not installed: {error.why}")
    form = c_tokenizer(tokenizer)
    assert form.table_bytes < 260_000
    return HostTokenizer(form), tokenizer


@pytest.mark.parametrize("count", [2_000, pytest.param(100_000, marks=pytest.mark.record)])
def test_the_vocabulary_of_minilm(minilm: tuple[HostTokenizer, Tokenizer], count: int) -> None:
    texts = [text for text in lines(count, seed=count) if len(text) < 250]
    words = [f"{one} {other}" for (one, _), (other, _) in _pairs(minilm[1], count // 10)]
    assert compare(*minilm, [*texts, *words]) > 10 * count


def _pairs(tokenizer: Tokenizer, count: int) -> list[Any]:
    """Words of the vocabulary in pairs."""
    words = tokenizer.vocabulary()
    step = max(1, len(words) // count)
    return [*zip(words[::step], words[::-step], strict=False)][:count]


@pytest.mark.record
@pytest.mark.parametrize("family", ["uncased", "NFKC"])
def test_every_code_point(family: str) -> None:
    """In a word, and before a mark that other marks change places with."""
    tokenizer = tokenizer_of(FAMILIES[family]())
    host = host_of(tokenizer)
    for start in range(0, 0x110000, 0x4000):
        codes = [code for code in range(start, start + 0x4000) if not 0xD800 <= code < 0xE000]
        compare(host, tokenizer, [f"a{chr(code)}\u0334c {chr(code)}" for code in codes])
