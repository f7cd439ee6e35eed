"""What a command returns: a document for `--json`, and the same for a person."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..common.errors import ExitCode
from ..common.strict_json import JsonDict
from .tables import Table


@dataclass(frozen=True)
class CommandResult:
    """The outcome of a command that did not fail.

    Attributes
    ----------
    document : dict
        JSON-able; printed with `--json`, and nothing else is.
    shown
        The same for people: lines, and tables.
    exit_code
        Not 0 when the command did its work and the answer is bad news.
    """

    document: JsonDict
    shown: Sequence[str | Table]
    exit_code: ExitCode = ExitCode.OK
