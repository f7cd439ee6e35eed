"""Files of examples."""

from __future__ import annotations

from pathlib import Path

import pytest

from ibert_tvm.common.errors import UsageError
from ibert_tvm.tasks.samples import Labelled, Scored, Tagged
from ibert_tvm.train.examples import Examples, read_examples
from tests.snapshots import Messages


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def read(path: Path, **options: object) -> Examples:
    examples, dev = read_examples(path, **options)
    assert dev is None
    return examples


def test_columns_are_found_by_name(tmp_path: Path) -> None:
    tsv = written(tmp_path / "a.tsv", 'id\tsentence\tlabel\n1\tsay "no\tgood\n2\ttwo\tbad\n')
    assert read(tsv).samples == Labelled(['say "no', "two"], ["good", "bad"])
    csv = written(tmp_path / "a.csv", 'score,text_b,text_a\n0.5,"x, y",z\n1,v,w\n')
    assert read(csv).samples == Scored([("z", "x, y"), ("w", "v")], [0.5, 1.0])
    other = read(csv, columns={"text": "score", "label": "text_a"})
    assert other.samples == Labelled(["0.5", "1"], ["z", "w"])


def test_whole_numbers_are_classes(tmp_path: Path) -> None:
    tsv = written(tmp_path / "a.tsv", "text\tlabel\na\t0\nb\t1\n")
    assert read(tsv).samples == Labelled(["a", "b"], ["0", "1"])


def test_texts_without_labels(tmp_path: Path) -> None:
    lines = read(written(tmp_path / "a.txt", "one\n\n two \n"))
    table = read(written(tmp_path / "a.tsv", "text\tother\none\t1\ntwo\t2\n"))
    assert lines == table == Examples.of_texts(["one", "two"]) and not lines.labelled


def test_parts_of_the_examples(tmp_path: Path) -> None:
    data = read(written(tmp_path / "a.txt", "\n".join("abcdefghij")))
    rest, held_out = data.split(0.2, list(range(10)))
    assert held_out == Examples.of_texts(["i", "j"]) and len(rest) == 8
    assert rest.digest != data.digest == data.chosen(range(10)).digest
    tagged = Examples(Tagged([["a"], ["b"]], [["O"], ["X"]]), "token-classification")
    assert tagged.chosen([1]) == Examples(Tagged([["b"]], [["X"]]), "token-classification")


def test_a_task_has_its_folder_with_both_sets(tmp_path: Path) -> None:
    head = "index\tsentence1\tsentence2\tgold_label\n"
    written(tmp_path / "train.tsv", f"{head}0\ta\tb\tneutral\n1\tc\td\tentailment\n")
    written(tmp_path / "dev_matched.tsv", f"{head}0\te\tf\tneutral\n1\tg\th\tneutral\n")
    examples, dev = read_examples(tmp_path, "mnli-m")
    order = ("entailment", "neutral", "contradiction")
    assert examples.samples == Labelled([("a", "b"), ("c", "d")], ["neutral", "entailment"], order)
    assert dev is not None and dev.task == "mnli-m" and dev.samples.texts[0] == ("e", "f")


def test_a_folder_without_the_sets_is_refused(messages: Messages, tmp_path: Path) -> None:
    written(tmp_path / "train.conll", "a O\n\nb X\n")
    with messages.raises(UsageError):
        read_examples(tmp_path, "token-classification")


def test_a_task_without_a_loss_is_refused(messages: Messages, tmp_path: Path) -> None:
    with messages.raises(UsageError):
        read_examples(tmp_path, "retrieval")


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("words\tlabel\na\t0\nb\t1\n", None),
        ("text\tlabel\na\t0\nb\t1\n", {"text": "title"}),
        ("text\tlabel\na\t0\nb\t1\t2\n", None),
        ("text\tlabel\na\t0\n", None),
    ],
    ids=["no text", "another column", "more fields", "one row"],
)
def test_files_that_are_refused(
    messages: Messages, text: str, columns: dict[str, str] | None, tmp_path: Path
) -> None:
    file = written(tmp_path / "a.tsv", text)
    with messages.raises(UsageError):
        read_examples(file, columns=columns)
