"""SQuAD's files, version 1.1 and 2."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..common.errors import DocumentError
from ..common.schema import FLAG, INTEGER, STRING, check
from ..common.strict_json import JsonObject, read_json
from ..common.types import Floats
from ..model.tokenization import Window
from .errors import malformed
from .lines import MAX_ROWS
from .samples import Questions

# Answers to questions: the best span of all windows, and SQuAD's two figures.

LONGEST = 30
"""Most tokens of an answer, as in the original evaluation."""
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def predicted_answer(
    context: str, windows: Sequence[Window], logits: Sequence[Floats], unanswerable: bool
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


_MAX_BYTES = 2**28
_MAX_DEPTH = 10
_SCHEMA = {
    "data": [
        {
            "paragraphs": [
                {
                    "context": STRING,
                    "qas": [
                        {
                            "question": STRING,
                            "answers": [{"text": STRING, "answer_start?": INTEGER}],
                            "is_impossible?": FLAG,
                        }
                    ],
                }
            ]
        }
    ]
}


def read_squad(path: Path) -> Questions:
    """Read questions with their contexts and answers.

    Parameters
    ----------
    path : pathlib.Path
        A JSON document of version 1.1, or of version 2 (where a question has ``is_impossible``).

    Raises
    ------
    DataError
        If it cannot be read, is not in that form, or has no question.
    """
    try:
        document = read_json(path, _MAX_BYTES, _MAX_DEPTH)
        check(document, _SCHEMA)
    except DocumentError as error:
        why = "; ".join(part for part in (error.what, error.where, error.why) if part)
        raise malformed(path, 0, why) from None
    pairs: list[tuple[str, str]] = []
    answers: list[tuple[str, ...]] = []
    starts: list[int] = []
    unanswerable = False
    for article in document["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                unanswerable |= "is_impossible" in question
                pairs.append((question["question"], paragraph["context"]))
                answers.append(tuple(answer["text"] for answer in question["answers"]))
                starts.append(_start(paragraph["context"], question["answers"]))
    if not pairs:
        raise malformed(path, 0, "it has no question")
    if len(pairs) > MAX_ROWS:
        raise malformed(path, 0, f"there are more than {MAX_ROWS} questions")
    blank = next((i for i, pair in enumerate(pairs) if not all(map(str.strip, pair))), None)
    if blank is not None:
        raise malformed(path, 0, f"question {blank + 1} or its context is empty")
    empty = next((i for i, given in enumerate(answers) if not given), None)
    if empty is not None and not unanswerable:
        raise malformed(path, 0, f"question {empty + 1}, {pairs[empty][0][:40]!r}, has no answer")
    return Questions(pairs, answers, unanswerable, starts)


def _start(context: str, answers: Sequence[JsonObject]) -> int:
    """Where the first answer begins: where the file says so, if it is there, or its first place."""
    if not answers:
        return -1
    text, said = answers[0]["text"], answers[0].get("answer_start", -1)
    return said if said >= 0 and context.startswith(text, said) else context.find(text)
