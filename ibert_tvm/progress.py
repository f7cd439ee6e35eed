"""Progress on stderr: a bar on a terminal, elsewhere a line every ten seconds."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from .common.terminal import printable

_logger = logging.getLogger(__name__)

_EVERY = 10.0
"""Seconds between lines."""
_LINES = ContextVar("_LINES", default=True)
"""Whether lines are wanted, where there is no terminal."""
_SOON = 0.05
"""Share of the work that has to be done before its time says anything."""


class Estimate:
    """How much of a job is done, and how long the rest takes.

    A step that counts is judged by its own pace; those behind it, and steps that do not count, by
    the pace of all that is done and by their shares of the whole.

    Parameters
    ----------
    shares
        Share of every step, in their order; only their ratios matter.
    limit
        Seconds after which the job ends in any case.
    clock
        Seconds.
    """

    def __init__(
        self,
        shares: Mapping[str, float],
        limit: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shares = dict(shares)
        self._limit = limit
        self._clock = clock
        self._begun = self._step_begun = self._seen = clock()
        self._before = 0.0  # shares of the steps that are over
        self._share = 0.0  # of this step
        self._part = 0.0  # of this step that is done

    def step(self, name: str) -> None:
        """Begin a step; those before it are over."""
        names = list(self._shares)
        if name not in names:
            return
        earlier = names[: names.index(name)]
        self._before = sum(self._shares[other] for other in earlier)
        self._share, self._part = self._shares[name], 0.0
        self._step_begun = self._seen = self._clock()

    def advance(self, done: float, total: float) -> None:
        """So much of the step is done."""
        self._part = min(done / total, 1.0) if total > 0 else 0.0
        self._seen = self._clock()

    @property
    def done(self) -> float:
        """Share of the job that is done, from 0 to 1."""
        whole = sum(self._shares.values())
        return (self._before + self._part * self._share) / whole if whole else 0.0

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return self._clock() - self._begun

    @property
    def left(self) -> float | None:
        """Seconds that the rest takes; None as long as nothing can be said."""
        found = self._left()
        if self._limit is None:
            return found
        rest = max(self._limit - self.elapsed, 0.0)
        return rest if found is None else min(found, rest)

    def _left(self) -> float | None:
        now = self._clock()
        whole = sum(self._shares.values())
        later = whole - self._before - self._share
        if self._part > 0:
            took = self._seen - self._step_begun
            rest = took * (1 - self._part) / self._part
            pace = (self._seen - self._begun) / (self._before + self._part * self._share)
            known = self.done >= _SOON
            return max(rest + pace * later - (now - self._seen), 0.0) if known else None
        if not self._before:
            return None
        pace = (self._step_begun - self._begun) / self._before
        return max(pace * self._share - (now - self._step_begun), 0.0) + pace * later


class Line:
    """What a job calls to say how far it is."""

    def __init__(self, estimate: Estimate, show: Callable[[str], None]) -> None:
        self._estimate = estimate
        self._show = show

    def step(self, name: str, text: str = "") -> None:
        """Begin a step, shown by its name or the text."""
        self._estimate.step(name)
        self.say(text or name)

    def say(self, text: str) -> None:
        """Show what is being done now."""
        self._show(text)

    def advance(self, done: float, total: float) -> None:
        """So much of the step is done."""
        self._estimate.advance(done, total)


@contextmanager
def progress(shares: Mapping[str, float] | str, limit: float | None = None) -> Iterator[Line]:
    """Show a bar on a terminal; elsewhere a line every ten seconds, beside the steps in the log.

    Parameters
    ----------
    shares
        About what share of the time every step takes, in their order; the name of one step alone.
    limit
        Seconds after which the job ends in any case.

    Yields
    ------
    Line
        To be told of steps.
    """
    steps = {shares: 1.0} if isinstance(shares, str) else shares
    estimate = Estimate(steps, limit)
    with _bar(estimate) if sys.stderr.isatty() else _lines(estimate) as show:
        line = Line(estimate, show)
        line.step(next(iter(steps)))
        yield line


@contextmanager
def without_lines(wanted: bool = True) -> Iterator[None]:
    """Show nothing in the block where stderr is no terminal, if that is wanted here or outside."""
    token = _LINES.set(_LINES.get() and not wanted)
    try:
        yield
    finally:
        _LINES.reset(token)


@contextmanager
def _lines(estimate: Estimate) -> Iterator[Callable[[str], None]]:
    doing, wanted = "", _LINES.get()
    ended = threading.Event()

    def show(text: str) -> None:
        nonlocal doing
        doing = text
        _logger.info(text)

    def tell() -> None:
        while wanted and not ended.wait(_EVERY):
            left = estimate.left
            rest = "" if left is None else f", {clock(left)} left"
            line = f"{doing}: {estimate.done:.0%} done, {clock(estimate.elapsed)}{rest}"
            print(printable(line), file=sys.stderr, flush=True)

    thread = threading.Thread(target=tell, name="progress", daemon=True)
    thread.start()
    try:
        yield show
    finally:
        ended.set()
        thread.join()


@contextmanager
def _bar(estimate: Estimate) -> Iterator[Callable[[str], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn
    from rich.table import Column
    from rich.text import Text

    class Share(BarColumn):
        """The bar, as the estimate is when it is drawn."""

        def render(self, task: Any) -> Any:
            task.completed = estimate.done
            return super().render(task)

    class Times(ProgressColumn):
        """Time so far and, where it is known, time left."""

        def render(self, task: Any) -> Text:
            left = estimate.left
            rest = "" if left is None else f", {clock(left)} left"
            return Text(f"{clock(estimate.elapsed)}{rest}")

    columns = (
        SpinnerColumn(),
        TextColumn(
            "{task.description}",
            markup=False,
            table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"),
        ),
        Share(bar_width=16),
        Times(table_column=Column(no_wrap=True)),
    )
    console = Console(file=sys.stderr)
    with Progress(*columns, console=console, transient=True, expand=True) as bar:
        task = bar.add_task("", total=1)
        yield lambda text: bar.update(task, description=printable(text))


def clock(seconds: float) -> str:
    """Minutes and seconds, and hours where there are any."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
