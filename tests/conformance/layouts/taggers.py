"""Token classifiers: entities as the pipeline ``token-classification`` gives them."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.conformance.head_folders import WITHOUT_TYPES, with_head
from tests.conformance.head_results import entities
from tests.conformance.layout import LAYOUTS, Layout

_KINDS = ("PER", "ORG", "LOC")


def _labels(prefixes: str) -> dict[str, Any]:
    """Labels of all kinds with each of the prefixes."""
    names = ["O", *(f"{prefix}-{kind}" for kind in _KINDS for prefix in prefixes)]
    return {"id2label": dict(enumerate(names))}


_IOB2, _IOB, _BIOES = _labels("BI"), _labels("IB"), _labels("BIES")
_PLAIN = {"id2label": dict(enumerate(["O", *_KINDS]))}
_CASED = {"do_lower_case": False}

_tagger = partial(with_head, "token_classification")

for name, folder in {
    "bert-base-NER": _tagger(settings=_CASED, config=_IOB2),
    "uncased": _tagger(config=_IOB),
    "cased, BIOES": _tagger(settings=_CASED, config=_BIOES),
    "distilbert, plain labels": _tagger("distilbert", settings=WITHOUT_TYPES, config=_PLAIN),
    "roberta": _tagger("roberta", settings={"add_prefix_space": True}, config=_IOB2),
    "roberta without prefix space": _tagger("roberta", config=_BIOES),
    "xlm-roberta": _tagger("xlm-roberta", config=_IOB2),
    "deberta-v3": _tagger("deberta-v2", config={**_BIOES, "position_biased_input": False}),
    "electra without names": _tagger("electra", config={"num_labels": 5}),
}.items():
    LAYOUTS.register(Layout(f"tagger {name}", folder, entities, default=name == "bert-base-NER"))

pretrained = with_head("masked_lm")
LAYOUTS.register(Layout("tagger that was not trained", pretrained, None, "token_classification"))
