"""Pre-tokenizers, models and templates as tables and parameters of the C form, one record each."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

import numpy as np

from ..common.strict_json import JsonDict
from .code_points import ALONE, DROPPED, component, word_classes
from .errors import check_plain, refused
from .expression import GPT_2, automaton
from .tables import Array, CodePointTable, bits_of

# The vocabulary: a trie of bytes whose shape takes two bits a node (LOUDS).
#
# Nodes are numbered breadth first, so that children follow one another, and for each node in turn
# there are as many ones as it has children, and a zero (Jacobson, *Space-efficient static trees and
# graphs*, 1989). The children of a node are found by counting zeros, from a sampled place on.

SAMPLED = 32
"""Nodes between two that have their place stored."""


@dataclass(frozen=True)
class Trie:
    """Keys with numbers, as arrays; and the node of every beginning of a key."""

    arrays: tuple[Array, ...]
    numbering: Mapping[bytes, int]

    @classmethod
    def of(cls, name: str, numbers: Mapping[bytes, int]) -> Trie:
        """Build it; a key of no bytes is never looked for, and left out."""
        beginnings = {key[:length] for key in numbers for length in range(len(key) + 1)} | {b""}
        nodes = sorted(beginnings, key=lambda node: (len(node), node))
        numbering = {node: number for number, node in enumerate(nodes)}
        degrees = [0] * len(nodes)
        for node in nodes[1:]:
            degrees[numbering[node[:-1]]] += 1
        terminal = [node in numbers and node != b"" for node in nodes]
        shape: list[bool] = []
        places: list[int] = []
        ranks: list[int] = []
        for number, degree in enumerate(degrees):
            if number % SAMPLED == 0:
                places.append(len(shape))
                ranks.append(sum(terminal[number - SAMPLED : number]) + ranks[-1] if ranks else 0)
            shape += [True] * degree + [False]
        labels = [node[-1] if node else 0 for node in nodes]
        values = [numbers[node] for node, ends in zip(nodes, terminal, strict=True) if ends]
        arrays = (
            Array(f"{name}_labels", labels),
            Array(f"{name}_shape", bits_of(shape)),
            Array(f"{name}_places", places),
            Array(f"{name}_ends", bits_of(terminal)),
            Array(f"{name}_ranks", ranks),
            Array(f"{name}_values", values),
        )
        return cls(arrays, numbering)

    def find(self, key: bytes) -> int | None:
        """Node of a key or a beginning of one."""
        return self.numbering.get(key)


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
    if steps and steps[-1]["type"] == "ByteLevel":
        return _byte_level(steps)
    names = [step["type"] for step in steps]
    if not steps:
        return _metaspace({"replacement": " ", "prepend_scheme": "never", "split": False}, False)
    if names == ["Split"]:
        return _split(steps[0])
    if names in (["Metaspace"], ["WhitespaceSplit", "Metaspace"]):
        return _metaspace(steps[-1], by_spaces=len(steps) > 1)
    for step in steps:
        if step["type"] not in _BY_CLASS:
            raise refused("pre_tokenizer", f"{step['type']} is none of {', '.join(_BY_CLASS)}")
        check_plain("pre_tokenizer", step, _ISOLATED)
    table = _class_table(json.dumps(record))
    return Part("classes.c.in", {"DROPPED": DROPPED, "ALONE": ALONE, "USUAL": _USUAL}, (table,))


@functools.cache
def _class_table(record: str) -> CodePointTable:
    """Of a pre-tokenizer of tokenizer.json; it takes a second."""
    classes = word_classes(component("pre_tokenizer", record), _KINDS)
    if classes is None:
        raise refused("pre_tokenizer", "it does not look at single characters")
    return CodePointTable.of("word_class", {code: one ^ _USUAL for code, one in classes.items()})


def _byte_level(steps: Sequence[JsonDict]) -> Part:
    """The last step writes bytes as characters; words are its own, or those of the steps before."""
    last, before = steps[-1], steps[:-1]
    again = any(step["type"] == "ByteLevel" for step in before)
    if again or (before and (last["use_regex"] or last["add_prefix_space"])):
        raise refused("pre_tokenizer", "ByteLevel cuts or begins words that others made")
    made = words_part({"type": "Sequence", "pretokenizers": before})
    if last["use_regex"]:
        made = _expression(GPT_2, {"between": True, "joined": False})
    values = {**made.values, "byte_level": True, "prefix_space": bool(last["add_prefix_space"])}
    return replace(made, values=values)


_CUTS: dict[tuple[str, bool], dict[str, object]] = {
    ("Isolated", False): {"between": True, "joined": False},
    ("Isolated", True): {"between": True, "joined": False},
    ("Removed", True): {"between": False, "joined": False},
    ("MergedWithPrevious", False): {"between": True, "joined": True},
}
"""By behaviour, and whether it is that of what is between: whether this makes words, or begins
them."""


def _split(step: JsonDict) -> Part:
    """Words by a regular expression."""
    how = (step["behavior"], bool(step["invert"]))
    if how not in _CUTS:
        inverted = " inverted" if how[1] else ""
        raise refused("pre_tokenizer", f"Split has the behaviour {how[0]!r}{inverted}")
    pattern = step["pattern"]
    expression = pattern["Regex"] if "Regex" in pattern else re.escape(pattern["String"])
    return _expression(expression, _CUTS[how])


def _expression(expression: str, cuts: dict[str, object]) -> Part:
    made = automaton(expression)
    values = {"width": made.width, **cuts}
    return Part("expression.c.in", values, (made.classes,), (made.transitions,))


def _metaspace(step: JsonDict, by_spaces: bool) -> Part:
    """SentencePiece's words; `by_spaces` if text is cut at any white space before."""
    scheme = step["prepend_scheme"]
    if scheme == "first" and by_spaces:
        raise refused("pre_tokenizer", "Metaspace has prepend_scheme 'first' behind a splitter")
    values = {
        "mark": ord(step["replacement"]),
        "scheme": scheme,
        "split": bool(step.get("split", True)),
        "by_spaces": by_spaces,
    }
    tables = (_class_table(json.dumps({"type": "WhitespaceSplit"})),) if by_spaces else ()
    return Part("metaspace.c.in", values, tables)


def byte_alphabet() -> dict[str, int]:
    """Bytes by the characters that byte-level vocabularies write them with."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): b for i, b in enumerate(others)}


def _flat(record: JsonDict | None, key: str) -> list[JsonDict]:
    """Steps of a component, sequences taken apart."""
    if record is None:
        return []
    if record["type"] == "Sequence":
        return [step for part in record[key] for step in _flat(part, key)]
    return [record]


def model_part(record: JsonDict, byte_level: bool) -> Part:
    """How words become tokens.

    Parameters
    ----------
    record
        ``model`` of tokenizer.json.
    byte_level
        Whether its vocabulary writes each byte as a character.

    Raises
    ------
    TokenizerFormError
        If it is not implemented.
    """
    build = _MODELS.get(record["type"])
    if build is None:
        raise refused("model", f"{record['type']} is none of {', '.join(_MODELS)}")
    return build(record, byte_level)


def _word_piece(record: JsonDict, _byte_level: bool) -> Part:
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
        "per_byte": 0,
        "bounded": True,
    }
    return Part("word_piece.c.in", values, arrays=trie.arrays)


def _byte_tokens(record: JsonDict, numbers: Mapping[str, int]) -> tuple[Array, ...]:
    """Ids of the tokens of bytes, if there are such for characters that the vocabulary lacks."""
    if not record.get("byte_fallback"):
        return ()
    missing = [name for name in _BYTE_NAMES if name not in numbers]
    if missing:
        raise refused("model", f"byte_fallback is set, and the vocabulary lacks {missing[0]}")
    return (Array("byte_tokens", [numbers[name] for name in _BYTE_NAMES]),)


def _pairs(record: JsonDict, byte_level: bool) -> Part:
    """A merge is found by the token that it makes, and the bytes of its left part."""
    numbers: dict[str, int] = record["vocab"]
    fallback: tuple[Array, ...] = ()
    if byte_level:
        check_plain("model", {**record, "vocab": None, "merges": None}, _PLAIN_PAIRS)
        alphabet = byte_alphabet()
        written = {
            token: bytes(map(alphabet.__getitem__, token))
            for token in numbers
            if {*token} <= alphabet.keys()
        }
        missing = {bytes((byte,)) for byte in range(256)} - {*written.values()}
        if missing:
            raise refused("model", f"the vocabulary lacks the byte {min(missing)[0]}")
    else:
        free = dict.fromkeys(("vocab", "merges", "unk_token", "fuse_unk"))  # nothing is unknown
        check_plain("model", {**record, **free}, {**_PLAIN_PAIRS, "byte_fallback": True})
        fallback = _byte_tokens(record, numbers)
        if not fallback:
            raise refused("model", "BPE of characters has no byte_fallback")
        written = {token: token.encode() for token in numbers}
    merges: dict[int, dict[int, int]] = {}
    for rank, merge in enumerate(record["merges"]):
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        if fallback and not {left, right, left + right}.isdisjoint(_BYTE_NAMES):
            raise refused("model", f"the token of a byte is part of the merge {left!r} {right!r}")
        merges.setdefault(numbers[left + right], {})[len(written[left])] = rank
    made = [rank for number in sorted(merges) for rank in merges[number].values()]
    several = len(made) > len(merges)
    ranked = several or made != sorted(made)
    listed = [sorted(merges.get(number, {}).items()) for number in range(1 + max(numbers.values()))]
    if several:
        columns = [pair for pairs in listed for pair in pairs]
        starts = [0, *itertools.accumulate(map(len, listed))]
    else:
        columns, starts = [pairs[0] if pairs else (0, 0) for pairs in listed], []
    trie = Trie.of("vocabulary", {written[token]: numbers[token] for token in written})
    arrays = (
        Array("merge_lefts", [left for left, _ in columns]),
        *([Array("merge_ranks", [rank for _, rank in columns])] if ranked else []),
        *([Array("merge_starts", starts)] if several else []),
    )
    values = {
        "SAMPLED": SAMPLED,
        "several": several,
        "ranked": ranked,
        "byte_fallback": bool(fallback),
        "ignore_merges": bool(record.get("ignore_merges")),
        **_working(_LONGEST_WORD, 8),
    }
    return Part("pairs.c.in", values, arrays=(*trie.arrays, *fallback, *arrays))


def _unigram(record: JsonDict, _byte_level: bool) -> Part:
    """Scores are doubles in the package: their sums are those of doubles, bit for bit."""
    check_plain("model", {**record, "vocab": None, "unk_id": None}, {"byte_fallback": True})
    if record["unk_id"] is None:
        raise refused("model", "there is no unk_id")
    scores = [float(score) for _, score in record["vocab"]]
    if any(score > 0 or 0 < -score < _SMALLEST or not isfinite(score) for score in scores):
        raise refused("model", "a score is above 0, infinite, or hardly below 0")
    # Of equal pieces the last counts.
    numbers = {text: number for number, (text, _) in enumerate(record["vocab"])}
    trie = Trie.of("vocabulary", {text.encode(): number for text, number in numbers.items()})
    fallback = _byte_tokens(record, numbers)
    magnitudes = -np.array(scores) + 0.0
    narrow = magnitudes.astype(np.float32)
    single = bool((narrow == magnitudes).all())
    if single:
        arrays = [Array("piece_scores", narrow.view(np.uint32).tolist())]
    else:
        bits = magnitudes.view(np.uint64)
        high, low = (bits >> np.uint64(32)).tolist(), (bits & np.uint64(2**32 - 1)).tolist()
        arrays = [Array("piece_scores_high", high), Array("piece_scores_low", low)]
    unknown = np.float64(_UNKNOWN_PENALTY - min(scores)).view(np.uint64)
    values = {
        "SAMPLED": SAMPLED,
        "unknown": record["unk_id"],
        "unknown_score": f"{unknown:#x}",
        "single": single,
        "byte_fallback": bool(fallback),
        **_working(_LONGEST_WORD, 16),
    }
    return Part("unigram.c.in", values, arrays=(*trie.arrays, *fallback, *arrays))


_SMALLEST = 2.0**-100
"""Of what scores are below 0, so that float has them with all bits."""
_UNKNOWN_PENALTY = 10.0
"""What an unknown character scores less than the worst piece."""


def _working(longest: int, per_byte: int) -> dict[str, object]:
    """Memory for words that may be longer: of bytes as they are, and for each of them more."""
    work = longest * (1 + per_byte)
    return {"longest_word": longest, "per_byte": per_byte, "work_bytes": work, "bounded": False}


_LONGEST_WORD = 512
"""Bytes of a word that the memory is for that headers ask for."""
_BYTE_NAMES = tuple(f"<0x{byte:02X}>" for byte in range(256))
_PLAIN_PAIRS: dict[str, object] = {"ignore_merges": True}
_MODELS: dict[str, Callable[[JsonDict, bool], Part]] = {
    "BPE": _pairs,
    "Unigram": _unigram,
    "WordPiece": _word_piece,
}


@dataclass(frozen=True)
class Template:
    """Special tokens round one text, or two.

    Attributes
    ----------
    special
        Ids and types of those before the first text, and behind each.
    types
        Of the tokens of each text.
    """

    special: tuple[tuple[tuple[int, int], ...], ...]
    types: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of special tokens."""
        return sum(map(len, self.special))

    @classmethod
    def of(cls, fast: Any, has_types: bool, texts: int = 1) -> Template:
        """What a `tokenizers.Tokenizer` makes of one text, or of two.

        Raises
        ------
        TokenizerFormError
            If it cannot be seen, or tokens of a single text get types.
        """
        encoding = fast.encode(*["a"] * texts)
        types = encoding.type_ids if has_types else [0] * len(encoding.ids)
        tokens = [*zip(encoding.ids, types, strict=True)]
        special: list[tuple[tuple[int, int], ...]] = []
        kinds: list[int] = []
        end = 0
        for text in range(texts):
            places = [at for at, found in enumerate(encoding.sequence_ids) if found == text]
            given = {types[place] for place in places}
            if not places or places != [*range(places[0], places[-1] + 1)] or places[0] < end:
                raise refused("post_processor", f"it shows no place for the tokens of {_OF[texts]}")
            if len(given) > 1:
                raise refused("post_processor", "tokens of one text have several types")
            special.append(tuple(tokens[end : places[0]]))
            kinds += given
            end = places[-1] + 1
        if texts == 1 and any(types):
            raise refused("post_processor", "tokens of a single text have types")
        return cls((*special, tuple(tokens[end:])), tuple(kinds))


_OF = {1: "a text", 2: "two texts, one behind the other"}
