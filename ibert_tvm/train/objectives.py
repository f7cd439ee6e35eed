"""What a model learns of examples: a head, the names of its classes, and tensors of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch

from ..common.errors import UsageError
from ..common.strict_json import JsonDict, JsonObject
from ..model.heads import HEADS
from ..model.tokenization import TokenizedBatch, Tokenizer, Window
from ..tasks.labels import class_numbers
from ..tasks.samples import Labelled, Questions, Scored, Tagged
from .examples import Examples

_AT_ONCE = 256
"""Examples that are tokenised together."""
_NO_ANSWER = (0, 0)
_IGNORED = -100
"""A label that no loss counts, as transformers has it."""


def class_names(data: Examples, dev: Examples, own: Sequence[str] | None = None) -> tuple[str, ...]:
    """Names of the classes in the order of the logits; none where the labels are numbers.

    Parameters
    ----------
    data, dev
        What is learned, and what is measured.
    own
        Names of the classes of the model's own head, which stay in their order if they are those of
        the labels.

    Raises
    ------
    UsageError
        If there is one class alone, or the development set has another.
    """
    samples = data.samples
    if not samples.classes:
        return ()
    names = tuple(samples.order) or tuple(sorted(set(samples.classes), key=_natural))
    # A tag's kind is looked for where entities are measured.
    others = set() if isinstance(samples, Tagged) else set(dev.samples.classes)
    unknown = sorted(others - set(names))
    if unknown or len(names) < 2:
        raise UsageError(
            f"the dev set has a class {unknown[0]!r}, the data has none"
            if unknown
            else f"all examples have the label {names[0]!r}",
            why=f"the classes are {', '.join(names)}",
            todo="give data in which every class occurs",
        )
    if own is not None and len(own) == len(names):
        try:
            class_numbers(names, own, samples.order)
        except UsageError:
            return names
        return tuple(own)
    return names


class Objective:
    """Examples as tensors, for a model with the head that they need.

    Parameters
    ----------
    examples
        What is learned.
    names
        Of `class_names`.
    tokenizer
        Of the model.
    seq_len
        Texts are truncated to this many tokens.
    """

    def __init__(
        self, examples: Examples, names: tuple[str, ...], tokenizer: Tokenizer, seq_len: int
    ) -> None:
        self.samples = examples.samples
        self.names, self.tokenizer, self.seq_len = names, tokenizer, seq_len
        numbers = class_numbers(self.samples.classes, names, self.samples.order) if names else {}
        self._numbers = numbers

    @staticmethod
    def head_of(examples: Examples) -> str:
        """Of `ibert_tvm.model.heads.HEADS`, for examples with labels."""
        kind = type(examples.samples).__name__
        return next(head.name for head in HEADS.values() if kind in head.samples)

    def inputs(self, indices: Sequence[int], names: Sequence[str]) -> dict[str, torch.Tensor]:
        """Tokens of some examples, int64 [batch, seq_len], by the names of a model's inputs."""
        arrays = self._tokens(indices).inputs(names)
        return {name: torch.from_numpy(array.astype(np.int64)) for name, array in arrays.items()}

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of every example."""
        found: list[int] = []
        for start in range(0, len(self.samples), _AT_ONCE):
            chosen = range(start, min(start + _AT_ONCE, len(self.samples)))
            found += self._tokens(chosen).attention_mask.sum(axis=1).tolist()
        return tuple(found)

    def _tokens(self, indices: Sequence[int]) -> TokenizedBatch:
        if isinstance(self.samples, (Tagged, Questions)):
            return self.tokenizer.batch_of([self._window(i) for i in indices])
        assert isinstance(self.samples, (Labelled, Scored))
        texts = [self.samples.texts[i] for i in indices]
        return self.tokenizer.encode(texts, self.seq_len, allow_empty=True)

    def _window(self, index: int) -> Window:
        """Of a sentence what is before the cut, of a question's context what has the answer."""
        if isinstance(self.samples, Questions):
            windows = self.tokenizer.question_windows(self.samples.pairs[index], self.seq_len)
            return next((w for w in windows if self._span(index, w) != _NO_ANSWER), windows[0])
        assert isinstance(self.samples, Tagged)
        return self.tokenizer.windows(" ".join(self.samples.words[index]), self.seq_len)[0]

    def labels(self, indices: Sequence[int]) -> dict[str, torch.Tensor]:
        """What a model's loss is of, by the names that transformers has for it.

        ``labels``: classes [batch], numbers [batch], or classes of every word's first token [batch,
        seq]; ``start_positions`` and ``end_positions`` [batch] of answers.
        """
        samples = self.samples
        if isinstance(samples, Questions):
            spans = torch.tensor([self._span(i, self._window(i)) for i in indices])
            return {"start_positions": spans[:, 0], "end_positions": spans[:, 1]}
        if isinstance(samples, Scored):
            return {"labels": torch.tensor([samples.scores[i] for i in indices])}
        if isinstance(samples, Labelled):
            return {"labels": torch.tensor([self._numbers[samples.labels[i]] for i in indices])}
        rows = [self._labels_of_tokens(i) for i in indices]
        longest = max(map(len, rows))
        padded = [row + [_IGNORED] * (longest - len(row)) for row in rows]
        return {"labels": torch.tensor(padded)}

    def _span(self, index: int, window: Window) -> tuple[int, int]:
        """First and last token of the answer; the first of the window where it is not in it."""
        assert isinstance(self.samples, Questions)
        start, answers = self.samples.starts[index], self.samples.answers[index]
        end = start + len(answers[0]) if answers else start
        inside = [
            place
            for place, (first, behind) in enumerate(window.offsets)
            if window.texts[place] == 1 and first < end and behind > start
        ]
        whole = start >= 0 and inside and window.offsets[inside[0]][0] <= start
        if not whole or window.offsets[inside[-1]][1] < end:
            return _NO_ANSWER
        return inside[0], inside[-1]

    def _labels_of_tokens(self, index: int) -> list[int]:
        """A word's class at its first token, found by where words end: as it is evaluated."""
        assert isinstance(self.samples, Tagged)
        words, tags = self.samples.words[index], self.samples.tags[index]
        # A token may begin with the space before its word: its last character says the word.
        word_of = [place for place, word in enumerate(words) for _ in range(len(word) + 1)]
        window = self._window(index)
        row, seen = [], set()
        for place, text in enumerate(window.texts):
            word = None if text is None else word_of[window.offsets[place][1] - 1]
            first = word is not None and word not in seen
            row.append(self._numbers[tags[word]] if first and word is not None else _IGNORED)
            seen.add(word)
        return row


def head_settings(names: tuple[str, ...], head: str) -> JsonObject:
    """What transformers is told of a new head; of a number where there are no classes."""
    if not HEADS[head].labelled:
        return {}
    labels = names or ("score",)
    settings: JsonDict = {
        "id2label": dict(enumerate(labels)),
        "label2id": {name: place for place, name in enumerate(labels)},
    }
    if HEADS[head].kind == "logits":
        settings["problem_type"] = "single_label_classification" if names else "regression"
    return settings


def _natural(label: str) -> tuple[int, float, str]:
    """Numbers by size, then names."""
    try:
        return 0, float(label), label
    except ValueError:
        return 1, 0.0, label
