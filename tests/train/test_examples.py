"""Files of examples."""

from __future__ import annotations

from pathlib import Path

import pytest

from ibert_tvm.errors import UsageError
from ibert_tvm.train.examples import read_examples


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_columns_are_found_by_name(tmp_path: Path) -> None:
    tsv = written(tmp_path / "a.tsv", 'id\tsentence\tlabel\n1\tsay "no\tgood\n2\ttwo\tbad\n')
    found = read_examples(tsv)
    assert found.texts == (('say "no',), ("two",)) and found.labels == ("good", "bad")
    csv = written(tmp_path / "a.csv", 'score,text_b,text_a\n0.5,"x, y",z\n1,v,w\n')
    found = read_examples(csv)
    assert found.texts == (("z", "x, y"), ("w", "v"))
    assert found.numbers() == (0.5, 1.0)
    other = read_examples(csv, ["score"], "text_a")
    assert other.texts == (("0.5",), ("1",)) and other.labels == ("z", "w")


def test_classes_are_no_numbers(tmp_path: Path) -> None:
    tsv = written(tmp_path / "a.tsv", "text\tlabel\na\t0\nb\t1\n")
    assert read_examples(tsv).numbers() is None


def test_lines_are_texts_without_labels(tmp_path: Path) -> None:
    found = read_examples(written(tmp_path / "a.txt", "one\n\n two \n"))
    assert found.texts == (("one",), ("two",)) and found.labels is None


def test_parts_of_the_examples(tmp_path: Path) -> None:
    data = read_examples(written(tmp_path / "a.txt", "\n".join("abcdefghij")))
    rest, held_out = data.split(0.2, list(range(10)))
    assert held_out.texts == (("i",), ("j",)) and len(rest) == 8
    assert rest.digest != data.digest == data.chosen(range(10)).digest


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        (
            "words\tlabel\na\t0\nb\t1\n",
            None,
            "which columns hold texts?\n"
            "  where: {file}\n"
            "  why: its columns are words, label\n"
            "  what to do: name one or two with --text-columns, and that of the labels with "
            "--label-column",
        ),
        (
            "text\tlabel\na\t0\nb\t1\n",
            ["title"],
            "the file has no column 'title'\n"
            "  where: {file}\n"
            "  why: its columns are text, label\n"
            "  what to do: name one or two with --text-columns, and that of the labels with "
            "--label-column",
        ),
        (
            "text\tlabel\na\t0\nb\t1\t2\n",
            None,
            "a line has 3 columns\n"
            "  where: {file}, line 3\n"
            "  why: the first line names 2\n"
            "  what to do: quote texts that contain the separator (CSV), or replace tabs (TSV)",
        ),
        (
            "text\tlabel\na\t0\n",
            None,
            "{file} has 1 examples\n"
            "  why: a model is tuned on some, and measured on others\n"
            "  what to do: give a text on each line, or a TSV or CSV with named columns",
        ),
    ],
)
def test_files_that_are_refused(
    text: str, columns: list[str] | None, message: str, tmp_path: Path
) -> None:
    file = written(tmp_path / "a.tsv", text)
    with pytest.raises(UsageError) as caught:
        read_examples(file, columns)
    assert str(caught.value) == message.format(file=file)
