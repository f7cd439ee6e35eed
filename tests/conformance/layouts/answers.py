"""Question answering: answers, their places and scores."""

from __future__ import annotations

from functools import partial

from tests.conformance.head_folders import WITHOUT_TYPES, with_head
from tests.conformance.head_results import answers
from tests.conformance.layout import LAYOUTS, Layout

_reader = partial(with_head, "question_answering")

for name, folder in {
    "bert-squad": _reader(),
    "distilbert-squad": _reader("distilbert", settings=WITHOUT_TYPES),
    "roberta-squad2": _reader("roberta"),
    "xlm-roberta-squad2": _reader("xlm-roberta"),
}.items():
    LAYOUTS.register(Layout(name, folder, answers, default=name == "bert-squad", pairs=True))
