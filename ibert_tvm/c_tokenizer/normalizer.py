"""Normalisers as stages of the C form: maps of code points, the order of marks, composition."""

from __future__ import annotations

import base64
import functools
import json
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from tokenizers import normalizers

from ..common.strict_json import JsonDict
from .code_points import (
    HANGUL_BASE,
    HANGUL_COUNT,
    CharacterMap,
    blocks,
    character_map,
    combining_classes,
    component,
    composed,
    compositions,
    hangul,
)
from .errors import refused
from .tables import Array, CodePointTable, utf16

# SentencePiece's map of characters (``Precompiled``) as the package tokenizers applies it.
#
# The package cuts text into grapheme clusters. Of one of fewer than 6 bytes, the shortest key that
# it begins with is replaced, and the rest of the cluster is dropped; of others, each character that
# is a key. The clusters are those of the crate unicode-segmentation, whose properties are found out
# with a map that makes one letter of each cluster, or of each character of a long one.

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


KEEP, SPACED, FIRST = 0, 1, 2
"""What a map's table says of a code point: as it is, between two spaces, or where its text is."""


@dataclass
class Stage:
    """One function of the C form, which reads code points from the one before.

    Attributes
    ----------
    kind
        ``"map"``, ``"order"``, ``"compose"``, ``"clusters"`` or ``"prepend"``.
    name
        What its names in C begin with.
    characters
        Of a map: what becomes of code points.
    pairs
        Of clusters: what becomes of pairs of code points.
    text
        Of prepend: what comes before a text that is not empty.
    again
        Of prepend: whether it comes before a text that begins so, too.
    """

    kind: str
    name: str = ""
    characters: CharacterMap = field(default_factory=dict)
    pairs: dict[tuple[int, int], str] = field(default_factory=dict)
    text: str = ""
    again: bool = True
    hangul: bool = False
    longest: int = 3
    table: CodePointTable | None = None
    arrays: tuple[Array, ...] = ()

    @property
    def codes(self) -> list[int]:
        """Of prepend: code points of its text."""
        return [*map(ord, self.text)]

    @property
    def unit(self) -> str:
        """Type in C of what the texts of a map are stored in."""
        return f"uint{self.arrays[-1].bits}_t"


def stages_of(normalizer: JsonDict | None) -> list[Stage]:
    """Stages of a normaliser of tokenizer.json, with their tables.

    Raises
    ------
    TokenizerFormError
        If it has a part that is not implemented.
    """
    joined: list[Stage] = []
    for stage in _steps(normalizer):
        if stage.kind == "map" and joined and joined[-1].kind == "map":
            joined[-1] = Stage("map", characters=composed(joined[-1].characters, stage.characters))
        else:
            joined.append(stage)
    for number, stage in enumerate(joined):
        stage.name = f"{stage.kind}{number}"
        if stage.kind in ("map", "clusters"):
            _tabulate(stage)
        elif stage.kind == "compose":
            _pair_up(stage)
    return joined


def needs_classes(stages: list[Stage]) -> bool:
    """Whether a stage looks at combining classes."""
    return any(stage.kind in ("order", "compose") for stage in stages)


@functools.cache
def mark_classes() -> CodePointTable:
    """Canonical combining classes."""
    return CodePointTable.of("mark_class", combining_classes(normalizers.NFD().normalize_str))


@functools.cache
def cluster_flags() -> CodePointTable:
    """Properties by which clusters are formed."""
    return CodePointTable.of("cluster_flags", cluster_properties())


def _map(step: JsonDict) -> Stage:
    return Stage("map", characters=_characters(json.dumps(step)))


@functools.cache
def _characters(record: str) -> CharacterMap:
    """Of a normaliser of tokenizer.json; it takes seconds, and some are a part of several."""
    return character_map(component("normalizer", record).normalize_str)


def _bert(step: JsonDict) -> Iterator[Stage]:
    lower = bool(step["lowercase"])
    strip = lower if step["strip_accents"] is None else bool(step["strip_accents"])
    if not strip:
        yield _map({**step, "strip_accents": False})
        return
    yield _map({**step, "strip_accents": False, "lowercase": False})
    decomposition = _map({"type": "NFD"})
    yield decomposition
    yield Stage("order")
    cleaned = {"clean_text": False, "handle_chinese_chars": False, "strip_accents": True}
    after = _map({**step, **cleaned}).characters
    left = after.keys() - decomposition.characters.keys()
    yield Stage("map", characters={code: after[code] for code in left})


def _decomposed(step: JsonDict) -> Iterator[Stage]:
    yield _map(step)
    yield Stage("order")


def _composed(step: JsonDict) -> Iterator[Stage]:
    yield from _decomposed({"type": step["type"].replace("C", "D")})
    yield Stage("compose")


def _replace(step: JsonDict) -> Iterator[Stage]:
    pattern = step["pattern"].get("String")
    if pattern is None or len(pattern) != 1:
        raise refused("normalizer", f"Replace of {step['pattern']} is no single character")
    yield Stage("map", characters={ord(pattern): step["content"]})


def _prepend(step: JsonDict) -> Iterator[Stage]:
    if step["prepend"]:
        yield Stage("prepend", text=step["prepend"])


def _precompiled(step: JsonDict) -> Iterator[Stage]:
    characters, pairs = keys_of(base64.b64decode(step["precompiled_charsmap"]))
    yield Stage("clusters", characters=characters, pairs=pairs)


_KINDS: dict[str, Callable[[JsonDict], Iterator[Stage]]] = {
    "BertNormalizer": _bert,
    "Lowercase": lambda step: iter((_map(step),)),
    "NFC": _composed,
    "NFD": _decomposed,
    "NFKC": _composed,
    "NFKD": _decomposed,
    "Nmt": lambda step: iter((_map(step),)),
    "Precompiled": _precompiled,
    "Prepend": _prepend,
    "Replace": _replace,
    "StripAccents": lambda step: iter((_map(step),)),
}


def _steps(normalizer: JsonDict | None) -> Iterator[Stage]:
    if normalizer is None:
        return
    if normalizer["type"] == "Sequence":
        for step in normalizer["normalizers"]:
            yield from _steps(step)
        return
    stages = _KINDS.get(normalizer["type"])
    if stages is None:
        raise refused("normalizer", f"{normalizer['type']} is none of {', '.join(_KINDS)}")
    yield from stages(normalizer)


def _tabulate(stage: Stage) -> None:
    """Texts of a map go to one array, each with its length before it."""
    characters = dict(stage.characters)
    syllables = range(HANGUL_BASE, HANGUL_BASE + HANGUL_COUNT)
    if all(characters.get(code) == hangul(code) for code in syllables):
        stage.hangul = True
        for code in syllables:
            del characters[code]
    spaced = {code: SPACED for code, text in characters.items() if text == f" {chr(code)} "}
    for code in spaced:
        del characters[code]
    units: list[int] = []
    places: dict[str, int] = {}
    for text in (*characters.values(), *stage.pairs.values()):
        if text not in places:
            places[text] = FIRST + len(units)
            units += [len(text), *utf16(text)]
    values = {code: places[text] for code, text in characters.items()}
    stage.longest = max(3, *map(len, places))
    stage.table = CodePointTable.of(stage.name, values | spaced)
    pairs = sorted(stage.pairs.items())
    columns = {
        "firsts": [first for (first, _), _ in pairs],
        "seconds": [second for (_, second), _ in pairs],
        "places": [places[text] for _, text in pairs],
    }
    stage.arrays = (
        *stage.table.arrays,
        *(Array(f"{stage.name}_{name}", column) for name, column in columns.items() if pairs),
        Array(f"{stage.name}_texts", units),
    )


def _pair_up(stage: Stage) -> None:
    """Pairs in order, to be found by bisection."""
    decomposed = _map({"type": "NFD"}).characters
    pairs = sorted(compositions(normalizers.NFC().normalize_str, decomposed).items())
    stage.arrays = (
        Array(f"{stage.name}_firsts", [first for (first, _), _ in pairs]),
        Array(f"{stage.name}_seconds", [second for (_, second), _ in pairs]),
        Array(f"{stage.name}_results", [code for _, code in pairs]),
    )
