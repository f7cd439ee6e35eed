"""TSV and CSV files: some columns of every row."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .errors import malformed
from .lines import MAX_ROWS, read_lines

_SHOWN = 8


@dataclass(frozen=True)
class TableFormat:
    """How rows become fields.

    Attributes
    ----------
    separator
        One character.
    quoted
        Whether ``"`` quotes a field, as in RFC 4180; otherwise it is a character like any other.
    lenient
        Leave out rows with another number of fields than the first one, instead of refusing them.
    """

    separator: str
    quoted: bool
    lenient: bool = False

    @staticmethod
    def of(path: Path) -> TableFormat:
        """CSV with quotes for ``*.csv``, otherwise tabs and no quotes, as GLUE's files are."""
        is_csv = path.suffix.lower() == ".csv"
        return TableFormat("," if is_csv else "\t", quoted=is_csv)


@dataclass(frozen=True)
class Rows:
    """Some columns of a table.

    Attributes
    ----------
    fields
        Of every row the wanted columns, in the order in which they were asked for.
    lines
        Where each row ends in the file.
    skipped
        Rows that were left out (`TableFormat.lenient`).
    """

    fields: list[tuple[str, ...]]
    lines: list[int]
    skipped: int


NAME_THEM = (
    "name the columns, --columns text=A,label=B, or give their numbers if the first line holds "
    "no names"
)


def read_table(
    path: Path, columns: Mapping[str, str], form: TableFormat, todo: str = NAME_THEM
) -> Rows:
    """Read columns of a table.

    Parameters
    ----------
    path : pathlib.Path
        The file.
    columns
        What is wanted, and its column: a name in the first line, or where all are numbers, counted
        from 1, the place of the column in a file without such a line.
    form
        How rows become fields.
    todo
        What to do about a column that is not there.

    Raises
    ------
    DataError
        If the file cannot be read, lacks a column, has a row of another length, or no row.
    """
    rows = _records(path, form)
    numbered = all(name.isascii() and name.isdigit() for name in columns.values())
    places: list[int] = []
    width = 0
    found = Rows([], [], 0)
    skipped = 0
    for line, fields in rows:
        if not width:
            width = len(fields)
            places = _places(path, line, columns, fields, numbered, todo)
            if not numbered:
                continue
        if len(fields) != width:
            if not form.lenient:
                why = f"it has {len(fields)} fields, and the first line has {width}"
                raise malformed(path, line, why)
            skipped += 1
            continue
        if len(found.fields) == MAX_ROWS:
            raise malformed(path, line, f"there are more than {MAX_ROWS} rows")
        found.fields.append(tuple(fields[place] for place in places))
        found.lines.append(line)
    if not found.fields:
        raise malformed(path, 0, "it has no row of data", "give a file with samples")
    return Rows(found.fields, found.lines, skipped)


def column_names(path: Path, form: TableFormat) -> list[str]:
    """Fields of the first line; none of an empty file."""
    return next((fields for _, fields in _records(path, form)), [])


def _records(path: Path, form: TableFormat) -> Iterator[tuple[int, list[str]]]:
    """Rows that are not empty, with the number of their last line."""
    if not form.quoted:
        for line, text in read_lines(path):
            if text:
                yield line, text.split(form.separator)
        return
    reader = csv.reader(
        (f"{text}\n" for _, text in read_lines(path)), delimiter=form.separator, strict=True
    )
    while True:
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise malformed(path, reader.line_num, str(error)) from None
        if fields is None:
            return
        if fields:
            yield reader.line_num, fields


def _places(
    path: Path, line: int, columns: Mapping[str, str], fields: list[str], numbered: bool, todo: str
) -> list[int]:
    places = []
    for what, name in columns.items():
        if numbered and 1 <= int(name) <= len(fields):
            places.append(int(name) - 1)
        elif not numbered and fields.count(name) == 1:
            places.append(fields.index(name))
        else:
            there = (
                f"it has {len(fields)} columns"
                if numbered
                else f"its columns are {', '.join(map(repr, fields[:_SHOWN]))}"
                + (" ..." if len(fields) > _SHOWN else "")
            )
            twice = not numbered and name in fields
            raise malformed(
                path,
                line,
                f"the {what} should be in column {name}, "
                + ("which is there twice" if twice else f"and {there}"),
                todo,
            )
    return places
