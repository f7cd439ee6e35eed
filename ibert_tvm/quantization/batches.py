"""Calibration data: texts, token arrays or images become checked batches of few shapes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from ..common.errors import UsageError
from ..common.types import Array, Flags, Longs
from ..model.model_info import ModelInfo, RealInput
from ..model.tokenization import Tokenizer
from ..texts import paired

if TYPE_CHECKING:
    from ..frontend import CanonicalModel
    from .options import Observation

# Short pieces of calibration texts.
#
# Text in use is not always sentences: names, statuses, single words. The special tokens are half of
# such a text, and what they become depends on how much there is beside them, so ranges that
# sentences show are too narrow for it.

_MOST_WORDS = 3

Text = str | tuple[str, str]
"""A text, or a pair of texts."""


def short_pieces(texts: Sequence[Text], seed: int) -> list[Text]:
    """Cut one to three neighbouring words out of every text, and out of both texts of a pair.

    Parameters
    ----------
    texts
        Words are what white space separates.
    seed
        Of the choice.

    Returns
    -------
    list of str or of (str, str)
        Without those that occur before, or are a text.
    """
    random = np.random.default_rng(seed)
    found: dict[Text, None] = {}
    for text in texts:
        if isinstance(text, str):
            found[_piece(text, random)] = None
        else:
            found[_piece(text[0], random), _piece(text[1], random)] = None
    whole = {*texts, "", ("", "")}
    return [piece for piece in found if piece not in whole]


def _piece(text: str, random: np.random.Generator) -> str:
    words = text.split()
    count = int(random.integers(1, _MOST_WORDS + 1))
    start = int(random.integers(0, max(len(words) - count, 0) + 1))
    return " ".join(words[start : start + count])


Calibration = Sequence[str] | Sequence[tuple[str, str]] | Sequence[Mapping[str, Any]]

# Texts of like lengths come together.
_LENGTH_STEP = 32
_ROWS = 8
# Tokens that the float model computes together, enough for products at full speed, and the most of
# them that are padding.
_TOKENS = 512
_PADDING = 1 / 16


@dataclass(frozen=True)
class Batch:
    """Inputs of one run of the float model.

    Attributes
    ----------
    inputs
        int64 [batch, seq_len] by input name, ``attention_mask`` among them; or images, float32
        [batch, channels, height, width].
    tokens
        Length of the sequences that images become; 0 for tokens, whose arrays say it.
    """

    inputs: Mapping[str, Array]
    tokens: int = 0

    @property
    def mask(self) -> Flags:
        """Which positions hold a token, [batch, seq_len]."""
        if self.tokens:
            rows = next(iter(self.inputs.values())).shape[0]
            return np.ones((rows, self.tokens), np.bool_)
        return self.inputs["attention_mask"] != 0

    @property
    def lengths(self) -> Longs:
        """Tokens per row, [batch]; 0 for a row that only fills the batch."""
        return np.asarray(self.mask.sum(axis=1), dtype=np.int64)


def _extents(mask: Flags) -> Longs:
    """Positions of each row up to its last token, [batch]."""
    return np.asarray((mask * np.arange(1, mask.shape[1] + 1)).max(axis=1), dtype=np.int64)


def packed(
    batches: Iterable[Batch], tokens: Iterable[Flags] | None = None
) -> Iterator[tuple[Batch, Flags]]:
    """Divide the rows of batches anew, in their order, so that little is padding.

    Parameters
    ----------
    batches
        Rows of padding alone are left out.
    tokens
        What is known of the tokens of each, [batch, seq_len]; by default which are real.

    Yields
    ------
    batch : Batch
        Up to `_TOKENS`, unless one row has more; images stay as they are.
    tokens : numpy.ndarray
        Of these.
    """
    rows: list[tuple[Mapping[str, Array], Flags]] = []
    longest = held = 0
    pairs = ((b, b.mask) for b in batches) if tokens is None else zip(batches, tokens, strict=True)
    for batch, known in pairs:
        if batch.tokens:
            yield batch, known
            continue
        for row, extent in enumerate(_extents(batch.mask).tolist()):
            if not extent:
                continue
            length, size = max(longest, extent), len(rows) + 1
            full = size * length > _TOKENS or size * length - held - extent > _PADDING * _TOKENS
            if rows and full:
                yield _stacked(rows, longest)
                rows, longest, held = [], 0, 0
            rows.append(({n: array[row] for n, array in batch.inputs.items()}, known[row]))
            longest, held = max(longest, extent), held + extent
    if rows:
        yield _stacked(rows, longest)


def _stacked(rows: Sequence[tuple[Mapping[str, Array], Flags]], length: int) -> tuple[Batch, Flags]:
    def stack(arrays: Iterable[Array]) -> Array:
        """Cut or padded to the length."""
        return np.stack([np.pad(a[:length], (0, max(length - a.size, 0))) for a in arrays])

    inputs = {name: stack(row[name] for row, _ in rows) for name in rows[0][0]}
    return Batch(inputs), stack(known for _, known in rows)


def batches_of_texts(
    texts: Sequence[Text], tokenizer: Tokenizer, info: ModelInfo, seq_len: int
) -> list[Batch]:
    """Tokenise texts, or pairs of texts, and group them by length.

    Parameters
    ----------
    texts
        Empty ones are left out, and pairs that have an empty text.
    tokenizer
        The model's.
    info
        Inputs and limits of the model.
    seq_len
        Longer texts are truncated.

    Returns
    -------
    list of Batch
        Of 8 rows each, of a length that is a multiple of 32 (or `seq_len`).

    Raises
    ------
    UsageError
        If no text is left, or the tokenizer does not belong to the model.
    """
    info.check_length(seq_len, "calibrate at")
    kept = [text for text in texts if all(map(str.strip, parts_of(text)))]
    if not kept:
        raise UsageError(
            "there is no calibration text",
            why="the list is empty" if not texts else f"all {len(texts)} texts are empty",
            todo="give texts like those of later use; some dozens serve",
        )
    tokens = tokenizer.encode(kept, max_length=seq_len)
    if tokens.input_ids.max() >= info.vocab_size:
        raise UsageError(
            f"the tokenizer yields token {int(tokens.input_ids.max())}",
            why=f"the model's vocabulary has {info.vocab_size} tokens",
            todo="use the tokenizer that belongs to the model",
        )
    return [
        Batch({name: x.astype(np.int64) for name, x in batch.inputs(info.inputs).items()})
        for _, batch in tokens.batches(_ROWS, _LENGTH_STEP, seq_len, pad_id=0)
    ]


def parts_of(text: Text) -> tuple[str, ...]:
    """A text alone, or both of a pair."""
    return (text,) if isinstance(text, str) else text


def batches_of_arrays(batches: Sequence[Mapping[str, Any]], info: ModelInfo) -> list[Batch]:
    """Check batches of token ids, of images or of features.

    Parameters
    ----------
    batches
        Integer arrays [batch, seq_len] by input name. ``attention_mask`` may be left out if there
        is no padding, ``token_type_ids`` if all are 0. For a model of images ``pixel_values``,
        [batch, channels, height, width] as the model's image processor gives them; for one of
        features ``input_features`` [batch, channels, frames].
    info
        Inputs and limits of the model.

    Raises
    ------
    UsageError
        If there is no batch, or one does not fit the model.
    """
    if not batches:
        raise UsageError(
            "there is no calibration batch",
            why="the list is empty",
            todo="give batches like those of later use; some dozens of sequences serve",
        )
    result = []
    for index, batch in enumerate(batches):
        where = f"calibration batch {index}"
        needed = "input_ids" if info.real_input is None else info.inputs[0]
        unknown = sorted(set(batch) - set(info.inputs))
        if unknown or needed not in batch:
            raise UsageError(
                f"unknown input {unknown[0]!r}" if unknown else f"{needed} are missing",
                where=where,
                why=f"the model takes {', '.join(info.inputs)}",
                todo="give arrays by these names",
            )
        arrays = {name: np.asarray(array) for name, array in batch.items()}
        if info.real_input is None:
            result.append(_tokens(arrays, info, where))
        else:
            result += _images(arrays[needed], info, info.real_input, where)
    return result


def _images(pixels: Array, info: ModelInfo, real: RealInput, where: str) -> list[Batch]:
    """Check one array of images or features, and cut it into batches of few rows."""
    name, size = info.inputs[0], tuple(info.image_size or ())
    todo = f"prepare the {real.what} with the model's {real.maker}"
    if pixels.shape[1:] != size or not pixels.size or pixels.dtype.kind != "f":
        raise UsageError(
            f"{name} is {pixels.dtype} of shape {pixels.shape}",
            where=where,
            why=f"{real.what} are floats [batch, {', '.join(map(str, size))}]",
            todo=todo,
        )
    if not np.isfinite(pixels).all():
        raise UsageError(
            f"{name} holds values that are infinite or not a number",
            where=where,
            why=f"{'pixels' if len(size) == 3 else real.what} are finite",
            todo=todo,
        )
    tokens = int(info.max_sequence_length or 0)
    return [
        Batch({name: pixels[start : start + _ROWS].astype(np.float32)}, tokens)
        for start in range(0, pixels.shape[0], _ROWS)
    ]


def _tokens(arrays: Mapping[str, Array], info: ModelInfo, where: str) -> Batch:
    """Check token ids and what belongs to them; what is missing gets its default."""
    shape = arrays["input_ids"].shape
    for name, array in arrays.items():
        if array.ndim != 2 or array.shape != shape or 0 in shape or array.dtype.kind not in "iub":
            raise UsageError(
                f"{name} is {array.dtype} of shape {array.shape}",
                where=where,
                why="all inputs are integers of one shape [batch, seq_len], not empty",
                todo="pad the sequences of a batch to one length",
            )
    info.check_length(shape[1], "calibrate at")
    defaults = {"attention_mask": 1, "token_type_ids": 0}
    inputs = {
        name: arrays.get(name, np.full(shape, defaults.get(name, 0))).astype(np.int64)
        for name in info.inputs
    }
    _check_range(inputs["input_ids"], info.vocab_size, "token", "vocabulary", where)
    if "token_type_ids" in inputs:
        _check_range(inputs["token_type_ids"], info.type_vocab_size, "token type", "types", where)
    mask = inputs["attention_mask"]
    other = mask[(mask != 0) & (mask != 1)]
    if other.size:
        raise UsageError(
            f"attention_mask holds {int(other[0])}",
            where=where,
            why="a position is a token (1) or padding (0); a mask that is added to scores, or one "
            "of numbered sequences, means another thing",
            todo="give 1 for tokens and 0 for padding",
        )
    if not mask.any():
        raise UsageError(
            "it holds no token",
            where=where,
            why="its attention mask is 0 everywhere",
            todo="leave it out",
        )
    return Batch(inputs)


def _check_range(ids: Longs, count: int, what: str, which: str, where: str) -> None:
    bad = ids[(ids < 0) | (ids >= count)]
    if bad.size:
        raise UsageError(
            f"{what} {int(bad[0])} does not exist",
            where=where,
            why=f"the model's {which} are 0 to {count - 1}",
            todo="use the tokenizer that belongs to the model",
        )


def batches_of(
    model: CanonicalModel,
    calibration: Calibration,
    options: Observation,
    tokenizer: Tokenizer | None,
) -> list[Batch]:
    """Make batches of calibration data: of texts, of pairs of texts, or of arrays.

    Raises
    ------
    UsageError
        If it is neither, is empty, or does not fit the model.
    """
    if isinstance(calibration, (str, bytes, Mapping)):
        raise UsageError(
            "the calibration data is a single item",
            why=f"it is a {type(calibration).__name__}",
            todo="give a list of texts, or a list of batches",
        )
    items = list(spread(list(calibration), options.most_texts))
    texts: list[Text] = [item for item in items if _is_text(item)]
    arrays = [item for item in items if isinstance(item, Mapping)]
    if len(texts) + len(arrays) != len(items) or (texts and arrays):
        kinds = sorted({type(item).__name__ for item in items})
        raise UsageError(
            "the calibration data is neither texts nor batches",
            why=f"its items are {', '.join(kinds)}",
            todo="give a list of str, of pairs (str, str), or of dicts of integer arrays",
        )
    if arrays:
        return batches_of_arrays(arrays, model.info)
    real = model.info.real_input
    if real is not None:
        name, size = model.info.inputs[0], ", ".join(map(str, model.info.image_size or ()))
        raise UsageError(
            f"a model of {real.what} cannot be calibrated with texts",
            why=f"it takes {name} [batch, {size}]",
            todo=f"give batches of {real.what}, as the model's {real.maker} makes them: "
            f"--calibration FILE.npz with an array {name}",
        )
    if tokenizer is None:
        if not model.tokenizer:
            raise UsageError(
                "texts cannot be tokenised",
                why="the model came without tokenizer files",
                todo="give batches of token ids, or a tokenizer",
            )
        tokenizer = Tokenizer(model.tokenizer)
    single = [text for text in texts if isinstance(text, str)]
    if model.info.reads_pairs and len(single) == len(texts):
        # Second texts have positions and token types that no single text has.
        texts += paired(single)
    if options.short_pieces:
        texts += short_pieces(texts, options.seed)
    return batches_of_texts(texts, tokenizer, model.info, model.info.length(options.seq_len))


def spread(items: Sequence[Any], most: int | None) -> Sequence[Any]:
    """At most so many of the items, evenly spread."""
    if most is None or len(items) <= most:
        return items
    return [items[place * len(items) // most] for place in range(most)]


def _is_text(item: Any) -> TypeGuard[Text]:
    """Whether an item of calibration is a text, or a pair of texts."""
    pair = isinstance(item, tuple) and len(item) == 2
    return isinstance(item, str) or (pair and all(isinstance(part, str) for part in item))
