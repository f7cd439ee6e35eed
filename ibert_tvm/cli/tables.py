"""Tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["table"]


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Make a table without lines.

    Parameters
    ----------
    headers : sequence of str
        Column titles; empty for none.
    rows : iterable of sequence of str
        Cells, taken literally: rich reads ``[batch, 384]`` in a plain string as markup.

    Returns
    -------
    rich.table.Table
    """
    from rich.table import Table
    from rich.text import Text

    result = Table(*headers, box=None, pad_edge=False, show_header=bool(headers))
    for row in rows:
        result.add_row(*(Text(cell) for cell in row))
    return result
