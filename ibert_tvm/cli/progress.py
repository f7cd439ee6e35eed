"""Progress on stderr, only when that is a terminal."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_logger = logging.getLogger(__name__)

Advance = Callable[[int, int], None]
"""Called with the steps done and the steps there are."""

Show = Callable[[str], None]
"""Called with what is being done now."""


@contextmanager
def progress(description: str) -> Iterator[Advance]:
    """Show a progress bar.

    Parameters
    ----------
    description : str
        What is being done.

    Yields
    ------
    Advance
        To be called with (done, total); does nothing where stderr is not a terminal.
    """
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(file=sys.stderr)
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(description, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def status(description: str) -> Iterator[Show]:
    """Show that something without countable steps is going on.

    Parameters
    ----------
    description : str
        What is being done.

    Yields
    ------
    Show
        To be called with the description of the next thing.
    """
    if not sys.stderr.isatty():
        yield _logger.info
        return
    from rich.console import Console

    with Console(file=sys.stderr).status(description) as spinner:
        yield spinner.update
