"""Examples in the help of commands."""

from __future__ import annotations

import importlib
import re
import shlex

import pytest
import typer

from ibert_tvm.cli.app import NAMES, application
from ibert_tvm.cli.signature import examples
from tests.commands import Ibert

_GROUP = typer.main.get_command(application())


@pytest.mark.representatives(3)
@pytest.mark.parametrize("command", NAMES)
def test_examples_parse_and_are_shown_on_one_line(
    ibert: Ibert, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = examples(importlib.import_module(f"ibert_tvm.cli.{command}").command)
    assert lines
    for line in lines:
        program, name, *words = shlex.split(line)
        assert program == "ibert"
        _GROUP.commands[name].make_context(name, words)  # type: ignore[attr-defined]
    shown = [line.strip() for line in ibert(command, "--help").stdout.splitlines()]
    assert shown.count("Examples:") + shown.count("Example:") == 1
    assert [line for line in shown if line in lines] == lines


def test_help_has_panels_and_no_type_beside_flags(ibert: Ibert) -> None:
    shown = ibert("quantize", "--help").stdout
    panels = re.findall(r"╭─ ([-\w ]+) ─", shown)
    grouped = ["Import", "Size", "With --max-drop or --vocabulary", "Task", "Less common"]
    assert panels == ["Arguments", "Options", *grouped, "Messages"]
    first = re.findall(r"│ [* ]  ?(--[\w-]+)", shown.split("Options ─")[1].split("╭─ Import")[0])
    common = ["output", "calibration", "fidelity", "seq-len", "head", "max-drop"]
    assert first == [f"--{name}" for name in common]
    assert "<bool>" not in shown
    for option in ("--json", "--verbose", "--help"):
        assert option in shown.split("Messages")[1]
