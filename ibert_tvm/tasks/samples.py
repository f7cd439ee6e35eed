"""Samples of every kind of task, as they were read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

Text = str | tuple[str, str]


@dataclass(frozen=True)
class Labelled:
    """Texts or pairs with a class each.

    Attributes
    ----------
    texts : sequence of str or of (str, str)
        The texts.
    labels : sequence of str
        As the file has them.
    order : sequence of str
        The labels in the order of the classes, where the format says it; empty if not.
    skipped : int
        Rows that were left out.
    """

    texts: Sequence[Text]
    labels: Sequence[str]
    order: Sequence[str] = ()
    skipped: int = 0


@dataclass(frozen=True)
class Scored:
    """Pairs of texts with a similarity each, or texts with a number.

    Attributes
    ----------
    texts : sequence of str or of (str, str)
        The pairs; where a model is tuned, texts too.
    scores : sequence of float
        The larger the more alike.
    skipped : int
        Rows that were left out.
    """

    texts: Sequence[Text]
    scores: Sequence[float]
    skipped: int = 0


@dataclass(frozen=True)
class Tagged:
    """Sentences with a tag per word.

    Attributes
    ----------
    words, tags : sequence of sequence of str
        Of every sentence, at least one.
    """

    words: Sequence[Sequence[str]]
    tags: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Questions:
    """Questions on contexts.

    Attributes
    ----------
    pairs : sequence of (str, str)
        Question and context.
    answers : sequence of tuple of str
        What counts as right; empty where the context has no answer.
    unanswerable : bool
        Whether there may be such questions, so that a model may say that there is no answer.
    starts : sequence of int
        Where in the context the first answer begins, -1 where it does not occur.
    """

    pairs: Sequence[tuple[str, str]]
    answers: Sequence[tuple[str, ...]]
    unanswerable: bool
    starts: Sequence[int] = ()


@dataclass(frozen=True)
class Retrieval:
    """A corpus, queries, and which documents are relevant to them.

    Attributes
    ----------
    documents, queries : mapping of str to str
        Texts by identifier; only queries that are judged.
    relevance : mapping of str to (mapping of str to int)
        Grades of documents by query; what is not there or 0 is not relevant.
    """

    documents: Mapping[str, str] = field(default_factory=dict)
    queries: Mapping[str, str] = field(default_factory=dict)
    relevance: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


Samples = Labelled | Scored | Tagged | Questions | Retrieval
_Some = TypeVar("_Some", bound=Labelled | Scored | Tagged | Questions)


def chosen(samples: _Some, indices: Sequence[int]) -> _Some:
    """Return some of the samples, in the order of the indices."""
    rows = {
        Labelled: ("texts", "labels"),
        Scored: ("texts", "scores"),
        Tagged: ("words", "tags"),
        Questions: ("pairs", "answers", "starts"),
    }[type(samples)]
    kept: dict[str, Any] = {
        name: [given[i] for i in indices] for name in rows if (given := getattr(samples, name))
    }
    return replace(samples, **kept)


def size(samples: Samples) -> int:
    """Texts, sentences, questions or queries that are judged."""
    if isinstance(samples, Retrieval):
        return len(samples.queries)
    if isinstance(samples, Tagged):
        return len(samples.words)
    if isinstance(samples, Questions):
        return len(samples.pairs)
    return len(samples.texts)
