"""Pre-tokenizers, models and templates as tables and parameters of the C form, one record each."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..common.strict_json import JsonDict
from .code_points import ALONE, DROPPED, component, word_classes
from .errors import check_plain, refused
from .tables import Array, CodePointTable
from .trie import SAMPLED, Trie


@dataclass(frozen=True)
class Part:
    """A part of the C source.

    Attributes
    ----------
    template
        File that writes it.
    values
        What the template is rendered with, beside the tables.
    tables, arrays
        What it reads.
    """

    template: str
    values: dict[str, object] = field(default_factory=dict)
    tables: tuple[CodePointTable, ...] = ()
    arrays: tuple[Array, ...] = ()


_KINDS = ("a", "1", "!", "_", "ก")
"""Members of the classes that pre-tokenizers tell apart; the first is of the most frequent."""
_USUAL = 2
"""Class of the first of them."""
_BY_CLASS = ("BertPreTokenizer", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit")
_ISOLATED = {"behavior": "Isolated", "individual_digits": True}


def words_part(record: JsonDict | None) -> Part:
    """How text is cut into words.

    Parameters
    ----------
    record
        ``pre_tokenizer`` of tokenizer.json.

    Raises
    ------
    TokenizerFormError
        If it is not implemented.
    """
    steps = _flat(record, "pretokenizers")
    for step in steps:
        if step["type"] not in _BY_CLASS:
            raise refused("pre_tokenizer", f"{step['type']} is none of {', '.join(_BY_CLASS)}")
        check_plain("pre_tokenizer", step, _ISOLATED)
    if not steps:
        raise refused("pre_tokenizer", "there is none")
    table = _class_table(json.dumps(record))
    return Part("classes.c.in", {"DROPPED": DROPPED, "ALONE": ALONE, "USUAL": _USUAL}, (table,))


@functools.cache
def _class_table(record: str) -> CodePointTable:
    """Of a pre-tokenizer of tokenizer.json; it takes a second."""
    classes = word_classes(component("pre_tokenizer", record), _KINDS)
    if classes is None:
        raise refused("pre_tokenizer", "it does not look at single characters")
    return CodePointTable.of("word_class", {code: one ^ _USUAL for code, one in classes.items()})


def _flat(record: JsonDict | None, key: str) -> list[JsonDict]:
    """Steps of a component, sequences taken apart."""
    if record is None:
        return []
    if record["type"] == "Sequence":
        return [step for part in record[key] for step in _flat(part, key)]
    return [record]


def model_part(record: JsonDict) -> Part:
    """How words become tokens; `record` is ``model`` of tokenizer.json.

    Raises
    ------
    TokenizerFormError
        If it is not implemented.
    """
    build = _MODELS.get(record["type"])
    if build is None:
        raise refused("model", f"{record['type']} is none of {', '.join(_MODELS)}")
    return build(record)


def _word_piece(record: JsonDict) -> Part:
    vocabulary, unknown = record["vocab"], record["unk_token"]
    if unknown not in vocabulary:
        raise refused("model", f"the vocabulary lacks unk_token {unknown!r}")
    trie = Trie.of("vocabulary", {word.encode(): number for word, number in vocabulary.items()})
    continuing = trie.find(record["continuing_subword_prefix"].encode())
    longest = int(record["max_input_chars_per_word"])
    values = {
        "SAMPLED": SAMPLED,
        "unknown": vocabulary[unknown],
        "continuing": "NOWHERE" if continuing is None else continuing,
        "longest_word": longest,
        "work_bytes": 4 * longest,
        "bounded": True,
    }
    return Part("word_piece.c.in", values, arrays=trie.arrays)


_MODELS: dict[str, Callable[[JsonDict], Part]] = {"WordPiece": _word_piece}


@dataclass(frozen=True)
class Template:
    """Special tokens before and behind a text."""

    before: Sequence[int]
    behind: Sequence[int]

    @property
    def size(self) -> int:
        """Number of special tokens."""
        return len(self.before) + len(self.behind)

    @classmethod
    def of(cls, fast: Any, has_types: bool) -> Template:
        """What a `tokenizers.Tokenizer` puts round a text.

        Raises
        ------
        TokenizerFormError
            If it cannot be seen, or tokens get types.
        """
        encoding = fast.encode("a")
        places = [number for number, text in enumerate(encoding.sequence_ids) if text is not None]
        if not places or places != [*range(places[0], places[-1] + 1)]:
            raise refused("post_processor", "it shows no place for the tokens of a text")
        if has_types and any(encoding.type_ids):
            raise refused("post_processor", "tokens of a single text have types")
        return cls(encoding.ids[: places[0]], encoding.ids[places[-1] + 1 :])
