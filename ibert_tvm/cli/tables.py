"""Tables for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Table:
    """A table without lines.

    Attributes
    ----------
    headers : sequence of str
        Column titles; empty for none.
    rows : sequence of sequence of str
        Cells, taken literally: rich reads ``[batch, 384]`` in a plain string as markup.
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]

    def drawn(self) -> Any:
        """Return what rich prints."""
        from rich.table import Table as RichTable
        from rich.text import Text

        result = RichTable(*self.headers, box=None, pad_edge=False, show_header=bool(self.headers))
        for row in self.rows:
            result.add_row(*map(Text, row))
        return result


def record_table(
    columns: Sequence[tuple[str, str, str]], records: Sequence[Mapping[str, Any]]
) -> Table:
    """Make a table of records.

    Parameters
    ----------
    columns : sequence of tuple of str
        Title, key, and format of the value; "-" stands for None.
    records : sequence of mapping of str to anything
        One per row.

    Returns
    -------
    Table
    """
    rows = [
        ["-" if record[key] is None else format(record[key], form) for _, key, form in columns]
        for record in records
    ]
    return Table([title for title, _, _ in columns], rows)
