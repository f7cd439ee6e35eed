"""The pieces of a tokenizer: what hangs together among them, and a tokenizer of fewer of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..common.errors import ModelError
from ..common.strict_json import JsonDict
from .tokenization import Tokenizer
from .tokenizer_behaviour import PROBE_LENGTHS, PROBES, probe_rows

_SETTINGS = "tokenizer_config.json"
_TEXT_STEPS = ("normalizer", "pre_tokenizer")
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
"""Pieces that stand for bytes, where a model falls back to them."""

Ids = Mapping[int, int]
"""New ids by old ones."""
Parts = Callable[[str], Iterable[str]]
"""Pieces that have to be there with a piece; some may not exist."""


@dataclass(frozen=True)
class _Kind:
    """What is known of a type of models.

    Attributes
    ----------
    parts
        From the model's document.
    order
        Gives a key of a piece and its id: of pieces that no text asks for, the least first.
    cut
        The model with the ids that are kept.
    """

    parts: Callable[[JsonDict], Parts]
    order: Callable[[JsonDict, Tokenizer], Callable[[str, int], Any]]
    cut: Callable[[JsonDict, Ids], JsonDict]


def _kept_words(model: JsonDict, ids: Ids) -> JsonDict:
    vocabulary = {word: ids[index] for word, index in model["vocab"].items() if index in ids}
    return {**model, "vocab": vocabulary}


def _characters_of_words(model: JsonDict) -> Parts:
    """The characters of a word, at its beginning and behind it."""
    prefix = model["continuing_subword_prefix"]

    def parts(piece: str) -> Iterator[str]:
        for character in piece.removeprefix(prefix):
            yield character
            yield f"{prefix}{character}"

    return parts


def _words_first(model: JsonDict, tokenizer: Tokenizer) -> Callable[[str, int], Any]:
    """Words in the order of ids, then what comes with words: characters, and what no text gives."""
    prefix = model["continuing_subword_prefix"]

    def key(piece: str, index: int) -> tuple[bool, int]:
        word = piece.removeprefix(prefix)
        return len(word) < 2 or tokenizer.words(word) != [word], index

    return key


def _merges(model: JsonDict) -> list[tuple[str, str, str]]:
    """Left part, right part and result of every merge."""
    prefix = model.get("continuing_subword_prefix") or ""
    pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
    return [(left, right, left + right.removeprefix(prefix)) for left, right in pairs]


def _merged_parts(model: JsonDict) -> Parts:
    """Both parts of every merge: a text is merged step by step, so no step may be missing."""
    found: dict[str, list[str]] = {}
    for left, right, piece in _merges(model):
        found.setdefault(piece, []).extend((left, right))
    return lambda piece: found.get(piece, ())


def _by_merge(model: JsonDict, _tokenizer: Tokenizer) -> Callable[[str, int], Any]:
    rank: dict[str, int] = {}
    for place, (*_, piece) in enumerate(_merges(model)):
        rank.setdefault(piece, place)
    return lambda piece, index: (rank.get(piece, len(rank)), index)


def _kept_merges(model: JsonDict, ids: Ids) -> JsonDict:
    kept = _kept_words(model, ids)
    merges = [
        pair
        for pair, pieces in zip(model["merges"], _merges(model), strict=True)
        if all(piece in kept["vocab"] for piece in pieces)
    ]
    return {**kept, "merges": merges}


def _by_score(model: JsonDict, _tokenizer: Tokenizer) -> Callable[[str, int], Any]:
    scores = dict(model["vocab"])
    return lambda piece, index: (-scores.get(piece, 0.0), index)


def _kept_scores(model: JsonDict, ids: Ids) -> JsonDict:
    vocabulary = [entry for index, entry in enumerate(model["vocab"]) if index in ids]
    unknown = model.get("unk_id")
    return {**model, "vocab": vocabulary, "unk_id": None if unknown is None else ids[unknown]}


_KINDS: Mapping[str, _Kind] = {
    "BPE": _Kind(_merged_parts, _by_merge, _kept_merges),
    "Unigram": _Kind(lambda model: lambda piece: piece, _by_score, _kept_scores),
    "WordLevel": _Kind(
        lambda model: lambda piece: (),
        lambda model, tokenizer: lambda piece, index: index,
        _kept_words,
    ),
    "WordPiece": _Kind(_characters_of_words, _words_first, _kept_words),
}


class Pieces:
    """The pieces of a tokenizer.

    Parameters
    ----------
    tokenizer
        The tokenizer.

    Attributes
    ----------
    ids
        Of every piece.
    needed
        Ids that are always kept: of special and added tokens, and of what pieces fall back to.
    unknown
        Id of what the model has no piece for; None if there is no such piece.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.ids = dict(tokenizer.vocabulary())
        self._names = {index: piece for piece, index in self.ids.items()}
        self._document: JsonDict = json.loads(tokenizer.fast_copy().to_str())
        self._model: JsonDict = self._document["model"]
        self._kind = _KINDS[self._model["type"]]
        self._parts = self._kind.parts(self._model)
        self.unknown: int | None = self._model.get("unk_id")
        if self._model.get("unk_token") is not None:
            self.unknown = self.ids.get(self._model["unk_token"])
        self.needed = {*self._needed_ids(), *map(self.ids.__getitem__, self._needed_pieces())}

    def _needed_ids(self) -> Iterator[int]:
        yield self.tokenizer.pad_id
        if self.unknown is not None:
            yield self.unknown
        yield from (token["id"] for token in self._document["added_tokens"])
        found: dict[int, int] = {}
        _renumbered(self._document["post_processor"], lambda index: found.setdefault(index, index))
        yield from found
        if self._model["type"] == "Unigram":
            scores = [score for _, score in self._model["vocab"]]
            yield scores.index(min(scores))  # what an unknown character costs depends on it

    def _needed_pieces(self) -> Iterator[str]:
        wanted = [*self.tokenizer.special_tokens.values()]
        if self._model.get("byte_fallback"):
            wanted += _BYTES
        if '"ByteLevel"' in json.dumps([self._document[key] for key in _TEXT_STEPS]):
            from tokenizers.pre_tokenizers import ByteLevel

            wanted += ByteLevel.alphabet()
        yield from (piece for piece in wanted if piece in self.ids)

    def with_parts(self, index: int, known: Collection[int]) -> set[int]:
        """Ids that have to be there with one, itself among them, beyond those that are."""
        left, found = [index], set[int]()
        while left:
            one = left.pop()
            if one in found or one in known:
                continue
            found.add(one)
            if one in self._names:
                parts = self._parts(self._names[one])
                left += [self.ids[part] for part in parts if part in self.ids]
        return found

    def in_order(self) -> list[int]:
        """All ids, the first to keep first, whatever texts say."""
        key = self._kind.order(self._model, self.tokenizer)
        return [index for piece, index in sorted(self.ids.items(), key=lambda item: key(*item))]

    def cut(self, ids: Ids) -> Tokenizer:
        """Return a tokenizer of fewer pieces.

        Parameters
        ----------
        ids
            New ids of what is kept, in the order of the old ones.

        Raises
        ------
        ModelError
            If the result would not give, of `PROBES` that have nothing but pieces that are kept,
            the same pieces.
        """
        document = {
            **self._document,
            "added_tokens": [
                {**token, "id": ids[token["id"]]} for token in self._document["added_tokens"]
            ],
            "post_processor": _renumbered(self._document["post_processor"], ids.__getitem__),
            "model": self._kind.cut(self._model, ids),
        }
        settings = self._settings(ids)
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
        files = {"tokenizer.json": text.encode()}
        if settings:
            text = json.dumps(settings, ensure_ascii=False, indent=1)
            files[_SETTINGS] = text.encode()
        made = Tokenizer(files)
        expected = sorted((ids[index], piece) for piece, index in self.ids.items() if index in ids)
        if [(index, piece) for piece, index in made.vocabulary()] != expected:
            raise _not_cut("its tokens would get ids that are not in one row", "its vocabulary")
        for probe in PROBES:
            for length in PROBE_LENGTHS:
                self.check_same(made, ids, probe, length)
        return made

    def check_same(
        self, other: Tokenizer, ids: Ids, text: str | tuple[str, str], length: int
    ) -> None:
        """Refuse another tokenizer that makes something else of a text whose pieces it has.

        A word that is unknown may fall into pieces where longer ones are gone, so texts with
        unknown words are not compared.
        """
        whole = probe_rows(self.tokenizer, text, PROBE_LENGTHS[0])[0]
        if self.unknown in whole or not {*whole} <= {*ids}:
            return
        old, types, mask = probe_rows(self.tokenizer, text, length)
        if probe_rows(other, text, length) != ([ids[index] for index in old], types, mask):
            raise _not_cut(
                f"with fewer pieces it would take {text!r:.200} apart otherwise", "texts"
            )

    def _settings(self, ids: Ids) -> JsonDict:
        files = self.tokenizer.files
        settings: JsonDict = json.loads(files[_SETTINGS]) if _SETTINGS in files else {}
        if "added_tokens_decoder" in settings:
            settings["added_tokens_decoder"] = {
                str(ids[int(index)]): token
                for index, token in settings["added_tokens_decoder"].items()
                if int(index) in ids
            }
        if self.tokenizer.compared_with:
            kept = f"{len(ids)} of {len(self.ids)} pieces"
            settings["compared_with"] = f"{self.tokenizer.compared_with}, for {kept}"
        return settings


def _renumbered(processor: JsonDict | None, new_id: Callable[[int], int]) -> JsonDict | None:
    """A post-processor with other ids of special tokens."""
    if processor is None:
        return None
    changed = dict(processor)
    if "processors" in changed:
        changed["processors"] = [_renumbered(step, new_id) for step in changed["processors"]]
    for key in ("sep", "cls"):
        if key in changed:
            token, index = changed[key]
            changed[key] = [token, new_id(index)]
    if "special_tokens" in changed:
        changed["special_tokens"] = {
            name: {**token, "ids": [new_id(index) for index in token["ids"]]}
            for name, token in changed["special_tokens"].items()
        }
    return changed


def _not_cut(why: str, where: str) -> ModelError:
    return ModelError(
        "the tokenizer's vocabulary cannot be cut",
        where=where,
        why=why,
        todo="leave --vocabulary out, and report it with the tokenizer files",
    )
