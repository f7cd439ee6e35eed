"""One run of the command line: streams, exit codes, signals and errors.

stdout carries the result and nothing else. Libraries that print (TVM, torch, subprocesses of a
toolchain) are sent to stderr on the level of file descriptors while the command works.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any, ClassVar

from ..common.errors import ErrorReport, ExitCode, UsageError, describe
from ..common.extras import as_missing_extra
from ..common.terminal import printable
from ..progress import without_lines
from .result import CommandResult
from .tables import width

_COMPLETION = ("--show-completion", "--install-completion")


class _Stopped(BaseException):
    """SIGINT or SIGTERM, as an exception, so that temporary files are removed on the way out."""


class _Signals:
    """Turns the first SIGINT or SIGTERM into `_Stopped`, and remembers it.

    TVM replaces an exception that passes through one of its callbacks by one of its own, so what
    is caught in the end does not tell whether there was a signal.
    """

    _WORDS: ClassVar[dict[int, str]] = {
        int(signal.SIGINT): "interrupted",
        int(signal.SIGTERM): "terminated",
    }

    def __init__(self) -> None:
        self.received: int | None = None

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Handle the signals in the block; does nothing outside of the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = {number: signal.signal(number, self._stop) for number in self._WORDS}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _stop(self, number: int, _frame: object) -> None:
        self.received = number
        raise _Stopped

    def report(self, as_json: bool) -> int:
        """Print that the command was stopped; return the exit code, 128 + signal."""
        number = self.received or int(signal.SIGINT)
        what = self._WORDS[number]
        _print_error(ErrorReport("Stopped", 128 + number, what, what), as_json)
        return 128 + number


@contextmanager
def interrupting() -> Iterator[None]:
    """Let Ctrl-C be a KeyboardInterrupt in the block, for work that then gives what it has."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def run(arguments: Sequence[str] | None = None) -> int:
    """Parse the arguments, run the command, print its result; return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in words
    verbose = bool({"-v", "--verbose"} & set(words))
    _configure_logging(verbose)
    signals = _Signals()
    try:
        # With --json there is one document on stderr, or none.
        with signals.caught(), without_lines(as_json):
            result = _invoke(words)
            if not isinstance(result, CommandResult):  # an exit code, from --help or an interrupt
                if result == ExitCode.INTERRUPTED:
                    return signals.report(as_json)
                return int(result or 0)
            _show(result, as_json)
            return int(result.exit_code)
    except BrokenPipeError:
        # The reader of stdout left (`ibert ... | head`); there is nobody to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.OK)
    except (KeyboardInterrupt, _Stopped):
        return signals.report(as_json)
    except Exception as error:
        # Older versions of typer turn an interrupt into Abort.
        if signals.received is not None or type(error).__name__ == "Abort":
            return signals.report(as_json)
        return _fail(as_missing_extra(error, f"ibert {words[0]}"), as_json, verbose)


def _invoke(words: list[str]) -> Any:
    from .app import NAMES, application

    app = application([word for word in words[:1] if word in NAMES] or NAMES)
    if not words or {"--help", "-h", "--version", *_COMPLETION} & set(words):
        return app(words, prog_name="ibert", standalone_mode=False)
    with _stdout_to_stderr():
        return app(words, prog_name="ibert", standalone_mode=False)


def _show(result: CommandResult, as_json: bool) -> None:
    if as_json:
        print(json.dumps(result.document, indent=2, allow_nan=False, default=_plain))
    else:
        for item in result.shown:
            lines = [item] if isinstance(item, str) else item.lines(width())
            print(printable("\n".join(lines)))
    sys.stdout.flush()


def _plain(value: Any) -> Any:
    """Turn NumPy scalars and arrays, and paths, into what JSON has."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    sys.stdout.flush()
    saved = None
    try:
        saved = os.dup(1)
        os.dup2(2, 1)
    except OSError:  # started without a stdout or a stderr
        pass
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stderr.flush()
        if saved is not None:
            os.dup2(saved, 1)
            os.close(saved)


class _Formatter(logging.Formatter):
    """Lines of the log, whose arguments may come from a model or a request."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class _Handler(logging.StreamHandler[Any]):
    """Writes to what is sys.stderr at that moment: a line of progress puts itself in its place."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def _configure_logging(verbose: bool) -> None:
    """Warnings of this project go to stderr; with -v its information too."""
    logger = logging.getLogger("ibert_tvm")
    for handler in [h for h in logger.handlers if getattr(h, "_ibert_cli", False)]:
        logger.removeHandler(handler)
    handler = _Handler()
    handler._ibert_cli = True  # type: ignore[attr-defined]
    handler.setFormatter(_Formatter("%(levelname)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO if verbose else logging.WARNING)


def _fail(error: Exception, as_json: bool, verbose: bool) -> int:
    report = describe(error)
    if report is None and hasattr(error, "format_message"):  # typer's own: a usage error
        report = _usage_report(error)
    if verbose and (report is None or report.exit_code != ExitCode.USAGE):
        import traceback

        print(printable(traceback.format_exc()), file=sys.stderr)
    if report is None:
        message = f"internal error: {type(error).__name__}: {error}"
        if not verbose:
            message += "\n  what to do: run again with -v for the traceback, and please report it"
        report = ErrorReport(type(error).__name__, int(ExitCode.INTERNAL), message, str(error))
    _print_error(report, as_json)
    return report.exit_code


def _usage_report(error: Any) -> ErrorReport | None:
    message = str(error.format_message()).strip()
    context = getattr(error, "ctx", None)
    todo = f"see `{context.command_path} --help`" if context is not None else "see `ibert --help`"
    return describe(UsageError(message, todo=todo))


def _print_error(report: ErrorReport, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"error": report.to_json()}), file=sys.stderr)
    else:
        print(printable(f"error: {report.message}"), file=sys.stderr)
    sys.stderr.flush()
