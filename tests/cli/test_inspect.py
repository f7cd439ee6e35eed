"""What `ibert inspect` says of the work before and behind the network."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ibert_tvm.cli.inspect_model import after_rows
from ibert_tvm.model.model_info import ModelInfo, PostProcessing
from tests.frontend.test_model_info import INFO

CLASSES = replace(INFO, prompts={}, default_prompt_name=None)
PAIRS = replace(INFO, id2label={0: "LABEL_0"})
VECTORS = replace(CLASSES, head="sentence_transformer", id2label={})


@pytest.mark.parametrize(
    ("info", "record", "wanted"),
    [
        (CLASSES, {}, [("scores", "softmax of the logits"), ("labels", "no, yes")]),
        (
            replace(CLASSES, id2label={i: str(i) for i in range(11)}),
            {"classes": "sigmoid", "thresholds": {"3": 0.25}},
            [
                ("scores", "sigmoid of the logits"),
                ("labels", "0, 1, 2, 3, 4, 5, 6, 7, 3 more"),
                ("thresholds", "3 0.25"),
            ],
        ),
        (
            PAIRS,
            {"pairs": "none"},
            [
                ("scores", "sigmoid of the logits; of a pair none"),
                ("labels", "LABEL_0"),
                ("prompt", "query: 'find: ' (default)"),
            ],
        ),
        (VECTORS, {}, [("similarity", "cosine")]),
        (
            VECTORS,
            {"similarity": "dot", "dimensions": 8, "active": 4},
            [
                ("similarity", "dot"),
                ("vectors", "cut to 8 channels"),
                ("vectors", "the 4 largest values of each"),
            ],
        ),
    ],
)
def test_the_record_is_shown(
    info: ModelInfo, record: dict[str, object], wanted: list[tuple[str, str]]
) -> None:
    known = PostProcessing.from_json(record)
    assert after_rows(replace(info, post_processing=known)) == wanted
