"""`docs/compatibility.md` says what importing finds."""

from __future__ import annotations

import pytest

from tests.compatibility.architectures import ARCHITECTURES
from tests.compatibility.table import DOCUMENT, investigate, rows
from tests.examples import examples

BY_LABEL = {architecture.label: architecture for architecture in ARCHITECTURES}
# Those that stand for a group each. BERT, RoBERTa, ViT and DeiT are compared with torch elsewhere.
SLOW = ("deberta", "mpnet", "gpt2", "bert-generation", "modernbert")


@pytest.fixture(scope="module")
def committed() -> dict[str, str]:
    return rows(DOCUMENT.read_text(encoding="utf-8"))


@pytest.mark.slow_cases(5)
@pytest.mark.slow
@pytest.mark.parametrize("label", examples(BY_LABEL, *SLOW, otherwise="record"))
def test_the_table_says_what_is_found(label, committed):
    found = investigate(BY_LABEL[label]).row()
    assert committed.get(label) == found, "run `make compatibility` and look at what changed"


def test_the_table_lists_every_architecture_once(committed):
    headings = {"architecture", "architectures", "---"}
    assert set(committed) - headings == set(BY_LABEL)
    assert len(BY_LABEL) == len(ARCHITECTURES)
