"""What a command returns: a document for `--json`, and how to show it to a person."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ibert_tvm.errors import ExitCode

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["CommandResult"]


@dataclass(frozen=True)
class CommandResult:
    """The outcome of a command that did not fail.

    Attributes
    ----------
    document : dict
        JSON-able; printed with `--json`, and nothing else is.
    render : callable
        Prints the same for people on the console it is given.
    exit_code : ExitCode
        Not 0 when the command did its work and the answer is bad news.
    """

    document: dict[str, Any]
    render: Callable[[Console], None]
    exit_code: ExitCode = ExitCode.OK
