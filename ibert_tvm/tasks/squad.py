"""SQuAD's files, version 1.1 and 2."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..common.errors import DocumentError
from ..common.schema import FLAG, INTEGER, STRING, check
from ..common.strict_json import JsonObject, read_json
from .errors import malformed
from .lines import MAX_ROWS
from .samples import Questions

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
