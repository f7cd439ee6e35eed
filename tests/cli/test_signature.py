"""Options made of signatures, dataclasses and docstrings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer import Argument, Option

from ibert_tvm.cli.app import application
from ibert_tvm.cli.result import CommandResult
from ibert_tvm.cli.signature import Choice, Settings, command_of, examples


@dataclass(frozen=True)
class _Core:
    """Settings of a core.

    Parameters
    ----------
    rate : float
        How fast,
        in metres per second.
    kind : str
        Which.
    secret : int
        Not for users.
    """

    rate: float = 0.5
    kind: str = "slow"
    secret: int = 7


@dataclass(frozen=True)
class _Group:
    """A group.

    Attributes
    ----------
    file
        What is read.
    name
        What it is called.
    """

    panel = "Files"

    file: Annotated[Path, Argument()]
    name: Annotated[str | None, Option(metavar="WORD")] = None


def _command(
    group: _Group,
    count: int,
    *,
    output: Path | None = None,
    loud: bool = False,
    core: Annotated[
        _Core,
        Settings({"rate": Option("--pace", min=0), "kind": Choice(("slow", "fast"))}, ["secret"]),
    ],
    observer: Annotated[str | None, Choice(("a", "b"))] = None,
) -> CommandResult:
    """Do it.

    At once.

    Parameters
    ----------
    count
        How often.
    output
        What is written.
    loud
        With noise.
    observer
        Who looks on.

    Examples
    --------
    ibert do file 3
    """
    return CommandResult({"given": (group, count, output, loud, core, observer)}, [])


def _typer() -> typer.Typer:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(command_of(_command))
    return app


def _run(*words: str) -> Any:
    return _typer()(list(words), standalone_mode=False)


def test_groups_arrive_as_their_dataclasses() -> None:
    plain = _run("f", "3").document["given"]
    assert plain == (_Group(Path("f")), 3, None, False, _Core(), None)
    words = ("--pace", "2", "--kind", "fast", "-o", "~/x", "--loud", "--name", "n", "--observer")
    full = _run("f", "3", *words, "b", "--json", "--verbose").document["given"]
    assert full == (*(_Group(Path("f"), "n"), 3, Path.home() / "x", True, _Core(2.0, "fast"), "b"),)


@pytest.mark.parametrize(
    "words",
    [("--secret", "1"), ("--no-loud",), ("--kind", "x"), ("--observer", "c"), ("--pace=-1",)],
)
def test_what_is_not_offered_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(Exception, match=r"No such option|is not one of|greater than or equal"):
        _run("f", "3", *words)


def test_the_docstring_is_the_help() -> None:
    command = typer.main.get_command(_typer())
    assert (command.help or "").strip() == "Do it.\n\nAt once."
    helps = {param.name: getattr(param, "help", None) for param in command.params}
    assert helps["rate"] == "How fast, in metres per second."
    assert (helps["count"], helps["file"], helps["name"]) == (
        "How often.",
        "What is read.",
        "What it is called.",
    )
    assert examples(_command) == ["ibert do file 3"]
    panels = {param.name: getattr(param, "rich_help_panel", None) for param in command.params}
    assert (panels["name"], panels["rate"], panels["json"]) == ("Files", None, "Messages")


def test_an_option_without_a_text_is_refused() -> None:
    def command(*, quiet: bool = False) -> CommandResult:
        """Say nothing."""
        raise AssertionError

    with pytest.raises(KeyError, match="quiet"):
        command_of(command)


def test_every_option_has_a_help() -> None:
    for command in typer.main.get_command(application()).commands.values():  # type: ignore[attr-defined]
        assert [param.name for param in command.params if not param.help] == []
