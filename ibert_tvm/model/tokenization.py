"""Texts to token ids, with the tokenizer files that travel with a model.

The `tokenizers` library is enough for every format read here, so that neither quantisation from
texts nor running a compiled library needs transformers.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..common.errors import DocumentError, IbertError, InputError, ModelError
from ..common.strict_json import JsonDict, JsonObject, decode, parse, read_bytes
from .text_beginning import Beginnings
from .token_batches import Row, TokenizedBatch, Window
from .tokenizer_limits import check_charsmaps, check_components, check_vocabulary

# What a tokenizer may need, best first: the first group that is complete is the tokenizer itself.
_GROUPS = (("tokenizer.json",), ("vocab.txt",), ("vocab.json", "merges.txt"))
_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json")
TOKENIZER_FILES = (*(name for group in _GROUPS for name in group), *_SETTINGS)
"""Every file that belongs to a tokenizer."""
MAX_TOKENIZER_BYTES = 64 * 2**20
"""Of one file: those of vocabularies of 250,000 tokens have 17 MiB."""
MAX_CHARACTERS = 2**20
"""Of a text."""
MAX_TOKENIZER_DEPTH = 16
"""Of objects and arrays in the JSON of its settings."""
_OVERLAP = 128
"""Tokens that windows of a long context share, as in the original evaluation of SQuAD."""
_AT_ONCE = 128
"""Texts of which encodings are in memory together."""
_CHARACTERS = 6
"""Of a text that is cut, for each token that is kept, at first: English has 4 to 5."""
_BEHAVIOUR = "its vocabulary and settings"
"""What errors name where encoding fails with files that could be read."""


def tokenizer_files(folder: str | Path) -> dict[str, bytes]:
    """Read the tokenizer files of a Hugging Face folder.

    Parameters
    ----------
    folder
        The folder.

    Returns
    -------
    dict of str to bytes
        File contents by name; only the files that are needed, empty if there is no tokenizer.
    """
    folder = Path(folder)
    for group in _GROUPS:
        if all((folder / name).is_file() for name in group):
            names = [*group, *(n for n in _SETTINGS if (folder / n).is_file())]
            return {name: _read(folder / name) for name in names}
    return {}


def _read(file: Path) -> bytes:
    try:
        return read_bytes(file, MAX_TOKENIZER_BYTES)
    except DocumentError as error:
        raise _damaged(str(file), error.what) from error


class Tokenizer:
    """A fast tokenizer built from a model's files.

    Parameters
    ----------
    files
        Contents by file name, as `tokenizer_files` returns them.
    rows
        Of the model's table, where it is known: a text with a larger id is an `InputError`.

    Attributes
    ----------
    has_types
        Whether pairs get token types; otherwise all are 0.

    Raises
    ------
    ModelError
        If the files hold no tokenizer that can be read.
    """

    def __init__(self, files: Mapping[str, bytes], rows: int | None = None) -> None:
        self.files, self._rows = dict(files), rows
        config = self._json("tokenizer_config.json")
        self._tokenizer = self._build(config)
        with refusing("tokenizer.json"):
            self._expansion = check_components(self._tokenizer)
        self._beginnings = Beginnings(self._tokenizer)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        # Truncation is a state: what cuts windows is another tokenizer, so that threads share this.
        self._lock = threading.Lock()
        self._windowing: Any = None
        self.pad_id = self._find_pad_id(config)
        length = config.get("model_max_length")
        self.model_max_length = length if type(length) is int and length > 0 else None
        # transformers returns only these, and a model without token types is given zeros.
        self.special_tokens = {
            key: str(value.get("content") if isinstance(value, Mapping) else value)
            for key, value in config.items()
            if key.endswith("_token") and isinstance(value, (str, Mapping))
        }
        self.truncation_side = "left" if config.get("truncation_side") == "left" else "right"
        self.compared_with = str(config.get("compared_with") or "")
        names = config.get("model_input_names")
        self.has_types = not isinstance(names, list) or "token_type_ids" in names

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def vocabulary(self) -> list[tuple[str, int]]:
        """Every token with its id, in the order of ids."""
        tokens = self._tokenizer.get_vocab(with_added_tokens=True)
        return sorted(tokens.items(), key=lambda item: (item[1], item[0]))

    def words(self, text: str) -> list[str]:
        """What the model of pieces is given of a text, word by word."""
        steps = self._tokenizer.normalizer, self._tokenizer.pre_tokenizer
        normal = text if steps[0] is None else steps[0].normalize_str(text)
        words = [(normal, ())] if steps[1] is None else steps[1].pre_tokenize_str(normal)
        return [word for word, _ in words]

    def ids_of(self, texts: Sequence[str]) -> Iterator[list[int]]:
        """Ids of texts in full, special tokens included; of texts without a token none."""
        for start in range(0, len(texts), _AT_ONCE):
            chunk = texts[start : start + _AT_ONCE]
            with refusing(_BEHAVIOUR):
                for index, text in enumerate(chunk, start):
                    self._expansion.check(text, index)
                encodings = self._tokenizer.encode_batch(chunk)
            yield from (encoding.ids for encoding in encodings)

    def check_ids(self, vocab_size: int) -> None:
        """Refuse a tokenizer that has an id without a row in the model's table of so many rows.

        Special tokens are left out: transformers adds those that a vocabulary lacks, and only a
        text that holds their name has them.

        Raises
        ------
        ModelError
            Names the token with the largest id.
        """
        added = self._tokenizer.get_added_tokens_decoder()
        vocabulary = {
            token: index
            for token, index in self._tokenizer.get_vocab(with_added_tokens=True).items()
            if index not in added or not added[index].special
        }
        token = max(vocabulary, key=lambda name: vocabulary[name], default=None)
        if token is not None and vocabulary[token] >= vocab_size:
            raise ModelError(
                "the tokenizer does not belong to the model",
                why=f"its token {token!r} has the id {vocabulary[token]}, and the model's table "
                f"has {vocab_size} rows",
                todo="give the model's own tokenizer, or enlarge the table as "
                "`resize_token_embeddings` of transformers does",
            )

    def continued(self, window: Window, text: str) -> list[bool]:
        """Whether each token of a text's window is part of the word before it.

        As transformers' pipeline for tokens sees it: where the vocabulary has no prefix for such
        tokens, words are what stands between spaces.
        """
        model = self._tokenizer.model
        prefixed = bool(getattr(model, "continuing_subword_prefix", None))
        unknown = self.special_tokens.get("unk_token", getattr(model, "unk_token", None))
        found = []
        for index, (start, end) in zip(window.ids, window.offsets, strict=True):
            token = self._tokenizer.id_to_token(index) or ""
            part = start > 0 and " " not in text[start - 1 : start + 1]
            if prefixed:
                part = len(token) != len(text[start:end])
            found.append(part and token != unknown)
        return found

    def fast_copy(self) -> Any:
        """A copy as a `tokenizers.Tokenizer`, for packages that want one; it truncates nothing."""
        from tokenizers import Tokenizer as FastTokenizer

        check_vocabulary(index for _, index in self.vocabulary())
        return FastTokenizer.from_str(self._tokenizer.to_str())

    def encode(
        self,
        texts: Sequence[str | tuple[str, str]],
        max_length: int,
        pad_to: int | None = None,
        allow_empty: bool = False,
    ) -> TokenizedBatch:
        """Encode texts, or pairs of texts, with the model's special tokens.

        Parameters
        ----------
        texts
            At least one. An empty text is an error: its embedding would mean nothing.
        max_length
            Longer encodings are truncated to this many tokens, special tokens kept.
        pad_to
            Length of the arrays; by default that of the longest encoding.
        allow_empty
            Take empty texts, which are special tokens alone.

        Raises
        ------
        InputError
            If there is no text, one is empty, one is not a string or has half of a surrogate pair,
            or one gives no token.
        """
        rows, truncated = self.rows(texts, max_length, allow_empty)
        return self._padded(rows, pad_to, truncated)

    def rows(
        self,
        texts: Sequence[str | tuple[str, str]],
        max_length: int,
        allow_empty: bool = False,
        first: int = 0,
    ) -> tuple[list[Row], tuple[int, ...]]:
        """Encode texts as `encode` does, without padding; errors count texts from `first`.

        Returns
        -------
        rows : list of tuple
            Ids and types of every text's tokens.
        truncated : tuple of int
            Indices of the texts that were longer than allowed.
        """
        items = [self._checked(text, index, allow_empty) for index, text in enumerate(texts, first)]
        if not items:
            raise InputError("no text was given", todo="give at least one text")
        encodings = self._encodings(items, max_length)
        rows, truncated = [], []
        for index, encoding in enumerate(encodings):
            ids = encoding.ids
            types = encoding.type_ids if self.has_types else [0] * len(ids)
            if not ids:
                raise _no_token(first + index)
            if len(ids) > max_length:
                kept = _kept(encoding, max_length, self.truncation_side, first + index)
                ids, types = [ids[place] for place in kept], [types[place] for place in kept]
                truncated.append(index)
            rows.append((ids, types))
        self._check_rows(rows, first)
        return rows, tuple(truncated)

    def _encodings(self, items: Sequence[str | tuple[str, str]], max_length: int) -> list[Any]:
        """Encode texts; of those that are cut at their end, no more than shows what is kept."""
        encode = self._tokenizer.encode_batch
        if all(isinstance(item, str) for item in items):  # it knows no types of pairs
            encode = self._tokenizer.encode_batch_fast
        characters = _CHARACTERS * max_length
        found: list[Any] = [None] * len(items)
        left: Sequence[int] = range(len(items))
        while left:
            parts = [self._beginning(items[index], characters) for index in left]
            with refusing(_BEHAVIOUR):
                encodings = encode(parts)
            for index, encoding in zip(left, encodings, strict=True):
                found[index] = encoding
            left = [
                index
                for index, part in zip(left, parts, strict=True)
                if part is not items[index] and len(found[index].ids) <= max_length
            ]
            characters *= 4
        return found

    def _beginning(self, item: str | tuple[str, str], characters: int) -> str | tuple[str, str]:
        """What is encoded: how a pair is cut depends on both texts, to their ends."""
        if isinstance(item, tuple) or self.truncation_side == "left":
            return item
        return self._beginnings.of(item, characters)

    def check(self, texts: Sequence[object]) -> None:
        """Refuse what is no text, or empty, by its place among others; an `InputError`."""
        for index, text in enumerate(texts):
            self._checked(text, index)

    def windows(
        self, text: str | tuple[str, str], max_length: int, overlap: int = 0
    ) -> list[Window]:
        """Encode a text of any length as one or several windows, so that no token is left out.

        Parameters
        ----------
        text
            A text; of a pair the second text is what goes on from window to window.
        max_length
            Most tokens of a window, special tokens counted.
        overlap
            Tokens that a window shares with the one before it.

        Returns
        -------
        list of Window
            At least one, in order.

        Raises
        ------
        InputError
            If a text is empty, is no string, has half of a surrogate pair, gives no token, or
            leaves no room in a window.
        """
        self._checked(text, 0)
        pair = isinstance(text, tuple)
        parts = text if pair else (text,)
        with refusing(_BEHAVIOUR):
            whole = self._tokenizer.encode(*parts)
        taken = sum(place != (1 if pair else 0) for place in whole.sequence_ids)
        if len(whole.ids) > max_length and max_length - taken <= overlap:
            raise InputError(
                "the text leaves no room in a window",
                why=f"a window has {max_length} tokens, of which {taken} are the same in "
                f"every window and {overlap} overlap",
                todo="shorten the question, or compile with a larger --seq-len",
            )
        if len(whole.ids) > max_length:
            strategy = "only_second" if pair else "only_first"
            with self._lock, refusing(_BEHAVIOUR):
                self._windowing = self._windowing or self.fast_copy()
                self._windowing.enable_truncation(max_length, stride=overlap, strategy=strategy)
                whole = self._windowing.encode(*parts)
        if not whole.ids:
            raise _no_token(0)
        return [
            Window(
                tuple(part.ids),
                tuple(part.type_ids),
                tuple(part.offsets),
                tuple(part.sequence_ids),
                tuple(part.word_ids),
            )
            for part in (whole, *whole.overflowing)
        ]

    def question_windows(
        self, pair: tuple[str, str], max_length: int, overlap: int | None = None
    ) -> list[Window]:
        """Question and context as windows of so many tokens; errors as of `windows`.

        By default they overlap as in the pipeline of transformers 4, by 128 tokens and at most
        half of their length, or where the question leaves less room, by half of that.
        """
        if overlap is None:
            (whole,) = self.windows(pair, 2**31 - 1)
            room = max_length - sum(text != 1 for text in whole.texts)
            overlap = min(_OVERLAP, max_length // 2)
            overlap = overlap if overlap < room else max(0, room // 2)
        return self.windows(pair, max_length, overlap)

    def batch_of(self, windows: Sequence[Window]) -> TokenizedBatch:
        """Pad windows to one length, in their order."""
        rows = [(window.ids, window.type_ids) for window in windows]
        self._check_rows(rows, 0)
        return self._padded(rows, None, ())

    def _checked(
        self, text: object, index: int, allow_empty: bool = False
    ) -> str | tuple[str, str]:
        checked = _valid(text, index, allow_empty)
        for part in checked if isinstance(checked, tuple) else (checked,):
            with refusing(_BEHAVIOUR):
                self._expansion.check(part, index)
        return checked

    def _padded(
        self, rows: Sequence[Row], pad_to: int | None, truncated: tuple[int, ...]
    ) -> TokenizedBatch:
        length = max(len(row) for row, _ in rows) if pad_to is None else pad_to
        ids = np.full((len(rows), length), self.pad_id, dtype=np.int32)
        mask = np.zeros_like(ids)
        types = np.zeros_like(ids)
        for index, (row, type_ids) in enumerate(rows):
            ids[index, : len(row)] = row
            mask[index, : len(row)] = 1
            if self.has_types:
                types[index, : len(row)] = type_ids
        return TokenizedBatch(ids, mask, types, truncated)

    def _check_rows(self, rows: Sequence[Row], first: int) -> None:
        largest = max(self.pad_id, *(max(row, default=0) for row, _ in rows))
        if largest > np.iinfo(np.int32).max:
            raise _damaged(_BEHAVIOUR, f"a token has the id {largest}")
        if self._rows is not None and largest >= self._rows:
            self._refuse_ids([row for row, _ in rows], self._rows, first)

    @staticmethod
    def _refuse_ids(rows: Sequence[Sequence[int]], count: int, first: int) -> None:
        """Name the first text with an id that the model's table has no row for."""
        for index, row in enumerate(rows, first):
            largest = max(row, default=0)
            if largest >= count:
                raise InputError(
                    f"text {index} has a token that the model does not know",
                    why=f"its id is {largest}, and the model's table has {count} rows",
                    todo="leave the names of special tokens out of texts",
                )

    def _json(self, name: str) -> JsonDict:
        if name not in self.files:
            return {}
        try:
            document = parse(decode(self.files[name]), MAX_TOKENIZER_DEPTH)
        except DocumentError as error:
            raise _damaged(name, "; ".join(filter(None, (error.what, error.why)))) from error
        return document if isinstance(document, dict) else {}

    def _build(self, config: JsonObject) -> Any:
        from tokenizers import Tokenizer as FastTokenizer
        from tokenizers.implementations import BertWordPieceTokenizer, ByteLevelBPETokenizer

        with tempfile.TemporaryDirectory() as folder:
            for name, content in self.files.items():
                (Path(folder) / Path(name).name).write_bytes(content)
            group = next((g for g in _GROUPS if all(name in self.files for name in g)), None)
            if group is None:
                raise ModelError(
                    "the tokenizer is incomplete",
                    why=f"its files are {', '.join(sorted(self.files)) or '(none)'}; needed is "
                    "tokenizer.json, or vocab.txt, or vocab.json with merges.txt",
                    todo="quantise the model again from a folder with its tokenizer files",
                )
            paths = [str(Path(folder) / name) for name in group]
            with refusing(", ".join(group)):
                if group[0] == "tokenizer.json":
                    check_charsmaps(self.files["tokenizer.json"])
                    return FastTokenizer.from_file(paths[0])
                if group[0] == "vocab.txt":
                    return BertWordPieceTokenizer(
                        paths[0],
                        lowercase=bool(config.get("do_lower_case", True)),
                        strip_accents=config.get("strip_accents"),
                        handle_chinese_chars=bool(config.get("tokenize_chinese_chars", True)),
                    )._tokenizer
                return _roberta_tokenizer(ByteLevelBPETokenizer(*paths), config)

    def _find_pad_id(self, config: JsonObject) -> int:
        token = config.get("pad_token") or self._json("special_tokens_map.json").get("pad_token")
        if isinstance(token, Mapping):
            token = token.get("content")
        for candidate in (token, "[PAD]", "<pad>"):
            if isinstance(candidate, str):
                index = self._tokenizer.token_to_id(candidate)
                if index is not None:
                    return int(index)
        return 0


def _roberta_tokenizer(bpe: Any, config: JsonObject) -> Any:
    """Add RoBERTa's special tokens to a bare byte-level BPE."""
    from tokenizers.processors import RobertaProcessing

    fast = bpe._tokenizer
    tokens = {}
    for key, default in (("sep_token", "</s>"), ("cls_token", "<s>")):
        token = config.get(key) or default
        text = str(token["content"] if isinstance(token, Mapping) else token)
        index = fast.token_to_id(text)
        if index is None:
            raise _damaged("vocab.json", f"it does not hold the token {text!r}")
        tokens[key] = (text, int(index))
    fast.post_processor = RobertaProcessing(tokens["sep_token"], tokens["cls_token"])
    return fast


def _kept(encoding: Any, max_length: int, side: str, index: int) -> list[int]:
    """Which tokens stay, as the package tokenizers chooses them for its strategy "longest_first".

    Its own truncation also makes encodings of all that it cuts off: of a pair of long texts, one of
    each part of the first with each part of the second.
    """
    sequences = np.array([-1 if one is None else one for one in encoding.sequence_ids])
    special, *texts = (np.flatnonzero(sequences == one) for one in (-1, 0, 1))
    room = max_length - len(special)
    if room < 0:
        raise InputError(
            f"text {index} cannot be cut to {max_length} tokens",
            why=f"it has {len(special)} special tokens, which are kept",
            todo="compile with a larger --seq-len",
        )
    shorter = int(len(texts[0]) > len(texts[1]))
    counts = [room, room]
    counts[shorter] = min(len(texts[shorter]), room // 2)
    counts[1 - shorter] -= counts[shorter]
    parts = [
        text[:count] if side == "right" else text[len(text) - count :]
        for text, count in zip(texts, counts, strict=True)
    ]
    return np.sort(np.concatenate([special, *parts])).tolist()


def _no_token(index: int) -> InputError:
    return InputError(
        f"text {index} gives no token",
        why="the tokenizer knows nothing in it and adds no special tokens",
        todo="leave such texts out",
    )


def _valid(text: object, index: int, allow_empty: bool = False) -> str | tuple[str, str]:
    parts = text if isinstance(text, tuple) else (text,)
    if len(parts) not in (1, 2) or not all(isinstance(part, str) for part in parts):
        raise InputError(
            f"text {index} is not a text",
            why=f"it is {text!r}",
            todo="give a string, or a pair of strings",
        )
    if not (allow_empty or all(part.strip() for part in parts)):
        raise InputError(
            f"text {index} is empty",
            why="it holds no character other than white space",
            todo="leave empty texts out",
        )
    for part in parts:
        try:
            part.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InputError(
                f"text {index} is no Unicode text",
                why=f"character {error.start} is half of a surrogate pair, "
                f"U+{ord(part[error.start]):04X}",
                todo="cut texts between characters, not between UTF-16 units",
            ) from error
    longest = max(map(len, parts))
    if longest > MAX_CHARACTERS:
        raise InputError(
            f"text {index} is too long",
            why=f"it has {longest} characters; the tokenizer takes minutes for more than "
            f"{MAX_CHARACTERS}",
            todo="cut it: tokens behind the compiled sequence length are not read anyway",
        )
    return text  # type: ignore[return-value]


@contextmanager
def refusing(name: str) -> Iterator[None]:
    """What tokenizers raises, bare Exception or a panic of Rust's, as an error of ours."""
    try:
        yield
    except IbertError:
        raise
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise _damaged(name, str(error)) from error
        raise


def _damaged(name: str, why: str) -> ModelError:
    return ModelError(
        "the tokenizer cannot be read",
        where=name,
        why=why,
        todo="copy the tokenizer files of the model again",
    )
