"""Normalisers as stages of the C form: maps of code points, the order of marks, composition."""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tokenizers import normalizers

from ..common.strict_json import JsonDict
from .code_points import (
    HANGUL_BASE,
    HANGUL_COUNT,
    CharacterMap,
    character_map,
    combining_classes,
    component,
    composed,
    compositions,
    hangul,
)
from .errors import refused
from .graphemes import cluster_properties, keys_of
from .tables import Array, CodePointTable, utf16

KEEP, SPACED, FIRST = 0, 1, 2
"""What a map's table says of a code point: as it is, between two spaces, or where its text is."""


@dataclass
class Stage:
    """One function of the C form, which reads code points from the one before.

    Attributes
    ----------
    kind
        ``"map"``, ``"order"``, ``"compose"`` or ``"clusters"``.
    name
        What its names in C begin with.
    characters
        Of a map: what becomes of code points.
    pairs
        Of clusters: what becomes of pairs of code points.
    """

    kind: str
    name: str = ""
    characters: CharacterMap = field(default_factory=dict)
    pairs: dict[tuple[int, int], str] = field(default_factory=dict)
    hangul: bool = False
    longest: int = 3
    table: CodePointTable | None = None
    arrays: tuple[Array, ...] = ()

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
