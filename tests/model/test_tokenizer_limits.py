"""Tokenizers that multiply texts or tokens, draw at random or have unknown parts are refused."""

from __future__ import annotations

import base64
import json
import sys
from typing import Any

import pytest
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from ibert_tvm.common.errors import InputError, ModelError
from ibert_tvm.model import tokenizer_limits as limits
from ibert_tvm.model.tokenization import Tokenizer
from tests.snapshots import Messages

BPE = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}
WORDS = {
    "type": "WordPiece",
    "vocab": {"a": 0},
    "unk_token": "a",
    "max_input_chars_per_word": 10**6,
}
WORDS["continuing_subword_prefix"] = "##"
SEQUENCE = {"Sequence": {"id": "A", "type_id": 0}}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}


def replacing(content: str, **pattern: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def template(single: list[Any], ids: int = 1) -> dict[str, Any]:
    token = {"id": "a", "ids": [0] * ids, "tokens": ["a"] * ids}
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [SEQUENCE, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"a": token},
    }


def special(type_id: int = 0) -> dict[str, Any]:
    return {"SpecialToken": {"id": "a", "type_id": type_id}}


def charsmap(replacement: bytes) -> str:
    return base64.b64encode((4).to_bytes(4, "little") + bytes(4) + replacement + b"\0").decode()


HOSTILE: dict[str, dict[str, Any]] = {
    "dropout": {"model": {**BPE, "dropout": 0.1}},
    "a long suffix": {"model": {**BPE, "end_of_word_suffix": "#" * 1000}},
    "long words": {"model": WORDS},
    "a replacement": {"normalizer": replacing("a" * 1000, String="a")},
    "one in a sequence": {
        "normalizer": {"type": "Sequence", "normalizers": [replacing("a" * 99, Regex="")]}
    },
    "a long beginning": {"normalizer": {"type": "Prepend", "prepend": "a" * 1000}},
    "a map of characters": {
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap(b"a" * 1000)}
    },
    "bytes of bytes": {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [BYTES] * 30}},
    "a decoder": {"decoder": replacing("a" * 1000, String="a")},
    "many special tokens": {"post_processor": template([SEQUENCE, *[special()] * 200_000])},
    "a special token of many ids": {"post_processor": template([SEQUENCE, special()], 200_000)},
    "several templates": {
        "post_processor": {
            "type": "Sequence",
            "processors": [template([SEQUENCE, *[special()] * 40])] * 2,
        }
    },
    "a text that is repeated": {"post_processor": template([SEQUENCE] * 1000)},
    "a large type": {"post_processor": template([SEQUENCE, special(2**32 - 1)])},
}


def built(**document: Any) -> Tokenizer:
    return Tokenizer({"tokenizer.json": json.dumps({"model": BPE, **document}).encode()})


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_refused(kind: str, messages: Messages) -> None:
    with messages.raises(ModelError):
        built(**HOSTILE[kind])


HUGE = base64.b64encode(b"\xff\xff\xff\xff" + bytes(8)).decode()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("precompiled_charsmap", HUGE),
        ("precompiled\\u005fcharsmap", HUGE),
        ("precompiled_charsmap", HUGE.replace("/", "\\/")),
    ],
)
def test_a_map_of_characters_that_says_it_is_larger_than_it_is(
    name: str, text: str, messages: Messages
) -> None:
    """tokenizers takes memory for what such a map says: 8 GiB, and the process ends."""
    model = json.dumps(BPE)
    file = f'{{"normalizer": {{"type": "Precompiled", "{name}" :\n"{text}"}}, "model": {model}}}'
    with messages.raises(ModelError):
        Tokenizer({"tokenizer.json": file.encode()})


@pytest.mark.slow
def test_replacements_that_multiply_end_before_memory_does(messages: Messages) -> None:
    steps = [replacing("a" * 60, String="a")] * 4
    tokenizer = built(normalizer={"type": "Sequence", "normalizers": steps})
    with messages.raises(InputError):
        tokenizer.encode(["b", "aa"], 8)
    with pytest.raises(InputError, match=r"^text 0 is too long"):
        tokenizer.windows(("b", "aa"), 8)


def test_special_tokens_count_in_the_limit(messages: Messages) -> None:
    tokenizer = built(post_processor=template([SEQUENCE, *[special()] * 9]))
    assert tokenizer.encode(["abab"], 10).input_ids.shape == (1, 10)
    with messages.raises(InputError):
        tokenizer.encode(["abab"], 8)


@pytest.mark.parametrize(
    ("module", "listed"),
    [
        (normalizers, limits.NORMALIZERS),
        (pre_tokenizers, limits.PRE_TOKENIZERS),
        (decoders, limits.DECODERS),
        (processors, limits._POST_PROCESSORS),
        (models, limits._MODELS),
    ],
)
def test_every_part_of_the_library_is_listed(module: Any, listed: Any) -> None:
    kinds = {name: kind for name, kind in vars(module).items() if isinstance(kind, type)}
    base = {"Normalizer", "PreTokenizer", "Decoder", "PostProcessor", "Model"} & {*kinds}
    parts = {name for name, kind in kinds.items() if issubclass(kind, kinds[min(base)])}
    assert parts - base - {"Sequence"} == {*listed}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [k for k, v in limits.NORMALIZERS.items() if isinstance(v, int)])
def test_no_character_grows_more_than_is_said(kind: str) -> None:
    normalizer = getattr(normalizers, kind)()
    bound = limits.NORMALIZERS[kind]
    assert isinstance(bound, int)
    for code in range(sys.maxunicode + 1):
        if not 0xD800 <= code < 0xE000:
            text = chr(code)
            size = len(normalizer.normalize_str(text).encode())
            assert size <= bound * len(text.encode()), hex(code)
