"""Answers to questions: the best span of all windows, and SQuAD's two figures."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..model.tokenization import Window

LONGEST = 30
"""Most tokens of an answer, as in the original evaluation."""
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def predicted_answer(
    context: str,
    windows: Sequence[Window],
    logits: Sequence[NDArray[np.float32]],
    unanswerable: bool,
) -> str:
    """Return the part of the context with the largest sum of start and end logits.

    Parameters
    ----------
    context
        What the windows were made of.
    windows
        Question and context, overlapping.
    logits
        float32 [tokens, 2] of each window.
    unanswerable
        Give no answer where in every window the first token, which stands for none, scores more
        than the best span.

    Returns
    -------
    str
        Empty for no answer.
    """
    best, answer, none = -np.inf, "", np.inf
    for window, scores in zip(windows, logits, strict=True):
        scores = scores.astype(np.float64)
        none = min(none, float(scores[0].sum()))
        inside = np.flatnonzero(np.array([text == 1 for text in window.texts]))
        if not len(inside):
            continue
        sums = scores[inside, 0][:, None] + scores[inside, 1][None, :]
        allowed = np.tril(np.triu(np.ones(sums.shape, bool)), LONGEST - 1)
        place = int(np.where(allowed, sums, -np.inf).argmax())
        first, last = (int(inside[i]) for i in np.unravel_index(place, sums.shape))
        score = float(sums.flat[place])
        if score > best:
            best = score
            answer = context[window.offsets[first][0] : window.offsets[last][1]]
    return "" if unanswerable and none > best else answer


def normalised(answer: str) -> str:
    """Lower case, without punctuation, articles and extra white space: the official form."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(predicted: str, answers: Sequence[str]) -> float:
    """1 if an answer is equal in the official form; no answers stand for the empty one."""
    return float(normalised(predicted) in {normalised(answer) for answer in _right(answers)})


def token_f1(predicted: str, answers: Sequence[str]) -> float:
    """Largest F1 of the predicted words and those of an answer."""
    return max(_f1(normalised(predicted).split(), normalised(a).split()) for a in _right(answers))


def _right(answers: Sequence[str]) -> Sequence[str]:
    """Answers that are not empty in the official form; the empty one if there is none."""
    return [answer for answer in answers if normalised(answer)] or [""]


def _f1(predicted: list[str], right: list[str]) -> float:
    if not predicted or not right:
        return float(predicted == right)
    common = sum((Counter(predicted) & Counter(right)).values())
    return 2 * common / (len(predicted) + len(right))
