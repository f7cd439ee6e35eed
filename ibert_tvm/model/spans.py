"""The best answer in a context, from the scores of tokens to be its start and its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from ..common.errors import InputError
from ..common.strict_json import JsonDict
from ..common.types import Doubles, Flags, Floats
from .tokenization import Window

LONGEST_ANSWER = 15
"""Most tokens of an answer by default, as in transformers' pipeline."""
WINDOW = 384
"""Most tokens of question and context by default, likewise: as these models are trained."""


@dataclass(frozen=True)
class Span:
    """A part of the context.

    Attributes
    ----------
    score
        Probability of its start times that of its end.
    start, end
        Its first character and the one behind its last.
    """

    score: float
    start: int
    end: int


def best_span(
    window: Window, logits: NDArray[np.floating], longest: int, text: int = 1
) -> Span | None:
    """Most likely span of a text of a window, widened to whole words.

    As in the pipeline of question answering of transformers 4: probabilities are those among the
    tokens of the context and the first token, which stands for no answer; a span has one start,
    one end behind it and at most `longest` tokens.

    Parameters
    ----------
    window
        Question and context.
    logits
        [tokens, 2]: of being the start, and the end.
    longest
        Most tokens of an answer.
    text
        Of a pair, the second by default: the context.

    Returns
    -------
    Span or None
        None where the window holds no token of the context.
    """
    inside = _inside(window, text)
    if not inside.any():
        return None
    start, end = np.where(inside, _probabilities(window, logits, text), 0)
    products = np.tril(np.triu(start[:, None] * end[None, :]), longest - 1)
    first, last = (int(i) for i in np.unravel_index(products.argmax(), products.shape))
    score = float(products[first, last])
    while first > 0 and _one_word(window, text, first - 1, first):
        first -= 1
    while last + 1 < len(window.ids) and _one_word(window, text, last, last + 1):
        last += 1
    return Span(score, window.offsets[first][0], window.offsets[last][1])


def best_answer(
    context: str,
    windows: Sequence[Window],
    logits: Sequence[Floats],
    longest: int = LONGEST_ANSWER,
    impossible: bool = False,
) -> JsonDict:
    """The best span of all windows.

    Parameters
    ----------
    context
        The second text of the windows.
    windows
        Question and context.
    logits
        [tokens, 2] of each window.
    longest
        Most tokens of an answer.
    impossible
        Give an empty answer where none is more likely in every window than the best span.

    Returns
    -------
    dict
        ``answer``, ``score``, ``start`` and ``end``, characters of the context.

    Raises
    ------
    InputError
        If no window holds a token of the context.
    """
    pairs = list(zip(windows, logits, strict=True))
    spans = [best_span(window, rows, longest) for window, rows in pairs]
    found = [span for span in spans if span is not None]
    if not found:
        raise InputError(
            "the context holds no answer",
            why="the tokenizer makes no token of it",
            todo="give a context of words",
        )
    best = max(found, key=lambda span: span.score)
    if impossible:
        none = min(no_answer(window, rows) for window, rows in pairs)
        best = Span(none, 0, 0) if none > best.score else best
    return {"answer": context[best.start : best.end], **asdict(best)}


def no_answer(window: Window, logits: Floats) -> float:
    """Probability that a window holds no answer; 0 where no token stands for that."""
    first = _probabilities(window, logits, 1)[:, 0]
    return float(first.prod())


def _inside(window: Window, text: int) -> Flags:
    """Which tokens belong to a text of a window."""
    return np.array([each == text for each in window.texts])


def _probabilities(window: Window, logits: NDArray[np.floating], text: int) -> Doubles:
    """Of every token to be the start and to be the end, [2, tokens]."""
    counted = _inside(window, text)
    counted[0] |= window.texts[0] is None
    scores = np.where(counted, logits.T.astype(np.float64), -np.inf)
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return scores / scores.sum(axis=1, keepdims=True)


def _one_word(window: Window, text: int, a: int, b: int) -> bool:
    """Whether two tokens of a text belong to one word of it."""
    return window.texts[a] == window.texts[b] == text and window.words[a] == window.words[b]
