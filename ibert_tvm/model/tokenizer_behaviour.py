"""What a tokenizer makes of packaged texts, as digests that every artefact keeps.

The package tokenizers is enough to compute them, so that `ibert verify` needs neither torch nor
transformers to prove that a tokenizer still does what it did when the model was quantised.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from ..common.errors import InputError
from .tokenization import Tokenizer

VERSION = "1"
"""Of `PROBES` and of what is hashed; other versions cannot be compared."""

PROBES: tuple[str | tuple[str, str], ...] = (
    "The cat sat on the mat.",
    "CAPITALS and MiXeD Case, ÀÉÎÕÜ, naïve façade, Straße, ΣΊΣΥΦΟΣ",
    "  spaces   before,\tbetween\nlines and behind  ",
    "",
    " ",
    "don't can't it's 3.14 1,000 €5 50% a+b=c #tag @name https://example.org/x?y=1",
    "[CLS] [SEP] [MASK] [PAD] [UNK] <s> </s> <mask> <pad> <unk> <|endoftext|>",
    "emoji 😀 👩‍👩‍👧‍👦 🇩🇪 and e\u0301 combining",
    "שלום עולם مرحبا بالعالم हिन्दी ไทย",
    "你好，世界 こんにちは 안녕하세요",
    "control \x00\x07\x1b\x7f\u200b\u00ad\ufeff\ufffd characters\u00a0and\u2003spaces",
    "supercalifragilisticexpialidocious antidisestablishmentarianism",
    ("a question of one text?", "An answer in another, with CAPITALS."),
    ("", "only the second"),
    ("long " * 40, "longer " * 80),
    "word " * 200,
)
"""Texts and pairs on which tokenizers are compared."""
_LONG = 2**20
PROBE_LENGTHS = (_LONG, 24)
"""Tokens that every probe is cut to: not at all, and most of them."""
_WORDS = 64
"""Of the vocabulary, in one text."""
_LONGEST_WORD = 64
"""Characters; longer words are in the vocabulary's digest alone."""
_HEX_DIGITS = 8
"""Of the digest of a part, which only says where a difference is."""
_SHOWN = 400
"""Characters of a part in a finding."""

Rows = tuple[list[int], list[int], list[int]]
ROWS = ("ids", "token types", "mask")
"""What `probe_rows` returns."""


def probe_rows(tokenizer: Tokenizer, probe: str | tuple[str, str], length: int) -> Rows:
    """Ids, token types and mask of a probe that is cut to so many tokens; empty without tokens."""
    try:
        batch = tokenizer.encode([probe], length, allow_empty=True)
    except InputError:
        return [], [], []
    arrays = (batch.input_ids, batch.token_type_ids, batch.attention_mask)
    ids, types, mask = (array[0].tolist() for array in arrays)
    return ids, types, mask


def behaviour(tokenizer: Tokenizer) -> dict[str, str]:
    """Digests of what a tokenizer does.

    Returns
    -------
    dict of str to str
        ``version`` of the probes; ``sha256`` over ids, token types and masks of the probes, over
        the vocabulary, texts of all its words, and the settings; ``parts``, eight hexadecimal
        digits of each of these, to name what differs; ``compared_with``, the library that gave the
        same when the tokenizer was imported, where one did.

    Raises
    ------
    ModelError
        If the tokenizer fails on a text.
    """
    digests = [part.digest for part in _parts(tokenizer)]
    return {
        "version": VERSION,
        "sha256": hashlib.sha256("".join(digests).encode()).hexdigest(),
        "parts": " ".join(digest[:_HEX_DIGITS] for digest in digests),
        **({"compared_with": tokenizer.compared_with} if tokenizer.compared_with else {}),
    }


def changes(tokenizer: Tokenizer, recorded: Mapping[str, str]) -> list[str]:
    """What a tokenizer does otherwise than it was recorded; empty if it does the same.

    Raises
    ------
    ModelError
        If the tokenizer fails on a text.
    """
    if behaviour(tokenizer)["sha256"] == recorded.get("sha256"):
        return []
    found = [
        f"{part.name}: {part.summary}, which is not what was recorded"
        for part, digest in zip(_parts(tokenizer), recorded.get("parts", "").split(), strict=False)
        if part.digest[:_HEX_DIGITS] != digest
    ]
    return found or ["the recorded digest is not that of the tokenizer"]


def differences(one: Tokenizer, other: Tokenizer) -> list[str]:
    """Where two tokenizers differ, with what both make of it.

    Raises
    ------
    ModelError
        If one of them fails on a text.
    """
    return [
        f"{mine.name}: {_first(mine, theirs)}, and of the model's tokenizer {_first(theirs, mine)}"
        for mine, theirs in zip(_parts(one), _parts(other), strict=True)
        if mine.content != theirs.content
    ]


@dataclass(frozen=True)
class _Part:
    """Something that is hashed: a JSON-able list, and what a finding says of it."""

    name: str
    content: list[Any]
    summary: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.content).encode()).hexdigest()


def _parts(tokenizer: Tokenizer) -> Iterator[_Part]:
    """All that is hashed; an exchange of any two words changes a part."""
    special = sorted(tokenizer.special_tokens.items())
    limit, side = tokenizer.model_max_length, tokenizer.truncation_side
    settings = [tokenizer.pad_id, limit, side, *special]
    yield _Part("settings", settings, _short(settings))
    vocabulary = tokenizer.vocabulary()
    yield _Part("vocabulary", vocabulary, f"{len(vocabulary)} tokens")
    words = sorted(word for word, _ in vocabulary if len(word) <= _LONGEST_WORD)
    texts = [" ".join(words[at : at + _WORDS]) for at in range(0, len(words), _WORDS)]
    ids = [*tokenizer.ids_of(texts)]
    yield _Part("texts of all words", ids, f"{sum(map(len, ids))} ids")
    for probe in PROBES:
        for length in PROBE_LENGTHS:
            rows = [*probe_rows(tokenizer, probe, length)]
            name = f"{probe!r}" if length == _LONG else f"{probe!r} cut to {length} tokens"
            yield _Part(name, rows, f"ids {_short(rows[0])}")


def _first(part: _Part, other: _Part) -> str:
    """The first entry that another does not have: of a probe its ids, or else types or mask."""
    pairs = zip_longest(part.content, other.content)
    return _short(next((mine for mine, theirs in pairs if mine != theirs), None))


def _short(entry: object) -> str:
    text = json.dumps(entry, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ..."
