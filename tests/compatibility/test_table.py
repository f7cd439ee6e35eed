"""`docs/compatibility.md` says what importing finds."""

from __future__ import annotations

import pytest

from tests.compatibility.architectures import ARCHITECTURES
from tests.compatibility.table import DOCUMENT, investigate, rows
from tests.examples import examples

BY_LABEL = {architecture.label: architecture for architecture in ARCHITECTURES}
# The one that is quickest; those that stand for a group each are slow. BERT, RoBERTa, ViT and DeiT
# are compared with torch head by head elsewhere.
QUICK = ("bloom",)
SLOW = ("deberta", "mpnet", "gpt2", "bert-generation", "modernbert")


@pytest.fixture(scope="module")
def committed() -> dict[str, str]:
    return rows(DOCUMENT.read_text(encoding="utf-8"))


def check(label: str, committed: dict[str, str]) -> None:
    found = investigate(BY_LABEL[label]).row()
    assert committed.get(label) == found, "run `make compatibility` and look at what changed"


@pytest.mark.parametrize("label", QUICK)
def test_the_table_says_what_is_found(label, committed):
    check(label, committed)


@pytest.mark.slow
@pytest.mark.parametrize(
    "label",
    examples([label for label in BY_LABEL if label not in QUICK], *SLOW, otherwise="record"),
)
def test_the_whole_table_says_what_is_found(label, committed):
    check(label, committed)


def test_the_table_lists_every_architecture_once(committed):
    headings = {"architecture", "architectures", "---"}
    assert set(committed) - headings == set(BY_LABEL)
    assert len(BY_LABEL) == len(ARCHITECTURES)
