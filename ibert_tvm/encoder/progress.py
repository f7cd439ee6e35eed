"""A bar on stderr for those who encode many texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(wanted: bool, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar, or nothing.

    Parameters
    ----------
    wanted
        Whether to show it.
    total
        Texts that there are.

    Yields
    ------
    callable
        To be called with the texts that were done since the last call.
    """
    if not wanted:
        yield lambda _count: None
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress

    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("encoding", total=total)
        yield lambda count: bar.advance(task, count)
