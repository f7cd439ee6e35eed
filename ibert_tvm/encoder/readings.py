"""What `Encoder` says of texts, beside the outputs that it says it of: `ibert run` shows both."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..common.strict_json import JsonDict
from ..common.types import Array, Doubles, Floats
from ..model.heads import KINDS
from ..model.model_info import ModelInfo
from ..model.scores import ranked_classes, softmax
from ..model.spans import WINDOW, best_answer
from ..model.tokenization import Tokenizer, Window
from ..runtime import IntegerOutput, Library
from .batches import Text

# Entities from the scores of tokens, as in transformers' token classification pipeline.

OUTSIDE = "O"

_Rows = Doubles
WORDS: dict[str, Callable[[_Rows], _Rows]] = {
    "first": lambda rows: rows[0],
    "max": lambda rows: rows[rows.max(axis=1).argmax()],
    "average": lambda rows: rows.mean(axis=0),
}
"""Probabilities of a word, from those of its tokens [tokens, classes]."""
STRATEGIES = ("none", "simple", *WORDS)
"""Values of `aggregation_strategy`: tokens, neighbouring tokens, or neighbouring words."""


@dataclass(frozen=True)
class TaggedToken:
    """A token, or a word, with its most likely class.

    Attributes
    ----------
    label
        Name of the class.
    score
        Its probability.
    start, end
        Its first character and the one behind its last.
    """

    label: str
    score: float
    start: int
    end: int


def tagged_tokens(
    window: Window,
    probabilities: _Rows,
    name: Callable[[int], str],
    strategy: str = "none",
    continued: Sequence[bool] = (),
) -> list[TaggedToken]:
    """Most likely classes of a window's tokens or words, those of special tokens left out.

    Parameters
    ----------
    window
        The tokens.
    probabilities
        float64 [tokens, classes].
    name
        Name of a class by its number.
    strategy
        One of `STRATEGIES`; those of `WORDS` give words.
    continued
        Whether a token is part of the word before it; needed for words.

    Returns
    -------
    list of TaggedToken
        In the order of the text.
    """
    words: list[list[int]] = []
    for place, text in enumerate(window.texts):
        if text is None:
            continue
        if words and strategy in WORDS and continued[place]:
            words[-1].append(place)
        else:
            words.append([place])
    found = []
    for places in words:
        row = WORDS.get(strategy, WORDS["first"])(probabilities[places])
        start, end = window.offsets[places[0]][0], window.offsets[places[-1]][1]
        found.append(TaggedToken(name(int(row.argmax())), float(row.max()), start, end))
    return found


def tagged_text(
    text: str,
    windows: Sequence[Window],
    logits: Sequence[Floats],
    tokenizer: Tokenizer,
    name: Callable[[int], str],
    strategy: str = "simple",
) -> list[JsonDict]:
    """Entities of a text that was tagged window by window.

    Parameters
    ----------
    text
        The text.
    windows
        All of its tokens.
    logits
        [tokens, classes] of each window.
    tokenizer
        Says which tokens continue a word.
    name
        Name of a class by its number.
    strategy
        One of `STRATEGIES`.

    Returns
    -------
    list of dict
        As `entities` returns.
    """
    tokens: list[TaggedToken] = []
    for window, rows in zip(windows, logits, strict=True):
        continued = tokenizer.continued(window, text)
        tokens += tagged_tokens(window, softmax(rows), name, strategy, continued)
    return entities(text, tokens, strategy != "none")


def entities(text: str, tokens: Sequence[TaggedToken], grouped: bool) -> list[JsonDict]:
    """Tokens that are part of something, alone or put together.

    Parameters
    ----------
    text
        The text.
    tokens
        All of its tokens.
    grouped
        Join neighbours of one class: ``B-`` begins an entity, ``I-`` or no prefix continues it.
        Another prefix is part of the class, but not of the group's name, as in transformers.

    Returns
    -------
    list of dict
        ``entity`` (or ``entity_group``), ``score`` (the mean of a group), ``word`` (as the text
        has it), ``start``, ``end``; without the class ``O``.
    """
    groups: list[tuple[str, list[TaggedToken]]] = []
    for token in tokens:
        begins, kind = _parts(token.label) if grouped else (True, token.label)
        if groups and groups[-1][0] == kind and not begins:
            groups[-1][1].append(token)
        else:
            groups.append((kind, [token]))
    named = [
        (members[0].label.split("-", 1)[-1] if grouped else kind, members)
        for kind, members in groups
    ]
    return [
        {
            "entity_group" if grouped else "entity": name,
            "score": float(np.mean([token.score for token in members])),
            "word": text[members[0].start : members[-1].end],
            "start": members[0].start,
            "end": members[-1].end,
        }
        for name, members in named
        if name != OUTSIDE
    ]


def _parts(label: str) -> tuple[bool, str]:
    """Whether a label begins an entity, and the entity's class."""
    if label[:2] in ("B-", "I-"):
        return label[0] == "B", label[2:]
    return False, label


_logger = logging.getLogger(__name__)
_SHOWN = 3
"""Classes of a text that people are shown."""


@dataclass(frozen=True)
class Part:
    """Outputs of a text.

    Attributes
    ----------
    text
        The text, or pair; None where tokens or images were given.
    windows
        Of the text, for a reading that asks for them.
    logits
        float32 [classes], or [tokens, classes] of every window.
    """

    text: Any
    windows: Sequence[Window]
    logits: Sequence[Floats]


@dataclass(frozen=True)
class Reading:
    """How outputs of one kind become what people ask a model for.

    Attributes
    ----------
    name
        As documents have it.
    read
        Of the parts of one text.
    shown
        One line of it.
    windows
        Tokens of a text, and where they come from, at most so many in a window; None where every
        text has one row.
    pairs
        Whether it reads pairs or single texts, of a reading with windows.
    """

    name: str
    read: Callable[[ModelInfo, Tokenizer | None, Part], Any]
    shown: Callable[[Any], str]
    windows: Callable[[Tokenizer, Any, int], list[Window]] | None = None
    pairs: bool = False

    def suits(self, texts: Sequence[Text]) -> bool:
        """Whether texts are what `windows` takes."""
        return all(isinstance(text, tuple) == self.pairs for text in texts)


def _classes(info: ModelInfo, _tokenizer: Tokenizer | None, part: Part) -> list[JsonDict]:
    """Classes as `Encoder.classify` gives them; the score of a pair as `Encoder.rerank` does."""
    (logits,) = part.logits
    known = info.post_processing
    alone = len(logits) == 1 and isinstance(part.text, tuple)
    function = (known.pairs or "sigmoid") if alone else known.classes
    labels = [info.label(number) for number in range(len(logits))]
    return ranked_classes(logits[None], labels, None, function)[0]


def _entities(info: ModelInfo, tokenizer: Tokenizer | None, part: Part) -> list[JsonDict]:
    assert tokenizer is not None
    return tagged_text(part.text, part.windows, part.logits, tokenizer, info.label)


def _answer(_info: ModelInfo, _tokenizer: Tokenizer | None, part: Part) -> JsonDict:
    return best_answer(part.text[1], part.windows, part.logits)


def _place(found: JsonDict, what: str) -> str:
    return f"{what} {found['score']:.4f} ({found['start']} to {found['end']})"


READINGS: Mapping[str, Reading] = {
    "classes": Reading(
        "classes",
        _classes,
        lambda classes: ", ".join(f"{c['label']} {c['score']:.4f}" for c in classes[:_SHOWN]),
    ),
    "tags": Reading(
        "entities",
        _entities,
        lambda found: (
            ", ".join(
                _place(entity, f"{entity['entity_group']} {entity['word']!r}") for entity in found
            )
            or "no entity"
        ),
        windows=lambda tokenizer, text, longest: tokenizer.windows(text, longest),
    ),
    "spans": Reading(
        "answers",
        _answer,
        lambda answer: _place(answer, repr(answer["answer"])),
        windows=lambda tokenizer, pair, longest: tokenizer.question_windows(
            pair, min(WINDOW, longest)
        ),
        pairs=True,
    ),
}
"""By what an output is used as (`Kind.compared`); vectors have none."""


def run_and_read(
    library: Library, texts: Sequence[Text] | None = None, inputs: Mapping[str, Array] | None = None
) -> tuple[dict[str, IntegerOutput], Reading | None, list[Any]]:
    """Run a library once, and read what its outputs say.

    Parameters
    ----------
    library
        What runs.
    texts
        Texts or pairs. Those that have several windows are read in all of them.
    inputs
        Inputs of the model instead, of which classes alone can be read.

    Returns
    -------
    outputs : dict of str to IntegerOutput
        As `Library.run_texts` gives them: of a text with several windows, those of the first.
    reading : Reading or None
        None where there is nothing to read.
    found : list
        For each text what the reading says.

    Raises
    ------
    InputError
        As `Library.run_texts` and `Tokenizer.windows` raise, and if a context holds no answer.
    """
    metadata, tokenizer = library.metadata, library.tokenizer
    uses = ((record.name, KINDS[record.kind].compared) for record in metadata.outputs)
    name, use = next(((name, use) for name, use in uses if use in READINGS), ("", ""))
    reading = READINGS.get(use)
    windows: list[list[Window]] = []
    if reading is not None and (cut := reading.windows) is not None:
        if texts is None or tokenizer is None or not reading.suits(texts):
            reading = None
        else:
            tokenizer.check(texts)
            windows = [cut(tokenizer, text, metadata.max_seq_len) for text in texts]
    if windows and tokenizer is not None:
        batch = tokenizer.batch_of([window for each in windows for window in each])
        outputs = library.run_tokens(batch, dequantize=False)
    elif texts is not None:
        outputs = library.run_texts(texts, dequantize=False)
    else:
        outputs = library.run(**(inputs or {}), dequantize=False)
    if reading is None:
        return outputs, None, []
    logits = outputs[name].dequantize()
    found: list[Any] = []
    firsts: list[int] = []
    start = 0
    for number, own in enumerate(windows or [[]] * len(logits)):
        rows = [*logits[start : start + (len(own) or 1)]]
        if own:
            rows = [row[: len(window.ids)] for row, window in zip(rows, own, strict=True)]
        text = None if texts is None else texts[number]
        found.append(reading.read(metadata.info, tokenizer, Part(text, own, rows)))
        firsts.append(start)
        start += len(rows)
    if start > len(firsts):
        _logger.warning("arrays of texts with several windows are those of the first")
        outputs = {key: IntegerOutput(o.values[firsts], o.scale) for key, o in outputs.items()}
    return outputs, reading, found
