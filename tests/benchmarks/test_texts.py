"""Texts on which fidelity is measured."""

from __future__ import annotations

from pathlib import Path

from benchmarks.models import calibration_texts
from benchmarks.texts import HALVES, SETS, _paragraphs, texts


def test_no_text_is_in_two_places() -> None:
    seen = set(calibration_texts())
    for name in SETS:
        chosen_on, published = (texts(name, half) for half in HALVES)
        assert min(len(chosen_on), len(published)) >= 100, name
        for text in (*chosen_on, *published):
            assert text.strip(), name
            assert text not in seen, text
            seen.add(text)


def test_texts_are_the_same_in_every_process() -> None:
    assert texts("docstrings") == texts("docstrings")
    assert len(texts("docstrings")) == 300
    assert {"OK", "!", "Not Found"} <= set(texts("short and odd"))


def test_paragraphs_of_documentation_are_lines_of_words(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(
        '''"""First paragraph, on
        two lines.

        Short.
        """
class A:
    """One of a class."""
    async def b(self):
        """One of a method."""
        "no documentation, but a string"
''',
        encoding="utf-8",
    )
    assert sorted(_paragraphs(file)) == [
        "First paragraph, on two lines.",
        "One of a class.",
        "One of a method.",
    ]
    file.write_text("what is this", encoding="utf-8")
    assert list(_paragraphs(file)) == []
