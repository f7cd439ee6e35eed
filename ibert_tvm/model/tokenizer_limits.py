"""What a tokenizer may consist of, and how much longer a text may get in it.

The package tokenizers computes whatever a file asks for: replacements that multiply until memory
ends, templates longer than any limit, ids drawn at random. Only what is listed here is used.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
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


NORMALIZERS: Mapping[str, _Growth] = {
    "BertNormalizer": 12,  # decomposed, lower case, spaces around ideographs
    "ByteLevel": 2,
    "Lowercase": 2,
    "NFC": 3,
    "NFD": 3,
    "NFKC": 11,
    "NFKD": 11,
    "Nmt": 1,
    "Precompiled": _precompiled,
    "Prepend": lambda step: 1 + len(step["prepend"].encode()),
    "Replace": _replaced,
    "Strip": 1,
    "StripAccents": 1,
}
"""Bytes that a normaliser makes of one byte of UTF-8, at most."""
PRE_TOKENIZERS: Mapping[str, _Growth] = {
    "BertPreTokenizer": 1,
    "ByteLevel": 4,
    "CharDelimiterSplit": 1,
    "Digits": 1,
    "FixedLength": 1,
    "Metaspace": 6,
    "Punctuation": 1,
    "Split": 1,
    "UnicodeScripts": 1,
    "Whitespace": 1,
    "WhitespaceSplit": 1,
}
DECODERS: Mapping[str, _Growth] = {
    "BPEDecoder": 2,
    "ByteFallback": 1,
    "ByteLevel": 1,
    "CTC": 2,
    "Fuse": 1,
    "Metaspace": 1,
    "Replace": _replaced,
    "Strip": 1,
    "WordPiece": 2,
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


def _growth_of(section: str, step: JsonDict, kinds: Mapping[str, _Growth]) -> int:
    growth = kinds.get(step["type"])
    if growth is None:
        raise _refused(section, f"{step['type']} is none of {', '.join(kinds)}")
    return growth(step) if callable(growth) else growth


def _check_growth(section: str, component: Any, kinds: Mapping[str, _Growth]) -> None:
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
