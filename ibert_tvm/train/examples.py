"""What a model is tuned on: rows of a TSV or CSV with named columns, or plain lines of text."""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import DocumentError, UsageError
from ..strict_json import decode, read_bytes

__all__ = ["Examples", "read_examples"]

MAX_BYTES = 2**30
TEXT_COLUMNS = (("text",), ("sentence",), ("text_a", "text_b"), ("sentence1", "sentence2"))
"""Names of the columns that hold texts, or pairs of texts, where none are given."""
LABEL_COLUMNS = ("label", "score")


@dataclass(frozen=True)
class Examples:
    """Texts or pairs of texts, and what they are labelled with.

    Attributes
    ----------
    texts : tuple of tuple of str
        One or two texts each.
    labels : tuple of str, or None
        As the file has them.
    """

    texts: tuple[tuple[str, ...], ...]
    labels: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def digest(self) -> str:
        """Hash of the content."""
        return hashlib.sha256(repr((self.texts, self.labels)).encode()).hexdigest()

    def numbers(self) -> tuple[float, ...] | None:
        """Labels as numbers, where each is one and not all are whole: a regression."""
        try:
            values = tuple(float(label) for label in self.labels or ("",))
        except ValueError:
            return None
        whole = all(value.is_integer() for value in values)
        return None if whole or not all(map(math.isfinite, values)) else values

    def split(self, share: float, order: Sequence[int]) -> tuple[Examples, Examples]:
        """Take the last `share` of an order of the examples apart; one at least."""
        count = max(int(len(self) * share), 1)
        return self.chosen(order[:-count]), self.chosen(order[-count:])

    def chosen(self, indices: Sequence[int]) -> Examples:
        """Return some of the examples."""
        labels = self.labels
        return Examples(
            tuple(self.texts[i] for i in indices),
            None if labels is None else tuple(labels[i] for i in indices),
        )


class _Tabs(csv.excel_tab):
    """Columns between tabs, and nothing is quoted."""

    quoting = csv.QUOTE_NONE


def read_examples(
    file: Path, text_columns: Sequence[str] | None = None, label_column: str | None = None
) -> Examples:
    """Read a file of examples.

    Parameters
    ----------
    file : pathlib.Path
        ``*.tsv`` or ``*.csv``, whose first line names the columns, or any other name: a text on
        each line, without labels.
    text_columns : sequence of str, optional
        One column, or two for pairs; by default those of `TEXT_COLUMNS` that the file has.
    label_column : str, optional
        By default that of `LABEL_COLUMNS` that the file has, and none if it has neither.

    Returns
    -------
    read : Examples
        In the order of the file.

    Raises
    ------
    UsageError
        If the file cannot be read, has no such column, or a line has too few.
    """
    try:
        content = decode(read_bytes(file, MAX_BYTES))
    except DocumentError as error:
        raise UsageError(f"cannot read {file}", why=error.what) from error
    if file.suffix.lower() not in (".tsv", ".csv"):
        lines = tuple((line.strip(),) for line in content.splitlines() if line.strip())
        return _not_empty(file, Examples(lines))
    # A quotation mark in a TSV is a character, as in the files of GLUE.
    dialect = _Tabs if file.suffix.lower() == ".tsv" else csv.excel
    rows = csv.reader(io.StringIO(content, newline=""), dialect)
    try:
        header = next(rows, [])
        found = _columns(file, header, text_columns, label_column)
        texts: list[tuple[str, ...]] = []
        labels: list[str] = []
        for row in rows:
            if not row:
                continue
            if len(row) != len(header):
                raise UsageError(
                    f"a line has {len(row)} columns",
                    where=f"{file}, line {rows.line_num}",
                    why=f"the first line names {len(header)}",
                    todo="quote texts that contain the separator (CSV), or replace tabs (TSV)",
                )
            texts.append(tuple(row[column] for column in found[0]))
            labels.append("" if found[1] is None else row[found[1]])
    except csv.Error as error:
        raise UsageError(f"cannot read {file}", f"line {rows.line_num}", str(error)) from error
    return _not_empty(file, Examples(tuple(texts), None if found[1] is None else tuple(labels)))


def _columns(
    file: Path, header: Sequence[str], texts: Sequence[str] | None, label: str | None
) -> tuple[list[int], int | None]:
    wanted = tuple(texts) if texts else None
    if wanted is None:
        wanted = next((names for names in TEXT_COLUMNS if set(names) <= set(header)), ())
    if label is None:
        label = next((name for name in LABEL_COLUMNS if name in header), None)
    missing = [name for name in (*wanted, *([label] if label else ())) if name not in header]
    if missing or not wanted or len(wanted) > 2:
        raise UsageError(
            f"the file has no column {missing[0]!r}" if missing else "which columns hold texts?",
            where=str(file),
            why=f"its columns are {', '.join(header) or 'none'}",
            todo="name one or two with --text-columns, and that of the labels with --label-column",
        )
    return [header.index(name) for name in wanted], None if label is None else header.index(label)


def _not_empty(file: Path, examples: Examples) -> Examples:
    if len(examples) < 2:
        raise UsageError(
            f"{file} has {len(examples)} examples",
            why="a model is tuned on some, and measured on others",
            todo="give a text on each line, or a TSV or CSV with named columns",
        )
    return examples
