"""Examples in the help of commands."""

from __future__ import annotations

import shlex
from collections.abc import Callable

import pytest
import typer

from ibert_tvm.cli.app import app
from ibert_tvm.cli.examples import EXAMPLES

from .conftest import Outcome

_GROUP = typer.main.get_command(app)


def test_every_command_has_examples() -> None:
    assert list(EXAMPLES) == list(_GROUP.commands)  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", EXAMPLES)
def test_examples_parse_and_are_shown_on_one_line(
    ibert: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for line in EXAMPLES[command]:
        program, name, *words = shlex.split(line)
        assert program == "ibert"
        _GROUP.commands[name].make_context(name, words)  # type: ignore[attr-defined]
    shown = [line.strip() for line in ibert(command, "--help").stdout.splitlines()]
    assert shown.count("Examples:") + shown.count("Example:") == 1
    assert [line for line in shown if line in EXAMPLES[command]] == list(EXAMPLES[command])
