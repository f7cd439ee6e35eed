"""Samples of every kind of task, as they were read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, TypeVar

Text = str | tuple[str, str]


S = TypeVar("S", bound="Samples")


class Samples:
    """What a task is measured on, or a model is tuned on."""

    ROWS: ClassVar[tuple[str, ...]]
    """Fields that have an entry for each sample; the first one always has."""

    order: Sequence[str] = ()
    """The classes in their order, where the format says it; empty if not."""

    def __len__(self) -> int:
        return len(getattr(self, self.ROWS[0]))

    def chosen(self: S, indices: Sequence[int]) -> S:
        """Return some of the samples, in the order of the indices."""
        given = {name: values for name in self.ROWS if (values := getattr(self, name))}
        kept = {name: [values[i] for i in indices] for name, values in given.items()}
        return replace(self, **kept)  # type: ignore[type-var]

    @property
    def classes(self) -> Sequence[str]:
        """The class of every text or word; empty where there are none."""
        return ()


@dataclass(frozen=True)
class Labelled(Samples):
    """Texts or pairs with a class each.

    Attributes
    ----------
    texts
        The texts.
    labels
        As the file has them.
    order
        The labels in the order of the classes, where the format says it; empty if not.
    skipped
        Rows that were left out.
    """

    texts: Sequence[Text]
    labels: Sequence[str]
    order: Sequence[str] = ()
    skipped: int = 0

    ROWS = ("texts", "labels")

    @property
    def classes(self) -> Sequence[str]:
        return self.labels


@dataclass(frozen=True)
class Scored(Samples):
    """Pairs of texts with a similarity each, or texts with a number.

    Attributes
    ----------
    texts
        The pairs; where a model is tuned, texts too.
    scores
        The larger the more alike.
    skipped
        Rows that were left out.
    """

    texts: Sequence[Text]
    scores: Sequence[float]
    skipped: int = 0

    ROWS = ("texts", "scores")


@dataclass(frozen=True)
class Tagged(Samples):
    """Sentences with a tag per word.

    Attributes
    ----------
    words, tags
        Of every sentence, at least one.
    """

    words: Sequence[Sequence[str]]
    tags: Sequence[Sequence[str]]

    ROWS = ("words", "tags")

    @property
    def classes(self) -> Sequence[str]:
        return [tag for tags in self.tags for tag in tags]


@dataclass(frozen=True)
class Questions(Samples):
    """Questions on contexts.

    Attributes
    ----------
    pairs
        Question and context.
    answers
        What counts as right; empty where the context has no answer.
    unanswerable
        Whether there may be such questions, so that a model may say that there is no answer.
    starts
        Where in the context the first answer begins, -1 where it does not occur.
    """

    pairs: Sequence[tuple[str, str]]
    answers: Sequence[tuple[str, ...]]
    unanswerable: bool
    starts: Sequence[int] = ()

    ROWS = ("pairs", "answers", "starts")


@dataclass(frozen=True)
class Retrieval(Samples):
    """A corpus, queries, and which documents are relevant to them.

    Attributes
    ----------
    documents, queries
        Texts by identifier; only queries that are judged.
    relevance
        Grades of documents by query; what is not there or 0 is not relevant.
    """

    documents: Mapping[str, str] = field(default_factory=dict)
    queries: Mapping[str, str] = field(default_factory=dict)
    relevance: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    ROWS = ("queries",)

    def chosen(self, indices: Sequence[int]) -> Retrieval:
        names = list(self.queries)
        kept = [names[i] for i in indices]
        return Retrieval(
            self.documents,
            {name: self.queries[name] for name in kept},
            {name: self.relevance[name] for name in kept},
        )
