"""Regular expressions of pre-tokenizers: tables find what the engine of the package finds."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from ibert_tvm.c_tokenizer.code_points import component
from ibert_tvm.c_tokenizer.errors import TokenizerFormError
from ibert_tvm.c_tokenizer.expression import GPT_2, Automaton, automaton
from ibert_tvm.c_tokenizer.parts import words_part
from tests.examples import examples
from tests.snapshots import Messages

from .forms import TEXTS, byte_pairs, character_pairs, compare, host_of, lines, tokenizer_of

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA_3 = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
GPT_4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split(
    pattern: str, behavior: str = "Isolated", invert: bool = False, of: str = "Regex"
) -> dict[str, Any]:
    return {"type": "Split", "pattern": {of: pattern}, "behavior": behavior, "invert": invert}


def _bytes(*steps: dict[str, Any], prefix: bool = False) -> dict[str, Any]:
    last = {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True}
    return {"type": "Sequence", "pretokenizers": [*steps, {**last, "use_regex": False}]}


FORMS: dict[str, Callable[[], dict[str, Any]]] = {
    "Llama 3": lambda: byte_pairs(pre_tokenizer=_bytes(_split(LLAMA_3))),
    "GPT-4o": lambda: byte_pairs(pre_tokenizer=_bytes(_split(GPT_4O))),
    "matches alone": lambda: byte_pairs(
        pre_tokenizer=_bytes(_split(r"\p{L}+|[^\s\p{L}]+", "Removed", invert=True))
    ),
    "behind words": lambda: byte_pairs(pre_tokenizer=_bytes(_split(r"\s+", "MergedWithPrevious"))),
    "between": lambda: byte_pairs(pre_tokenizer=_bytes(_split(r"\p{L}{2,}(?=\s)|\d\d?"))),
    "bytes alone": lambda: byte_pairs(pre_tokenizer=_bytes(prefix=True)),
    "Gemma": lambda: character_pairs(
        pre_tokenizer=_split(" ", "MergedWithPrevious", of="String"), normalizer=None
    ),
}
_CASES = (
    *("it's IT'S I'LL we'Ve x'\u017f", "a  b   \n\n  c \r\n", "1234567 12", " \n", "'s's 'S"),
    *("ab/\n//", "HTTPServer's ÀÉ'D ßSS'RE"),
)


@pytest.mark.parametrize("form", examples([*FORMS], "behind words", "bytes alone"))
def test_words_become_the_ids_of_the_package(form: str) -> None:
    tokenizer = tokenizer_of(FORMS[form]())
    texts = [*_CASES, *TEXTS, *lines(300, seed=12)]
    texts += [text.replace(" ", "  ").replace("e", "'S") for text in texts]
    assert compare(host_of(tokenizer), tokenizer, texts) > 5000


@pytest.mark.record
@pytest.mark.parametrize("form", ["Llama 3", "GPT-4o"])
def test_many_lines(form: str) -> None:
    tokenizer = tokenizer_of(FORMS[form]())
    assert compare(host_of(tokenizer), tokenizer, [*lines(100_000, seed=13)]) > 800_000


def _matches(tables: Automaton, text: str) -> list[tuple[int, int]]:
    """What the tables find, as the C form reads them."""
    found, at = [], 0
    table = tables.classes
    while at < len(text):
        state, length = 1, 0
        for taken, character in enumerate([*text[at:], None]):
            kind = tables.width - 1
            if character is not None:
                code = ord(character)
                block = table.index.values[code >> table.shift] if code < table.limit else 0
                inside = code & (1 << table.shift) - 1
                kind = table.blocks.values[(block << table.shift) | inside]
            step = tables.transitions.values[state * tables.width + kind]
            length = taken if step & 1 else length
            state = step >> 1
            if state == 0:
                break
        if length:
            found.append((at, at + length))
        at += max(1, length)
    return found


def _engine(expression: str, text: str) -> list[tuple[int, int]]:
    record = json.dumps(_split(expression, "Removed", invert=True))
    found = component("pre_tokenizer", record).pre_tokenize_str(text)
    return [place for _, place in found]


def _random(rng: random.Random, depth: int = 2) -> str:
    """An expression that matches no empty text."""
    if depth == 0 or rng.random() < 0.3:
        return rng.choice(["a", "b", "[ab]", r"\s", "[^a]", " ", r"\d", "(?i:b)", "(?i:ab|c)"])
    parts = []
    for _ in range(rng.randrange(1, 4)):
        part = _random(rng, depth - 1)
        parts.append(f"(?:{part})" if len(part) > 1 else part)
        parts[-1] += rng.choice(["", "", "*", "+", "?", "{2}", "{1,3}", "{2,}"])
    parts.append(rng.choice(["a", "b", r"\d", "(?:a|ab|b)"]))
    parts.append(rng.choice(["", "", r"(?!\S)", "(?=a)", "(?!b)"]))
    text = "".join(parts)
    return text if rng.random() < 0.5 else f"{text}|{_random(rng, depth - 1)}"


@pytest.mark.parametrize("count", examples([6, 60, 3000], 6, slow=[60], otherwise="record"))
def test_random_expressions(count: int) -> None:
    rng = random.Random(count)
    found = 0
    for _ in range(count):
        expression = _random(rng)
        try:
            tables = automaton(expression)
        except TokenizerFormError:  # a repetition in a repetition, or too many states
            continue
        for _ in range(20):
            text = "".join(rng.choices("aabbABc  1\n", k=rng.randrange(14)))
            wanted = _engine(expression, text)
            assert _matches(tables, text) == wanted, (expression, text)
            found += len(wanted)
    assert found > 20 * count


@pytest.mark.parametrize(
    "expression",
    [
        *("a*", "(?!a)", "^a", "a$", "a.", r"\bword", "(a)", "(?<=a)b", "(?i)a", "a+?", "a++"),
        *("a{,3}", "a{3,2}", "a{99}", "[a[b]]", "[a&&b]", "[]", r"\h", "(?:a", "a)", "(?!ab)"),
        *("(?i:ss)", "(?i:[a-z])", "(?i:ß)", "(?:a?)+", "(?:a|)*b", r"\p{L}(?>a)"),
    ],
)
def test_an_expression_without_tables(expression: str) -> None:
    with pytest.raises(TokenizerFormError, match="the regular expression"):
        automaton(expression)


@pytest.mark.parametrize(
    "expression",
    ["(?:" * 400 + "a", "(?!" * 400, "(?:" * 9 + "a" + "{16})" * 9, "a" * 1001, "(){16}" * 100],
    ids=["deep", "ahead", "long", "letters", "empty"],
)
def test_hostile_expressions(expression: str) -> None:
    with pytest.raises(TokenizerFormError):
        automaton(expression)


@pytest.mark.parametrize(
    "case", ["a behaviour", "an expression", "two steps", "an empty match", "a ligature"]
)
def test_refusals(case: str, messages: Messages) -> None:
    step = {
        "a behaviour": _split("a", "Contiguous"),
        "an expression": _split(r"\p{L}+|(?<=a)b"),
        "two steps": {
            "type": "Sequence",
            "pretokenizers": [_split(GPT_2), {**_bytes()["pretokenizers"][0], "use_regex": True}],
        },
        "an empty match": _split(r"\s*"),
        "a ligature": _split("(?i:first)"),
    }[case]
    with messages.raises(TokenizerFormError):
        words_part(step)
