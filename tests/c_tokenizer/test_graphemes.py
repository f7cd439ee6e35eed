"""SentencePiece's map of characters, which looks at clusters as the package does."""

from __future__ import annotations

import json
import random

import pytest

from ibert_tvm.c_tokenizer.errors import TokenizerFormError
from ibert_tvm.c_tokenizer.normalizer import keys_of, precompiled
from tests.snapshots import Messages

from .forms import TEXTS, charsmap, compare, host_of, lines, tokenizer_of, unigram

# Of every property that clusters are formed by, with 1 to 4 bytes, and keys among them.
_CHARACTERS = [
    *"ae\0\x01\r\ngé©®①№½ﬁǆİ가",
    *("\u0301", "\u0308", "\u0340", "\u0344", "\u093c", "\u093e", "\u094d", "\u0e33", "\u3099"),
    *("\u0600", "\u110b", "\u1161", "\u11a8", "\u200c", "\u200d", "\ufe0f", "\u0915", "\u0958"),
    *(
        "か",
        "ｶ",
        "ﾞ",
        "❤",
        "👩",
        "\U0001f1e6",
        "\U0001f3fb",
        "\U000110bd",
        "\U000e0100",
        "\U000e0001",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("count", [2_000, pytest.param(100_000, marks=pytest.mark.record)])
def test_clusters(count: int) -> None:
    tokenizer = tokenizer_of(unigram(normalizer=json.loads(precompiled(charsmap()))))
    host, rng = host_of(tokenizer), random.Random(count)
    clusters = ["".join(rng.choices(_CHARACTERS, k=rng.randrange(1, 9))) for _ in range(count)]
    assert compare(host, tokenizer, [*TEXTS, *clusters, *lines(count, seed=6)]) > count


def _map_of(key: bytes) -> bytes:
    """A map with one key, which makes nothing of it; of each byte the node is 1 024 further."""
    units = [0] * (1024 * (len(key) + 2))
    units[0] = 1024 << 10
    for place, byte in enumerate(key, start=1):
        leaf = place == len(key)
        node = 1024 * place + byte
        units[node] = byte | leaf << 8 | (1024 * (place + 1) ^ node) << 10
    content = b"".join(unit.to_bytes(4, "little") for unit in units)
    return len(content).to_bytes(4, "little") + content + b"\0"


def test_keys() -> None:
    assert keys_of(_map_of("é".encode())) == ({ord("é"): ""}, {})
    assert keys_of(_map_of("e\u0301".encode())) == ({}, {(ord("e"), 0x301): ""})
    assert keys_of(_map_of(b"a long one")) == ({}, {})


@pytest.mark.parametrize("key", [b"\xc3", b"abc", "가".encode()])
def test_other_keys(key: bytes, messages: Messages) -> None:
    with messages.raises(TokenizerFormError):
        keys_of(_map_of(key))
