"""The real tasks: no text in two splits, and the same files from the same texts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.tasks import build as building
from benchmarks.tasks import docstrings
from benchmarks.tasks.build import TASKS, build
from benchmarks.tasks.docstrings import Documented
from benchmarks.tasks.samples import SPLITS, Sample, distinct, draw, split_of, words_of


def sample(group: str, text: str, label: str = "x") -> Sample:
    return Sample(group, text, (text, label), label)


def test_what_differs_in_one_word_is_the_same() -> None:
    texts = [
        "A parser for XML files",
        "a PARSER for xml files, 2.0",  # case, digits and marks
        "A parser for JSON files",  # one word exchanged
        "A fast parser for XML files",  # one added
        "A parser for XML",  # one left out
        "A writer for JSON logs",
        "42 !",  # no word
    ]
    kept = [s.text for s in distinct(sample(str(i), text) for i, text in enumerate(texts))]
    assert kept == [texts[0], texts[5]]


def test_a_group_is_in_one_split_and_shares_are_as_said() -> None:
    groups = [f"package{i}" for i in range(4000)]
    found = {name: sum(split_of(group) == name for group in groups) for name in SPLITS}
    for name, share in zip(SPLITS, (0.6, 0.1, 0.3), strict=True):
        assert abs(found[name] / len(groups) - share) < 0.03, name
    samples = [sample(g, f"text {i} of {g}") for g in groups[:300] for i in range(3)]
    splits = draw(samples, per_group=2, per_label=10**6)
    of_split = [{s.group for s in splits[name]} for name in SPLITS]
    assert sum(map(len, of_split)) == len(set().union(*of_split)) == 300
    assert all(len([s for s in splits["train"] if s.group == g]) == 2 for g in of_split[0])


def test_classes_are_bounded_in_every_split() -> None:
    samples = [sample(f"g{i}", f"text {i}", "ab"[i % 3 == 0]) for i in range(3000)]
    splits = draw(samples, per_group=1, per_label=60)
    for name, most in zip(SPLITS, (60, 10, 30), strict=True):
        labels = [s.label for s in splits[name]]
        assert labels.count("a") == labels.count("b") == most
    assert draw(reversed(samples), 1, 60) == splits  # the order of the sources does not matter


ITEMS = (
    Documented(
        "one",
        "one/a.py",
        "HTTPServer.serve_forever",
        (
            "Handle requests until :meth:`~x.shutdown` is called by ``another thread``, always.",
            "Polls for shutdown every so many seconds, and ignores the timeout of its own socket.",
        ),
    ),
    Documented("one", "one/a.py", "close", ("Release all resources that the server holds.",)),
    Documented("one", "one/a.py", "x", ("returns x",)),
)


@pytest.fixture
def documented(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docstrings, "documented", lambda: ITEMS)


@pytest.mark.usefixtures("documented")
def test_names_and_their_paragraphs() -> None:
    found = {s.fields[1]: s for s in docstrings.names()}
    assert list(found) == [
        "Handle requests until x.shutdown is called by another thread, always.",
        "Release all resources that the server holds.",
    ]
    spoken = {"HTTP Server serve forever", "close"}
    for place, found_sample in enumerate(found.values()):
        name, _, label = found_sample.fields
        own = ("HTTP Server serve forever", "close")[place]
        assert name in spoken and label == ("match" if name == own else "mismatch")


@pytest.mark.usefixtures("documented")
def test_code_words_are_those_that_were_marked() -> None:
    (found,) = docstrings.code_words()
    rows = [row.split(" ") for row in found.fields[0].split("\n")]
    assert [word for word, tag in rows if tag != "O"] == ["x.shutdown", "another", "thread"]
    assert [tag for _, tag in rows if tag != "O"] == ["B-CODE", "B-CODE", "I-CODE"]
    assert rows[-2:] == [["always", "O"], [".", "O"]]


@pytest.mark.usefixtures("documented")
def test_queries_and_documents() -> None:
    (found,) = docstrings.queries()
    assert found.fields[0].startswith("Handle requests until x.shutdown is called")
    assert found.fields[1].startswith("Polls for shutdown")


def test_files_can_be_read_as_the_task_says(tmp_path: Path) -> None:
    from ibert_tvm.tasks import TASKS as MEASURED
    from ibert_tvm.tasks import Options

    words = [f"{a}{b}{c}" for a in "abcdefgh" for b in "aeiou" for c in "lmnrst"]

    def samples() -> Iterator[Sample]:
        for i in range(240):
            text = " ".join(words[i * 7 % 240 :][:6] + words[i : i + 1])
            word_tags = "\n".join(f"{word} O" for word in text.split())
            fields = {
                "sections": (text, "games"),
                "names": ("a name", text, "match"),
                "code-words": (word_tags,),
                "docstrings": (text, f"{text} and more"),
            }
            yield Sample(f"g{i}", text, fields[name])

    for name, task in TASKS.items():
        task = replace(task, samples=samples)
        card = build(task, tmp_path / name)
        assert json.loads((tmp_path / name / "card.json").read_text()) == card
        again = build(task, tmp_path / "again" / name)
        assert again == card
        folder = tmp_path / name
        file = {"retrieval": folder, "token-classification": folder / "test.conll"}
        columns = {column: column for column in task.columns}
        read = MEASURED[task.kind].read(
            file.get(task.kind, folder / "test.tsv"), Options(columns=columns)
        )
        assert len(read) == card["samples"]["test"] > 20, name


def test_words_of_a_text() -> None:
    assert words_of("XML 1.0: the_parser, Ünï") == {"xml", "the", "parser", "ünï"}


def test_an_unknown_task_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        building.main(["--out", str(tmp_path), "--tasks", "section"])
    expected = "--tasks: 'section' is none of sections, names, code-words, docstrings"
    assert expected in capsys.readouterr().err
