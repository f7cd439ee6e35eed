"""GLUE's eight tasks in the files that GLUE distributes.

All are TSV without quotes: ``"`` is a character. All but CoLA's have a line of names. WNLI, the
ninth, is left out, as in the I-BERT paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .errors import malformed
from .samples import Labelled, Scored
from .tables import NAME_THEM, TableFormat, read_table

_ENTAILMENT = ("entailment", "not_entailment")
_BINARY = ("0", "1")


@dataclass(frozen=True)
class GlueFormat:
    """One task's file.

    Attributes
    ----------
    file
        Name of the development set in the task's folder.
    texts
        Columns of the text, or of the pair.
    label
        Column of the label or score.
    order
        Labels in the order of the classes, as transformers' and the paper's models have them; empty
        for scores.
    lenient
        Whether GLUE's own files have rows of other lengths, which everybody leaves out.
    """

    file: str
    texts: tuple[str, ...]
    label: str
    order: tuple[str, ...]
    lenient: bool = False


_MNLI = ("sentence1", "sentence2"), "gold_label", ("entailment", "neutral", "contradiction")
FORMATS = {
    "cola": GlueFormat("dev.tsv", ("4",), "2", _BINARY),
    "sst-2": GlueFormat("dev.tsv", ("sentence",), "label", _BINARY),
    "mrpc": GlueFormat("dev.tsv", ("#1 String", "#2 String"), "Quality", _BINARY),
    "sts-b": GlueFormat("dev.tsv", ("sentence1", "sentence2"), "score", ()),
    "qqp": GlueFormat("dev.tsv", ("question1", "question2"), "is_duplicate", _BINARY, lenient=True),
    "mnli-m": GlueFormat("dev_matched.tsv", *_MNLI),
    "mnli-mm": GlueFormat("dev_mismatched.tsv", *_MNLI),
    "qnli": GlueFormat("dev.tsv", ("question", "sentence"), "label", _ENTAILMENT),
    "rte": GlueFormat("dev.tsv", ("sentence1", "sentence2"), "label", _ENTAILMENT),
}
"""By the name of the task."""
_TODO = "give the file as GLUE distributes it, or the task classification or sts and --columns"
_NO_LABEL = "-"  # annotators did not agree: MNLI's convention


def read_glue(path: Path, form: GlueFormat) -> Labelled | Scored:
    """Read a file of a task.

    Parameters
    ----------
    path : pathlib.Path
        The file, or the folder with the development set.
    form
        Of the task.

    Raises
    ------
    DataError
        If it cannot be read, or is not in that form.
    """
    path = path / form.file if path.is_dir() else path
    columns = dict(zip(("text", "pair"), form.texts, strict=False))
    table = TableFormat("\t", quoted=False, lenient=form.lenient)
    return texts_of(path, {**columns, "label": form.label}, table, form.order or None, _TODO)


def texts_of(
    path: Path,
    columns: Mapping[str, str],
    form: TableFormat,
    order: tuple[str, ...] | None,
    todo: str = NAME_THEM,
) -> Labelled | Scored:
    """Read texts with labels, or with scores where `order` is None.

    Parameters
    ----------
    path : pathlib.Path
        A table.
    columns
        Columns of one text or two, and last of the label.
    form
        How rows become fields.
    order
        Labels in the order of the classes; empty if any label will do.
    todo
        As for `read_table`.

    Raises
    ------
    DataError
        As `read_table`; if a label is not among `order`, or a score is no number.
    """
    rows = read_table(path, columns, form, todo)
    texts: list[tuple[str, ...]] = []
    labels: list[str] = []
    scores: list[float] = []
    skipped = rows.skipped
    for (*words, label), line in zip(rows.fields, rows.lines, strict=True):
        if order is None:
            scores.append(_score(path, line, label))
        elif order and label == _NO_LABEL:
            skipped += 1
            continue
        elif order and label not in order:
            raise malformed(path, line, f"the label is {label[:40]!r}, not {' or '.join(order)}")
        texts.append(tuple(words))
        labels.append(label)
    if not texts:
        raise malformed(path, 0, "no row has a label", "give a set with labels, not the test set")
    items = [(row[0], row[1]) if len(row) == 2 else row[0] for row in texts]
    if order is None:
        return Scored(items, scores, skipped)
    return Labelled(items, labels, order, skipped)


def _score(path: Path, line: int, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) < 1e9:
        raise malformed(path, line, f"the score is {text[:40]!r}, which is no number")
    return value
