"""What a tokenizer may consist of, how much longer a text may get in it, and where it may be cut.

The package tokenizers computes whatever a file asks for: replacements that multiply until memory
ends, templates longer than any limit, ids drawn at random. Only what is listed here is used.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from ..common.errors import InputError, ModelError
from ..common.strict_json import JsonDict

MAX_GROWTH = 64
"""Bytes that one normaliser, all pre-tokenizers or all decoders make of one."""
MAX_EXPANDED_BYTES = 8 * 2**20
"""Of a normalised text: twice those of the longest text."""
MAX_ADDED_TOKENS = 64
"""That post-processors put around a text or a pair."""
MAX_TYPE_ID = 255
MAX_HOLES = 65_536
"""Ids between those of a vocabulary that no token has: tokenizers lists each when it saves one."""
MAX_AFFIX = 64
"""Characters of the prefix or suffix of parts of words."""
MAX_WORD = 1_000
"""Characters of the longest word that WordPiece takes apart, in quadratic time."""

_CHARSMAP = re.compile(rb'"precompiled_charsmap"\s*:\s*"([^"]*)')
_ASCII_ESCAPE = re.compile(rb"\\u00([0-7][0-9a-fA-F])")
_SIZE_BYTES = 4
_Growth = int | Callable[[JsonDict], int]


def _replaced(step: JsonDict) -> int:
    """An expression may match between any two characters; a string matches its own length."""
    content = len(step["content"].encode())
    pattern = len(step["pattern"].get("String", "").encode())
    return max(1, -(-content // pattern)) if pattern else 1 + content


def _precompiled(step: JsonDict) -> int:
    """The longest replacement: they end in a zero byte each."""
    text = step["precompiled_charsmap"]
    content = base64.b64decode(text) if isinstance(text, str) else bytes(text)
    start = _SIZE_BYTES + _trie_size(content)
    return max(1, *map(len, content[start:].split(b"\0")))


@dataclass(frozen=True)
class Component:
    """What is known of a kind of normalisers, pre-tokenizers or decoders.

    Attributes
    ----------
    growth
        Bytes that it makes of one byte of UTF-8, at most.
    cuts
        Expression, without a width, for places between two ASCII characters at which a text may be
        cut: what stands before gives the same without what stands behind. Empty where none is
        known. It is given the component as in tokenizer.json if that decides.
    """

    growth: _Growth
    cuts: str | Callable[[JsonDict], str] = ""

    def cuts_of(self, step: JsonDict) -> str:
        """Evaluate `cuts`."""
        return self.cuts(step) if callable(self.cuts) else self.cuts


_ASCII = "(?<=[!-~])(?=[ -~])"
_SPACES = "(?<=[!-~])(?= [0-9A-Za-z])"
_PUNCTUATION = "(?<=[!-/:-@[-`{-~])(?=[!-~])"
_GRAPHIC = [chr(code) for code in range(ord("!"), ord("~") + 1)]


def _cuts_of_replace(step: JsonDict) -> str:
    """Of a string without spaces, or of several spaces."""
    pattern = step["pattern"]
    if pattern.get("Regex") == " {2,}":
        return _ASCII
    return _SPACES if {*pattern.get("String", " ")} <= {*_GRAPHIC} else ""


NORMALIZERS: Mapping[str, Component] = {
    # Decomposed, lower case, spaces around ideographs.
    "BertNormalizer": Component(12, _ASCII),
    "ByteLevel": Component(2),
    "Lowercase": Component(2, _ASCII),
    "NFC": Component(3, _ASCII),
    "NFD": Component(3, _ASCII),
    "NFKC": Component(11, _ASCII),
    "NFKD": Component(11, _ASCII),
    "Nmt": Component(1, _ASCII),
    "Precompiled": Component(_precompiled, _ASCII),
    "Prepend": Component(lambda step: 1 + len(step["prepend"].encode()), _ASCII),
    "Replace": Component(_replaced, _cuts_of_replace),
    "Strip": Component(1, _ASCII),
    "StripAccents": Component(1, _ASCII),
}
PRE_TOKENIZERS: Mapping[str, Component] = {
    "BertPreTokenizer": Component(1, f"{_SPACES}|{_PUNCTUATION}"),
    "ByteLevel": Component(4, lambda step: _SPACES if step["use_regex"] else ""),
    "CharDelimiterSplit": Component(1),
    "Digits": Component(1),
    "FixedLength": Component(1),
    "Metaspace": Component(6, lambda step: _SPACES if step["split"] else ""),
    "Punctuation": Component(1),
    "Split": Component(1),
    "UnicodeScripts": Component(1),
    "Whitespace": Component(1, _SPACES),
    "WhitespaceSplit": Component(1, _SPACES),
}
DECODERS: Mapping[str, Component] = {
    "BPEDecoder": Component(2),
    "ByteFallback": Component(1),
    "ByteLevel": Component(1),
    "CTC": Component(2),
    "Fuse": Component(1),
    "Metaspace": Component(1),
    "Replace": Component(_replaced),
    "Strip": Component(1),
    "WordPiece": Component(2),
}
_POST_PROCESSORS = ("BertProcessing", "ByteLevel", "RobertaProcessing", "TemplateProcessing")
_MODELS = ("BPE", "Unigram", "WordLevel", "WordPiece")
_SEQUENCES = ("normalizers", "pretokenizers", "processors", "decoders")


def _trie_size(charsmap: bytes) -> int:
    """A map of characters begins with the bytes of its trie, and their number before them."""
    return int.from_bytes(charsmap[:_SIZE_BYTES], "little")


def check_charsmap(charsmap: bytes) -> None:
    """Refuse a map of characters that says it is larger than it is.

    The package tokenizers takes the memory that the map asks for, before it looks at the map.

    Raises
    ------
    ModelError
        If it does.
    """
    if _trie_size(charsmap) > len(charsmap):
        why = f"a map of {len(charsmap)} bytes says that {_trie_size(charsmap)} follow"
        raise _refused("normalizer", why)


def check_charsmaps(tokenizer_json: bytes) -> None:
    """Do so with every map in a file, whatever escapes its name is written with."""
    content = tokenizer_json
    if b"\\u00" in content:
        content = _ASCII_ESCAPE.sub(lambda found: bytes.fromhex(found[1].decode()), content)
    for found in _CHARSMAP.finditer(content):
        digits = found[1].replace(b"\\", b"")
        check_charsmap(base64.b64decode(digits[: len(digits) // 4 * 4]))


def check_vocabulary(ids: Iterable[object]) -> None:
    """Refuse ids of a vocabulary, before it is saved, that leave too many others without a token.

    Raises
    ------
    ModelError
        If there are more than `MAX_HOLES`.
    """
    numbers = [number for number in ids if type(number) is int]
    holes = max(numbers, default=0) - len(numbers)
    if holes > MAX_HOLES:
        why = f"its largest id is {max(numbers)}, and it has {len(numbers)} tokens"
        raise _refused("model.vocab", why)


def check_components(tokenizer: Any) -> Expansion:
    """Refuse a `tokenizers.Tokenizer` with a part that is not listed or not bounded.

    Returns
    -------
    Expansion
        What its normalisers make of texts.

    Raises
    ------
    ModelError
        Names the part.
    """
    _check_model(tokenizer.model)
    _check_growth("pre_tokenizer", tokenizer.pre_tokenizer, PRE_TOKENIZERS)
    _check_growth("decoder", tokenizer.decoder, DECODERS)
    _check_post_processors(tokenizer.post_processor)
    steps = []
    for normalizer in _flat(tokenizer.normalizer):
        growth = _growth_of("normalizer", _state(normalizer), NORMALIZERS)
        if growth > MAX_GROWTH:
            raise _refused("normalizer", f"{_state(normalizer)['type']} {_makes(growth)}")
        steps.append((normalizer, growth))
    return Expansion(steps)


def cuts_of(tokenizer: Any) -> re.Pattern[str] | None:
    """Where texts of a `tokenizers.Tokenizer` that was checked may be cut; None if that is unknown.

    The first pre-tokenizer has to split there: what follows sees the parts one by one.
    """
    steps = [(NORMALIZERS, step) for step in _steps(tokenizer.normalizer)]
    steps += [(PRE_TOKENIZERS, step) for step in _steps(tokenizer.pre_tokenizer)[:1]]
    cuts = [kinds[step["type"]].cuts_of(step) for kinds, step in steps]
    if tokenizer.pre_tokenizer is None or not all(cuts) or not _keeps_words(tokenizer.normalizer):
        return None
    return re.compile("".join(f"(?:{expression})" for expression in cuts))


def _keeps_words(normalizer: Any) -> bool:
    """Whether characters between spaces stay such, whatever it makes of them."""
    words = ["a", *_GRAPHIC]
    if normalizer is not None:
        words = normalizer.normalize_str(" ".join(words)).split(" ")
    return len(words) == 1 + len(_GRAPHIC) and all(word in _GRAPHIC for word in words[1:])


class Expansion:
    """What the normalisers of a tokenizer make of texts.

    Parameters
    ----------
    steps
        Each with the bytes that it makes of one byte, at most.
    """

    def __init__(self, steps: list[tuple[Any, int]]) -> None:
        self._steps = steps
        self._growth = prod(growth for _, growth in steps)

    def check(self, text: str, index: int) -> None:
        """Refuse a text that would take too much memory; `index` is what the message calls it.

        Raises
        ------
        InputError
            If it is, at any step, longer than `MAX_EXPANDED_BYTES`.
        """
        if 4 * len(text) * self._growth <= MAX_EXPANDED_BYTES:
            return
        for normalizer, _ in self._steps:
            text = normalizer.normalize_str(text)
            size = len(text.encode())
            if size > MAX_EXPANDED_BYTES:
                raise InputError(
                    f"text {index} is too long",
                    why=f"the tokenizer's normalisers make {size} bytes of it; "
                    f"{MAX_EXPANDED_BYTES} are allowed",
                    todo="cut it: tokens behind the compiled sequence length are not read anyway",
                )


def _state(component: Any) -> JsonDict:
    return json.loads(component.__getstate__())


def _flat(normalizer: Any) -> Iterator[Any]:
    if normalizer is None:
        return
    if _state(normalizer)["type"] == "Sequence":
        for step in normalizer:
            yield from _flat(step)
    else:
        yield normalizer


def _steps(component: Any) -> list[JsonDict]:
    """All steps of a component as they are in tokenizer.json, sequences taken apart."""
    found, left = [], [] if component is None else [_state(component)]
    while left:
        step = left.pop(0)
        if step["type"] == "Sequence":
            left = [*next(step[key] for key in _SEQUENCES if key in step), *left]
        else:
            found.append(step)
    return found


def _growth_of(section: str, step: JsonDict, kinds: Mapping[str, Component]) -> int:
    if step["type"] not in kinds:
        raise _refused(section, f"{step['type']} is none of {', '.join(kinds)}")
    growth = kinds[step["type"]].growth
    return growth(step) if callable(growth) else growth


def _check_growth(section: str, component: Any, kinds: Mapping[str, Component]) -> None:
    growth = prod(_growth_of(section, step, kinds) for step in _steps(component))
    if growth > MAX_GROWTH:
        raise _refused(section, f"it {_makes(growth)}")


def _check_post_processors(component: Any) -> None:
    added, adding = 0, 0
    for step in _steps(component):
        kind = step["type"]
        if kind not in _POST_PROCESSORS:
            names = ", ".join(_POST_PROCESSORS)
            raise _refused("post_processor", f"{kind} is none of {names}")
        if kind == "TemplateProcessing":
            added += max(_added_by(step, "single", "A"), _added_by(step, "pair", "AB"))
        elif kind != "ByteLevel":
            added += 4
        adding += kind != "ByteLevel"
    if adding > 1:  # which tokens are the text's is then not known
        raise _refused("post_processor", f"{adding} of its steps add tokens; one may")
    if added > MAX_ADDED_TOKENS:
        why = f"it adds {added} tokens; {MAX_ADDED_TOKENS} are allowed"
        raise _refused("post_processor", why)


def _added_by(template: JsonDict, name: str, texts: str) -> int:
    """Tokens that a template adds, each special token with all its ids."""
    added, taken = 0, []
    for piece in template[name]:
        ((kind, record),) = piece.items()
        if record["type_id"] > MAX_TYPE_ID:
            why = f"a token type is {record['type_id']}; {MAX_TYPE_ID} is allowed"
            raise _refused("post_processor", why)
        if kind == "Sequence":
            taken.append(record["id"])
        else:
            added += len(template["special_tokens"][record["id"]]["ids"])
    if len(taken) != len({*taken}) or not {*taken} <= {*texts}:
        raise _refused("post_processor", f"the template {name!r} repeats a text")
    return added


def _check_model(model: Any) -> None:
    kind = type(model).__name__
    if kind not in _MODELS:
        raise _refused("model", f"{kind} is none of {', '.join(_MODELS)}")
    if getattr(model, "dropout", None):
        why = f"dropout is {model.dropout:.3g}: a text has other tokens at every call"
        raise _refused("model", why, "set it to null, as for use after training")
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        affix = getattr(model, name, None) or ""
        if len(affix) > MAX_AFFIX:
            raise _refused("model", f"{name} has {len(affix)} characters; {MAX_AFFIX} are allowed")
    longest = getattr(model, "max_input_chars_per_word", 0)
    if longest > MAX_WORD:
        raise _refused("model", f"max_input_chars_per_word is {longest}; {MAX_WORD} is allowed")


def _makes(growth: int) -> str:
    return f"makes up to {growth} bytes of one; {MAX_GROWTH} are allowed"


def _refused(section: str, why: str, todo: str = "use the model's own tokenizer") -> ModelError:
    return ModelError(
        "the tokenizer is refused", where=f"tokenizer.json: {section}", why=why, todo=todo
    )
