"""How far two models agree on the same texts, in the terms of what their output is used for.

A class per use, which is all that the command line and the report know of it: its fields are what
is measured, each with a title and a format. `COMPARISONS` has one record per use of outputs
(`Kind.compared`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, get_args

import numpy as np

from ..common.strict_json import JsonDict
from ..common.types import Array, Flags, Longs
from ..model.heads import KINDS
from ..model.model_info import ModelInfo
from ..model.scores import FUNCTIONS, softmax
from ..model.spans import LONGEST_ANSWER, Span, best_span
from ..model.tokenization import Window
from .metrics import nearest_neighbours, pairwise_cosine, row_cosine, spearman

GRADES = {
    "excellent": "in use the same as the float model",
    "good": "near ties are decided otherwise now and then",
    "fair": "some results change: measure your own task with --task",
    "poor": "results change: --why says where quality is lost",
}
"""How close a model is, and what that means in use."""
_CORRELATION, _SHARE = (0.999, 0.995, 0.98), (0.995, 0.98, 0.95)
"""Least values of the grades above the last one."""


def _figure(title: str, form: str = ".5f", least: tuple[float, ...] = ()) -> Any:
    return field(metadata={"title": title, "form": form, "least": least})


_ERROR = "largest absolute error"
_SCORE_ERROR = "largest difference of scores"


@dataclass(frozen=True)
class Agreement:
    """Vectors of texts.

    Attributes
    ----------
    cosine_mean, cosine_min
        Of the cosine between the two vectors of each text.
    spearman
        Rank correlation of the similarities of all pairs of texts; None below three texts.
    max_abs_error
        Largest difference of two elements.
    same_nearest_neighbour
        Share of the texts whose most similar other text is the same; None below three texts.
    """

    cosine_mean: float = _figure("mean cosine to the float model", least=_CORRELATION)
    cosine_min: float = _figure("smallest cosine")
    spearman: float | None = _figure("Spearman of pairwise similarities", least=_CORRELATION)
    max_abs_error: float = _figure(_ERROR)
    same_nearest_neighbour: float | None = _figure("same nearest neighbour", ".1%", _SHARE)

    @classmethod
    def of(cls, reference: Array, candidate: Array) -> Agreement:
        """Compare two arrays [texts, channels]."""
        cosine = row_cosine(reference, candidate)
        correlation: float | None = None
        same: float | None = None
        if len(reference) >= 3:
            a, b = pairwise_cosine(reference), pairwise_cosine(candidate)
            upper = np.triu_indices(len(a), 1)
            correlation = _known(spearman(a[upper], b[upper]))
            same = float((nearest_neighbours(a) == nearest_neighbours(b)).mean())
        difference = np.asarray(reference, np.float64) - np.asarray(candidate, np.float64)
        return cls(
            cosine_mean=float(cosine.mean()),
            cosine_min=float(cosine.min()),
            spearman=correlation,
            max_abs_error=float(np.abs(difference).max()),
            same_nearest_neighbour=same,
        )


@dataclass(frozen=True)
class LabelAgreement:
    """Classes of texts.

    Attributes
    ----------
    same_label
        Share of the texts with the same class; of several labels at once, of all pairs of a text
        and a label that both models give (score 0.5 or more), or neither.
    score_difference_mean, score_difference_max
        Of the scores of all classes, as `Encoder.classify` gives them.
    max_abs_error
        Largest difference of two logits.
    """

    same_label: float = _figure("same label", ".1%", _SHARE)
    score_difference_mean: float = _figure("mean difference of scores")
    score_difference_max: float = _figure(_SCORE_ERROR)
    max_abs_error: float = _figure(_ERROR)


@dataclass(frozen=True)
class RankAgreement:
    """Scores of texts or pairs: of rerankers and regressions.

    Attributes
    ----------
    rank_correlation
        Spearman's, of the scores of all texts, the smallest where a text has several; None where
        there is no order.
    mean_abs_error, max_abs_error
        Of the differences of scores, before a function is applied.
    """

    rank_correlation: float | None = _figure("Spearman of the texts' scores", least=_CORRELATION)
    mean_abs_error: float = _figure("mean absolute error")
    max_abs_error: float = _figure(_ERROR)


@dataclass(frozen=True)
class TagAgreement:
    """Classes of tokens, special tokens left out.

    Attributes
    ----------
    same_tag
        Share of the tokens with the same class; None without any token.
    tags
        The same of the tokens that the float model gives a class, by its name.
    score_difference_max
        Of the scores of all classes.
    max_abs_error
        Largest difference of two logits.
    """

    same_tag: float | None = _figure("same tag", ".1%", _SHARE)
    tags: Mapping[str, float] = _figure("same tag", ".1%")
    score_difference_max: float = _figure(_SCORE_ERROR)
    max_abs_error: float = _figure(_ERROR)


@dataclass(frozen=True)
class SpanAgreement:
    """Answers: in the second text of a pair, or anywhere in a text alone.

    Attributes
    ----------
    same_answer
        Share of the texts with the same answer; None where none has a token.
    score_difference_max
        Of the scores of a text's answers.
    max_abs_error
        Largest difference of two logits.
    """

    same_answer: float | None = _figure("same answer", ".1%", _SHARE)
    score_difference_max: float | None = _figure("largest difference of an answer's score")
    max_abs_error: float = _figure(_ERROR)


AnyAgreement = Agreement | LabelAgreement | RankAgreement | TagAgreement | SpanAgreement


@dataclass(frozen=True)
class Figure:
    """One number of an agreement.

    Attributes
    ----------
    key
        Names in its document, from the outermost: ``("tags", "B-LOC")``.
    title
        For people.
    form
        Python's format.
    least
        The least values of the first three of `GRADES`; empty where none says what is good.
    """

    key: tuple[str, ...]
    title: str
    form: str
    least: tuple[float, ...] = ()

    def grade(self, value: float) -> str:
        """One of `GRADES`; empty where there are none."""
        reached = sum(value >= least for least in self.least)
        return [*reversed(GRADES)][reached] if self.least else ""


def figures(document: Mapping[str, Any]) -> list[Figure]:
    """List the numbers of an agreement's document, or of one that holds it, that are known."""
    found: list[Figure] = []
    parts: list[Figure] = []
    measured = (fields(kind) for kind in get_args(AnyAgreement))
    for item in next((x for x in measured if {f.name for f in x} <= document.keys()), ()):
        value, (title, form, least) = document[item.name], item.metadata.values()
        if isinstance(value, Mapping):
            parts += [Figure((item.name, key), f"{title}, {key}", form) for key in value]
        elif value is not None:
            found.append(Figure((item.name,), title, form, least))
    return [*found, *parts]


def verdict(document: Mapping[str, Any]) -> tuple[str, str]:
    """The grade of the first number that has one, and what it means; empty without one."""
    for figure in figures(document):
        if figure.least:
            grade = figure.grade(document[figure.key[0]])
            return grade, GRADES[grade]
    return "", ""


def shown(agreement: AnyAgreement) -> list[tuple[str, str, str]]:
    """Titles, values and grades for people, and what the first grade means."""
    document: JsonDict = asdict(agreement)
    rows = []
    for figure in figures(document):
        value: Any = document
        for name in figure.key:
            value = value[name]
        rows.append((figure.title, format(value, figure.form), figure.grade(value)))
    grade, meaning = verdict(document)
    return [*rows, (f"all in all {grade}", meaning, "")] if grade else rows


Vectors = tuple[Array, Array]
"""Of one text by both models, the float one first: float64 [channels]."""


def _vectors(texts: Sequence[Vectors], _info: ModelInfo) -> Agreement:
    return Agreement.of(*stacked(texts))


def _classes(texts: Sequence[Vectors], info: ModelInfo) -> LabelAgreement | RankAgreement:
    logits = stacked(texts)
    error = np.abs(logits[0] - logits[1])
    function = info.post_processing.classes or "softmax"
    if function not in _SAME or error.shape[1] == 1:
        correlations = [_known(spearman(a, b)) for a, b in zip(*(x.T for x in logits), strict=True)]
        return RankAgreement(
            rank_correlation=min((c for c in correlations if c is not None), default=None),
            mean_abs_error=float(error.mean()),
            max_abs_error=float(error.max()),
        )
    a, b = map(FUNCTIONS[function], logits)
    return LabelAgreement(
        same_label=float(_SAME[function](a, b).mean()),
        score_difference_mean=float(np.abs(a - b).mean()),
        score_difference_max=float(np.abs(a - b).max()),
        max_abs_error=float(error.max()),
    )


_SAME: Mapping[str, Callable[[Array, Array], Flags]] = {
    "softmax": lambda a, b: a.argmax(axis=1) == b.argmax(axis=1),
    "sigmoid": lambda a, b: (a >= 0.5) == (b >= 0.5),
}
"""Where two models decide alike, by the function of their scores [texts, classes]. Other functions
make scores that decide nothing."""


@dataclass(frozen=True)
class _Tags:
    """Classes of a text's tokens: those of both models, and what they differ by."""

    expected: Longs
    actual: Longs
    score_difference: float
    error: float

    @classmethod
    def of(cls, reference: Array, candidate: Array, window: Window) -> _Tags:
        places = [place for place, text in enumerate(window.texts) if text is not None]
        logits = [np.asarray(side[places], np.float64) for side in (reference, candidate)]
        a, b = map(softmax, logits)
        return cls(
            expected=a.argmax(axis=1),
            actual=b.argmax(axis=1),
            score_difference=float(np.abs(a - b).max(initial=0)),
            error=float(np.abs(logits[0] - logits[1]).max(initial=0)),
        )


def _tags(texts: Sequence[_Tags], info: ModelInfo) -> TagAgreement:
    expected = np.concatenate([text.expected for text in texts])
    same = expected == np.concatenate([text.actual for text in texts])
    return TagAgreement(
        same_tag=float(same.mean()) if len(same) else None,
        tags={info.label(int(n)): float(same[expected == n].mean()) for n in np.unique(expected)},
        score_difference_max=max(text.score_difference for text in texts),
        max_abs_error=max(text.error for text in texts),
    )


@dataclass(frozen=True)
class _Answers:
    """Answers of both models in a text, None where it has no token; and what logits differ by."""

    pair: tuple[Span, Span] | None
    error: float

    @classmethod
    def of(cls, reference: Array, candidate: Array, window: Window) -> _Answers:
        text = max((text for text in window.texts if text is not None), default=0)
        a, b = (best_span(window, x, LONGEST_ANSWER, text) for x in (reference, candidate))
        error = float(np.abs(np.subtract(reference, candidate, dtype=np.float64)).max())
        return cls(None if a is None or b is None else (a, b), error)


def _spans(texts: Sequence[_Answers], _info: ModelInfo) -> SpanAgreement:
    pairs = [text.pair for text in texts if text.pair is not None]
    same = [(a.start, a.end) == (b.start, b.end) for a, b in pairs]
    return SpanAgreement(
        same_answer=float(np.mean(same)) if same else None,
        score_difference_max=max((abs(a.score - b.score) for a, b in pairs), default=None),
        max_abs_error=max(text.error for text in texts),
    )


@dataclass(frozen=True)
class Comparison:
    """What outputs that are used in one way are compared by.

    Attributes
    ----------
    agreement
        Of what is known of all texts.
    of_text
        What is known of a text: from logits [tokens, classes] of the float model and the other, and
        where the tokens come from. None for `Vectors`, which are enough.
    """

    agreement: Callable[[Sequence[Any], ModelInfo], AnyAgreement]
    of_text: Callable[[Array, Array, Window], Any] | None = None


COMPARISONS: Mapping[str, Comparison] = {
    "vectors": Comparison(_vectors),
    "classes": Comparison(_classes),
    "tags": Comparison(_tags, _Tags.of),
    "spans": Comparison(_spans, _Answers.of),
}
"""By what an output is compared as: `Kind.compared`."""


def comparison_of(info: ModelInfo) -> Comparison:
    """Return what the first output of a model is compared by."""
    return COMPARISONS[KINDS[info.outputs[0].kind].compared]


def stacked(texts: Sequence[Vectors]) -> tuple[Array, Array]:
    """Vectors of all texts by each model, [texts, channels]."""
    return np.stack([a for a, _ in texts]), np.stack([b for _, b in texts])


def _known(value: float) -> float | None:
    return None if np.isnan(value) else value
