"""Errors that a user of the library or of the command line can act on.

Every error says what failed, where, why, and what to do, in that order, and carries the exit
code that the command line ends with: 2 for usage, 3 for a model or an artefact, 4 for a target
or a toolchain, 5 for a failed verification. Every class of exceptions in these packages derives
from `IbertError`. This module imports nothing but the standard library, and is the one that every
package may import.
"""

from __future__ import annotations

import errno
from collections.abc import Collection
from dataclasses import asdict, dataclass
from enum import IntEnum

_LACKS = {
    errno.ENOMEM: "memory",
    errno.ENOSPC: "space on the disk",
    errno.EDQUOT: "space on the disk",
    errno.EMFILE: "open files",
    errno.ENFILE: "open files",
}


class ExitCode(IntEnum):
    """Exit codes of the command line."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    MODEL = 3
    TARGET = 4
    VERIFICATION = 5
    INTERRUPTED = 130


class IbertError(Exception):
    """Base of everything that this project raises on purpose.

    Parameters
    ----------
    what
        What failed, in one sentence.
    where
        The file, layer, option or phase it concerns; empty if `what` says it.
    why
        The cause; empty if `what` says it.
    todo
        What the user can do, with the allowed values where there is a list of them.
    """

    exit_code: ExitCode = ExitCode.INTERNAL

    def __init__(self, what: str, where: str = "", why: str = "", todo: str = "") -> None:
        self.what = what
        self.where = where
        self.why = why
        self.todo = todo
        super().__init__(what, where, why, todo)

    def __str__(self) -> str:
        answers = (("where", self.where), ("why", self.why), ("what to do", self.todo))
        return "\n".join([self.what, *(f"  {label}: {text}" for label, text in answers if text)])


class UsageError(IbertError, ValueError):
    """An option or argument that cannot be used as it was given."""

    exit_code = ExitCode.USAGE


def check_choice(what: str, value: str, allowed: Collection[str], why: str = "") -> None:
    """Refuse a word that is none of a few, with a `UsageError`; `what` is what it chooses."""
    if value not in allowed:
        todo = f"use one of: {', '.join(allowed)}"
        raise UsageError(f"unknown {what} {value!r}", why=why, todo=todo)


class InputError(UsageError):
    """Inputs of a library call (token ids, mask, text) that the compiled model cannot take."""


class OutputError(UsageError):
    """A place that cannot be written to."""


class ModelError(IbertError):
    """A source model that cannot be read or lowered."""

    exit_code = ExitCode.MODEL


class ArtefactError(ModelError):
    """A `NAME.ibert` folder that is missing, damaged or of another version."""


class LibraryError(ModelError):
    """A compiled library that is missing, damaged or not made by this project."""


class DocumentError(ModelError):
    """A document says what its format does not allow."""


class TargetError(IbertError):
    """A target that is unknown, unavailable, or is not the machine the library runs on."""

    exit_code = ExitCode.TARGET


class DeviceError(TargetError):
    """A GPU that is missing, full, of another architecture, or that failed."""


class VerificationError(IbertError):
    """A property that was promised and does not hold."""

    exit_code = ExitCode.VERIFICATION


@dataclass(frozen=True)
class ErrorReport:
    """One error in the form the command line shows it.

    Attributes
    ----------
    kind
        Name of the exception class.
    exit_code
        What the process ends with.
    message
        The whole text.
    what, where, why, todo
        Its parts.
    """

    kind: str
    exit_code: int
    message: str
    what: str
    where: str = ""
    why: str = ""
    todo: str = ""

    def to_json(self) -> dict[str, object]:
        """Return the report as a JSON-serialisable dictionary."""
        return asdict(self)


def error_lines(error: BaseException) -> list[str]:
    """Return the lines of an error's message; the name of its class if it has none.

    Parameters
    ----------
    error
        What a library raised.

    Returns
    -------
    list of str
        At least one line, without white space round it and without empty lines.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines or [type(error).__name__]


def _refused_by_system(error: MemoryError | OSError) -> ErrorReport | None:
    """A machine that has no more of something, which no reader or writer expected."""
    number = errno.ENOMEM if isinstance(error, MemoryError) else error.errno
    lacks = _LACKS.get(number or 0)
    if lacks is None:
        return None
    what, todo = f"the system has no more {lacks}", "free some, or raise the limit"
    why = str(error) or type(error).__name__
    message = str(IbertError(what, why=why, todo=todo))
    return ErrorReport(
        type(error).__name__, int(ExitCode.TARGET), message, what, why=why, todo=todo
    )


def describe(error: BaseException) -> ErrorReport | None:
    """Describe an expected error; return None for one that is a defect of the program.

    Parameters
    ----------
    error
        Anything caught at the top of the command line. A machine without memory, space or open
        files is expected, whoever found out.

    Returns
    -------
    ErrorReport or None
        None means that a traceback is the right thing to show.
    """
    if isinstance(error, (MemoryError, OSError)):
        return _refused_by_system(error)
    if not isinstance(error, IbertError):
        return None
    return ErrorReport(
        kind=type(error).__name__,
        exit_code=int(error.exit_code),
        message=str(error),
        what=error.what,
        where=error.where,
        why=error.why,
        todo=error.todo,
    )
