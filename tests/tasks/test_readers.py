"""Files as they are distributed, and files that are wrong, with the line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ibert_tvm.tasks import lines
from ibert_tvm.tasks.beir import read_beir
from ibert_tvm.tasks.catalogue import TASKS, Options
from ibert_tvm.tasks.conll import read_conll
from ibert_tvm.tasks.errors import DataError
from ibert_tvm.tasks.glue import FORMATS, read_glue
from ibert_tvm.tasks.labels import class_numbers
from ibert_tvm.tasks.samples import Labelled, Scored
from ibert_tvm.tasks.squad import read_squad
from tests.snapshots import Messages

# Rows as GLUE distributes them: names of columns, quotes that are none, a byte order mark.
GLUE = {
    "cola": 'gj04\t1\t\tHe said "no.\ngj04\t0\t*\tThem went.\n',
    "sst-2": 'sentence\tlabel\na " charming film \t1\ndull \t0\n',
    "mrpc": "﻿Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tOne .\tUno .\n0\t1\t2\tA\tB\n",
    "sts-b": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
    "\tscore\n0\tnews\tf\t2015\t1\tn\tn\tA plane.\tAn aeroplane.\t4.75\n",
    "qqp": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    "1\t2\t3\tWhy?\tHow come?\t1\n9\t9\t9\tbroken\n2\t4\t5\tWho?\tWhen?\t0\r\n",
    "mnli-m": "index\tsentence1\tsentence2\tlabel1\tgold_label\n0\tA.\tB.\tneutral\tneutral\n"
    "1\tC.\tD.\tneutral\t-\n2\tE.\tF.\tentailment\tentailment\n",
    "mnli-mm": "index\tsentence1\tsentence2\tlabel1\tgold_label\n0\tA.\tB.\tneutral\tneutral\n",
    "qnli": "index\tquestion\tsentence\tlabel\n0\tWho?\tHe did.\tentailment\n",
    "rte": "index\tsentence1\tsentence2\tlabel\n0\tIt rains.\tIt is wet.\tnot_entailment\n",
}
EXPECTED = {
    "cola": (['He said "no.', "Them went."], ["1", "0"], 0),
    "sst-2": (['a " charming film ', "dull "], ["1", "0"], 0),
    "mrpc": ([("One .", "Uno ."), ("A", "B")], ["1", "0"], 0),
    "sts-b": ([("A plane.", "An aeroplane.")], [4.75], 0),
    "qqp": ([("Why?", "How come?"), ("Who?", "When?")], ["1", "0"], 1),
    "mnli-m": ([("A.", "B."), ("E.", "F.")], ["neutral", "entailment"], 1),
    "mnli-mm": ([("A.", "B.")], ["neutral"], 0),
    "qnli": ([("Who?", "He did.")], ["entailment"], 0),
    "rte": ([("It rains.", "It is wet.")], ["not_entailment"], 0),
}


@pytest.mark.parametrize("name", GLUE)
def test_glue(name: str, tmp_path: Path) -> None:
    form = FORMATS[name]
    (tmp_path / form.file).write_text(GLUE[name], encoding="utf-8")
    found = read_glue(tmp_path, form)  # the folder: its development set
    assert found == read_glue(tmp_path / form.file, form)
    texts, labels, skipped = EXPECTED[name]
    assert (list(found.texts), found.skipped) == (texts, skipped)
    assert list(found.scores if isinstance(found, Scored) else found.labels) == labels


def refused(call, *arguments) -> str:
    with pytest.raises(DataError) as caught:
        call(*arguments)
    return str(caught.value)


def written(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_wrong_rows_of_glue(messages: Messages, tmp_path: Path) -> None:
    path = written(tmp_path, "dev.tsv", "sentence\tlabel\nfine\t1\na\tb\tc\n")
    messages.check(refused(read_glue, path, FORMATS["sst-2"]))
    messages.check(refused(read_glue, path, FORMATS["rte"]))
    path = written(tmp_path, "dev.tsv", "sentence\tlabel\nfine\tgood\n")
    messages.check(refused(read_glue, path, FORMATS["sst-2"]))
    path = written(tmp_path, "dev.tsv", GLUE["sts-b"].replace("4.75", "nan"))
    messages.check(refused(read_glue, path, FORMATS["sts-b"]))
    path = written(tmp_path, "dev.tsv", "sentence\tlabel\n")
    messages.check(refused(read_glue, path, FORMATS["sst-2"]))


def read(path: Path, **columns: str) -> Labelled:
    return TASKS["classification"].read(path, Options(columns=columns))


def test_csv_has_quotes_and_lines_within_fields(messages: Messages, tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", 'label,"the text"\nx,"a, ""b""\nc"\ny,d\n')
    found = read(path, text="the text")
    assert (list(found.texts), list(found.labels)) == (['a, "b"\nc', "d"], ["x", "y"])
    path = written(tmp_path, "b.csv", 'x,y\nx,"a"b\n')
    messages.check(refused(lambda: read(path, text="y", label="x")))
    path = written(tmp_path, "c.csv", 'x,y\nx,"a\n')
    messages.check(refused(lambda: read(path, text="y", label="x")))


def test_columns_by_number_have_no_line_of_names(messages: Messages, tmp_path: Path) -> None:
    path = written(tmp_path, "a.tsv", "x\ta\tb\ny\tc\td\n")
    found = read(path, text="2", pair="3", label="1")
    assert (list(found.texts), list(found.labels)) == ([("a", "b"), ("c", "d")], ["x", "y"])
    messages.check(refused(lambda: read(path, text="4", label="1")))
    path = written(tmp_path, "b.tsv", "a\ta\nx\ty\n")
    messages.check(refused(lambda: read(path, text="a", label="a")))


def test_lines_end_where_the_file_says(tmp_path: Path) -> None:
    path = written(tmp_path, "a.tsv", "text\tlabel\r\na\u2028b\x85\t1\r\n")
    assert list(read(path).texts) == ["a\u2028b\x85"]


def test_hostile_lines(messages: Messages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, "a.tsv", b"text\tlabel\n\xff\t1\n")
    messages.check(refused(read, path))
    path = written(tmp_path, "a.tsv", "x" * (lines.MAX_LINE + 1))
    messages.check(refused(read, path))
    monkeypatch.setattr(lines, "MAX_BYTES", 20)
    path = written(tmp_path, "a.tsv", "text\tlabel\n" + "a\t1\n" * 9)
    messages.check(refused(read, path))
    messages.check(refused(read, tmp_path))
    messages.check(refused(read, tmp_path / "none.tsv"))
    os.mkfifo(tmp_path / "pipe")
    messages.check(refused(read, tmp_path / "pipe"))


def test_conll(messages: Messages, tmp_path: Path) -> None:
    text = "-DOCSTART- -X- O O\n\nEU NNP I-NP B-ORG\nrejects VBZ I-VP O\n\n\n"
    text += "# id\nPeter NNP I-NP B-PER\n"
    found = read_conll(written(tmp_path, "a.conll", text))
    assert found.words == [["EU", "rejects"], ["Peter"]]
    assert found.tags == [["B-ORG", "O"], ["B-PER"]]
    assert read_conll(tmp_path / "a.conll", {"label": "2"}).tags == [["NNP", "VBZ"], ["NNP"]]
    path = written(tmp_path, "b.conll", "a O\nb\n")
    messages.check(refused(read_conll, path))
    messages.check(refused(read_conll, written(tmp_path, "c.conll", "\n\n")))
    messages.check(refused(read_conll, path, {"label": "ner"}))


def squad(*questions: dict) -> str:
    return json.dumps({"data": [{"paragraphs": [{"context": "The cat.", "qas": questions}]}]})


def test_squad(messages: Messages, tmp_path: Path) -> None:
    one = {"id": "1", "question": "Who?", "answers": [{"text": "cat", "answer_start": 4}]}
    none = {"id": "2", "question": "Why?", "answers": [], "is_impossible": True}
    found = read_squad(written(tmp_path, "1.json", squad(one)))
    assert (found.pairs, found.answers) == ([("Who?", "The cat.")], [("cat",)])
    assert not found.unanswerable
    found = read_squad(written(tmp_path, "2.json", squad({**one, "is_impossible": False}, none)))
    assert (found.answers, found.unanswerable) == ([("cat",), ()], True)
    del none["is_impossible"]
    path = written(tmp_path, "3.json", squad(one, none))
    messages.check(refused(read_squad, path))
    path = written(tmp_path, "4.json", squad({"question": "Who?"}))
    messages.check(refused(read_squad, path))
    messages.check(refused(read_squad, written(tmp_path, "5.json", '{"data": []}')))
    messages.check(refused(read_squad, written(tmp_path, "6.json", "[" * 99)))
    messages.check(refused(read_squad, written(tmp_path, "7.json", "{\n}}")))


def beir(folder: Path, corpus: str, qrels: str) -> Path:
    (folder / "qrels").mkdir(exist_ok=True)
    (folder / "corpus.jsonl").write_text(corpus)
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "x"}\n{"_id": "r", "text": "y"}\n')
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + qrels)
    return folder


CORPUS = '{"_id": "1", "title": "T", "text": "a"}\n{"_id": "2", "title": "", "text": "b"}\n'


def test_beir(messages: Messages, tmp_path: Path) -> None:
    found = read_beir(beir(tmp_path, CORPUS, "q\t2\t1\nq\t1\t0\n"))
    assert found.documents == {"1": "T a", "2": "b"}
    assert found.queries == {"q": "x"}  # the other one is not judged
    assert found.relevance == {"q": {"2": 1, "1": 0}}
    path = tmp_path / "qrels" / "test.tsv"
    messages.check(refused(read_beir, beir(tmp_path, CORPUS, "q\t3\t1\n")))
    messages.check(refused(read_beir, beir(tmp_path, CORPUS, "q\t2\t-1\n")))
    messages.check(
        refused(read_beir, beir(tmp_path, CORPUS + '{"_id": "1", "text": "c"}\n', "q\t2\t1\n"))
    )
    messages.check(refused(read_beir, beir(tmp_path, '{"_id": "1"}\n', "q\t2\t1\n")))
    beir(tmp_path, CORPUS, "q\t2\t1\n")
    messages.check(refused(read_beir, tmp_path, "../../etc"))
    messages.check(refused(read_beir, path))


def test_labels_are_classes_by_name_then_order_then_number() -> None:
    order = ("entailment", "neutral", "contradiction")
    assert class_numbers(order, ["CONTRADICTION", "Neutral", "entailment"], order) == {
        "entailment": 2, "neutral": 1, "contradiction": 0
    }  # fmt: skip
    nameless = ["LABEL_0", "LABEL_1", "LABEL_2"]
    assert class_numbers(order, nameless, order) == {
        "entailment": 0, "neutral": 1, "contradiction": 2
    }  # fmt: skip
    assert class_numbers(["1", "0"], ["negative", "positive"]) == {"1": 1, "0": 0}
    assert class_numbers(["1", "0"], ["1", "0"]) == {"1": 0, "0": 1}  # names before numbers
    given = {"entailment": "LABEL_2", "neutral": "1", "contradiction": "0"}
    assert class_numbers(order, nameless, order, given) == {
        "entailment": 2, "neutral": 1, "contradiction": 0
    }  # fmt: skip
    assert class_numbers(["not-entailment"], ["entailment", "NOT ENTAILMENT"]) == {
        "not-entailment": 1
    }


def test_a_label_that_the_model_does_not_know(messages: Messages) -> None:
    messages.check(refused(class_numbers, ["good", "2", "bad"], ["calm", "good"]))
    many = [f"x{i}" for i in range(20)]
    messages.check(refused(class_numbers, many, ["a"]))
