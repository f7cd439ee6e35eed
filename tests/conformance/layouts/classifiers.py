"""Text classifiers: labels and scores as the pipeline ``text-classification`` gives them."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.conformance.head_folders import WITHOUT_TYPES, with_head
from tests.conformance.head_results import PAIRS, classes
from tests.conformance.layout import LAYOUTS, Layout

_SINGLE, _MULTI = "single_label_classification", "multi_label_classification"
_TOXIC = ("toxic", "severe_toxic", "obscene", "threat", "insult", "identity_hate")
_STARS = ("1 star", "2 stars", "3 stars", "4 stars", "5 stars")
_SENTIMENT = ("NEGATIVE", "POSITIVE")

_classifier = partial(with_head, "reranker")


def _labels(*names: str, problem: str | None = None) -> dict[str, Any]:
    said = {} if problem is None else {"problem_type": problem}
    return {"id2label": dict(enumerate(names)), **said}


for name, folder in {
    "toxic-bert": _classifier(config=_labels(*_TOXIC, problem=_MULTI)),
    "toxicity with one label": _classifier(config=_labels("toxic")),
    "distilbert-sst-2": _classifier(
        "distilbert", settings=WITHOUT_TYPES, config=_labels(*_SENTIMENT, problem=_SINGLE)
    ),
    "sentiment without names": _classifier("electra", config={"num_labels": 2}),
    "labels in another order": _classifier(
        changes={"id2label": {"2": "good", "0": "bad", "1": "neither"}}, config={"num_labels": 3}
    ),
    "go-emotions": _classifier(
        "roberta", config=_labels(*(f"emotion {i}" for i in range(28)), problem=_MULTI)
    ),
    "twitter-roberta-sentiment": _classifier(
        "roberta", pickled=True, config=_labels("negative", "neutral", "positive")
    ),
    "bert-multilingual-sentiment": _classifier(
        settings={"do_lower_case": False, "strip_accents": False}, config=_labels(*_STARS)
    ),
    "regression": _classifier(config=_labels("score", problem="regression")),
    "regression of two values": _classifier(
        config=_labels("valence", "arousal", problem="regression")
    ),
    "xlm-roberta-language-detection": _classifier("xlm-roberta", config=_labels("de", "en", "fr")),
    "albert": _classifier("albert", config=_labels(*_SENTIMENT)),
    "deberta-v2": _classifier("deberta-v2", config=_labels(*_SENTIMENT)),
    "mpnet": _classifier("mpnet", settings=WITHOUT_TYPES, config=_labels(*_SENTIMENT)),
}.items():
    LAYOUTS.register(Layout(f"classifier {name}", folder, classes, default=name == "toxic-bert"))

for name, settings in {"with": {}, "without": WITHOUT_TYPES}.items():
    LAYOUTS.register(
        Layout(
            f"classifier of pairs {name} token types",
            _classifier(settings=settings, config=_labels("same", "other")),
            partial(classes, texts=PAIRS[:8]),
            pairs=True,
        )
    )
