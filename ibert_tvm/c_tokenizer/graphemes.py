"""SentencePiece's map of characters (``Precompiled``) as the package tokenizers applies it.

The package cuts text into grapheme clusters. Of one of fewer than 6 bytes, the shortest key that
it begins with is replaced, and the rest of the cluster is dropped; of others, each character that
is a key. The clusters are those of the crate unicode-segmentation, whose properties are found out
with a map that makes one letter of each cluster, or of each character of a long one.
"""

from __future__ import annotations

import base64
import functools
import json
import struct
from collections.abc import Iterable

from .code_points import blocks, component
from .errors import refused

EXTENDS, PREPENDS, CONTROL, PICTURE, CONSONANT, LINKER, CONJOINS, BETWEEN = (
    1 << bit for bit in range(8)
)
"""Joins what is before, or behind; breaks; in emoji (GB11); in conjuncts (GB9c): those that may
stand between in a conjunct, and in emoji."""
FLAGS = {
    "EXTENDS": EXTENDS,
    "PREPENDS": PREPENDS,
    "CONTROL": CONTROL,
    "PICTURE": PICTURE,
    "CONSONANT": CONSONANT,
    "LINKER": LINKER,
    "CONJOINS": CONJOINS,
    "BETWEEN": BETWEEN,
}
_MARK, _JOINER, _PICTURE, _CONSONANT, _LINKER = "\u0301", "\u200d", "©", "क", "\u094d"
_LONG = 6
"""Bytes of clusters of which each character is replaced alone."""
_UNMODELLED = (range(0x1100, 0x1200), range(0xA960, 0xA980), range(0xAC00, 0xD800))
"""Hangul, which is joined by rules of its own."""


def precompiled(charsmap: bytes) -> str:
    """Record of a normaliser with this map."""
    text = base64.b64encode(charsmap).decode()
    return json.dumps({"type": "Precompiled", "precompiled_charsmap": text})


def _counting_map() -> bytes:
    """A map with a key of one byte for every byte but 0 and the new line, which makes ``X``."""
    units = [0] * 1024
    units[0] = 256 << 10
    for byte in range(1, 256):
        if byte != ord("\n"):
            units[256 + byte] = byte | 1 << 8 | 512 << 10
    return struct.pack("<1025I", 4096, *units) + b"X\0"


@functools.cache
def cluster_properties() -> dict[int, int]:
    """Flags of code points by which clusters are formed."""
    normalize = component("normalizer", precompiled(_counting_map())).normalize_str
    found: dict[int, int] = {}

    def probe(flag: int, before: str, behind: str, letters: int, among: Iterable[str]) -> None:
        """Flag what makes so many letters between two texts."""
        for block in among:
            usable = [character for character in block if character not in "\0\n\r"]
            text = "\n".join(f"{before}{character}{behind}" for character in usable)
            for character, made in zip(usable, normalize(text).split("\n"), strict=True):
                if len(made) == letters:
                    found[ord(character)] = found.get(ord(character), 0) | flag

    # The numbers are those of clusters that hold together; with MARK, what follows is another.
    probe(EXTENDS, "a", "", 1, blocks())
    extending = ["".join(map(chr, found))]  # nothing else stands between in a cluster
    probe(LINKER, _CONSONANT, _CONSONANT + _MARK, 4, extending)
    probe(CONJOINS, _CONSONANT + _LINKER, _CONSONANT + _MARK, 5, extending)
    probe(BETWEEN, _PICTURE, _JOINER + _PICTURE + _MARK, 5, extending)
    probe(PREPENDS, "", "a", 1, blocks())
    probe(CONTROL, "", _MARK * 2, 2, blocks())
    probe(CONSONANT, "", _LINKER + _CONSONANT + _MARK, 4, blocks())
    probe(PICTURE, _PICTURE + _JOINER, "", 3, blocks())
    for character in extending[0]:  # it is joined there too
        found[ord(character)] &= ~PICTURE
    return {**found, **dict.fromkeys((0, ord("\n"), ord("\r")), CONTROL)}


def keys_of(charsmap: bytes) -> tuple[dict[int, str], dict[tuple[int, int], str]]:
    """What a map makes of characters, and of pairs that short clusters begin with.

    Raises
    ------
    TokenizerFormError
        If it has keys of another kind.
    """
    size = int.from_bytes(charsmap[:4], "little")
    units = struct.unpack(f"<{size // 4}I", charsmap[4 : 4 + size])
    characters: dict[int, str] = {}
    pairs: dict[tuple[int, int], str] = {}

    def offset(unit: int) -> int:
        return (unit >> 10) << ((unit & 1 << 9) >> 6)

    left = [(b"", offset(units[0]))]
    while left:
        key, node = left.pop()
        for byte in _following(key):
            place = node ^ byte
            if place >= len(units) or units[place] & 0x800000FF != byte:
                continue
            longer, below = key + bytes((byte,)), place ^ offset(units[place])
            if not units[place] >> 8 & 1:
                if len(longer) < _LONG - 1:
                    left.append((longer, below))
                continue
            start = 4 + size + (units[below] & 0x7FFFFFFF)
            text = charsmap[start : charsmap.index(b"\0", start)].decode()
            try:
                codes = [*map(ord, longer.decode())]
            except UnicodeDecodeError:
                raise refused("normalizer", "Precompiled has a key that is no text") from None
            if any(codes[0] in block for block in _UNMODELLED) or len(codes) > 2:
                raise refused("normalizer", f"Precompiled replaces {longer.decode()!r}")
            if len(codes) == 1:
                characters[codes[0]] = text
            else:
                pairs[codes[0], codes[1]] = text
    return characters, pairs


def _following(key: bytes) -> range:
    """Bytes that may go on behind others in UTF-8: leads, or continuations."""
    try:
        key.decode()
    except UnicodeDecodeError:
        return range(0x80, 0xC0)
    return range(1, 0xF5)
