"""What people read: tables as wide as the terminal."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ..common.strict_json import JsonObject

_NARROWEST = 40

R = TypeVar("R")


def width() -> int:
    """Columns to fill: the variable COLUMNS, else the terminal's; 80 where there is none."""
    return max(shutil.get_terminal_size((80, 24)).columns, _NARROWEST)


@dataclass(frozen=True)
class Table:
    """A table without lines.

    Attributes
    ----------
    headers
        Column titles; empty for none.
    rows
        Cells, taken literally: rich reads ``[batch, 384]`` in a plain string as markup.
    whole
        Columns whose cells are not folded, as long as others can be.
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    whole: Sequence[int] = ()

    def lines(self, columns: int) -> list[str]:
        """Draw it in so many columns; a cell that has no room goes on in the next line.

        Parameters
        ----------
        columns
            Width at most.

        Returns
        -------
        list of str
            Without white space at their ends, so that a narrow table is narrow in a file too.
        """
        from io import StringIO

        from rich.console import Console
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(box=None, pad_edge=False, show_header=bool(self.headers))
        for number in range(max(map(len, [self.headers, *self.rows]))):
            title = self.headers[number] if self.headers else ""
            table.add_column(Text(title), overflow="fold", no_wrap=number in self.whole)
        for row in self.rows:
            table.add_row(*map(Text, row))
        drawn = StringIO()
        Console(file=drawn, width=columns, color_system=None).print(table)
        return [line.rstrip() for line in drawn.getvalue().splitlines()]


def table_of(records: Iterable[R], columns: Mapping[str, Callable[[R], str]]) -> Table:
    """Make a table of records: titles of columns, and what each shows of a record."""
    return Table(list(columns), [[show(record) for show in columns.values()] for record in records])


def _cell(value: Any, form: str) -> str:
    if form != "short":
        return format(value, form)
    digits = next((n for n, limit in ((3, 10), (2, 100), (1, 1000)) if abs(value) < limit), 0)
    return f"{value:.{digits}f}"


def record_table(columns: Sequence[tuple[str, str, str]], records: Sequence[JsonObject]) -> Table:
    """Make a table of records.

    Parameters
    ----------
    columns
        Title, key, and format of the value, which is not folded if it has one; the format
        ``short`` gives a number in about four digits. "-" stands for None.
    records : sequence of mapping of str to anything
        One per row.
    """
    rows = [
        ["-" if record[key] is None else _cell(record[key], form) for _, key, form in columns]
        for record in records
    ]
    whole = [number for number, (_, _, form) in enumerate(columns) if form]
    return Table([title for title, _, _ in columns], rows, whole)
