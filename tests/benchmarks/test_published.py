"""Figures in the documents are those that were measured, and those are of now."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.arm.models import SPECS, quantise
from benchmarks.arm.published import FIGURES, ROOT, Figure, count, rewritten, stored


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.pattern[:30])
def test_documents_have_the_measured_figures(figure: Figure) -> None:
    """`python -m benchmarks.arm.published` writes them."""
    text = (ROOT / figure.document).read_text(encoding="utf-8")
    assert rewritten(text, figure, stored()) == text


def test_a_stale_figure_is_replaced_and_a_lost_sentence_refused() -> None:
    figure = Figure("page", r"takes (\d+) of (\d+)", lambda results: results["values"])
    text = "It takes 1 of 22, all in all."
    assert rewritten(text, figure, {"values": ["333", "4"]}) == "It takes 333 of 4, all in all."
    for wrong in ("It takes none.", f"{text} {text}"):
        with pytest.raises(ValueError, match="page: "):
            rewritten(wrong, figure, {"values": ["333", "4"]})


@pytest.mark.record
def test_the_published_counts_are_those_of_now(tmp_path: Path) -> None:
    published = stored()["published"]["minilm"]["cortex-m4"]
    found = count(quantise(SPECS["minilm"], tmp_path), "cortex-m4", (1, 6))
    for tokens, instructions in found.items():
        assert instructions == pytest.approx(published[tokens], rel=0.02)
