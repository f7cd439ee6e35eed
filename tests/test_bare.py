"""Tests that ask for optional tools are found, and run again where there are none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import bare
from tests.arm.tools import _PACKAGES
from tests.closure import ROOT

_LOOKING = """
import shutil
def test():
    assert shutil.which("sh") and shutil.which("qemu-none") is None
"""
_STARTING = """
import subprocess, pytest
def test():
    with pytest.raises(FileNotFoundError):
        subprocess.run(["qemu-none"])
    with pytest.raises(FileNotFoundError):
        subprocess.run(["chromium-none"])
"""


def test_every_tool_that_ci_installs_is_of_some_kind() -> None:
    text = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    lines = text.partition("<<'TOOLS'\n")[2].partition("\nTOOLS\n")[0].splitlines()
    commands = [name for name in (line.split()[0] for line in lines) if not name.startswith("/")]
    assert len(commands) > 5
    for command in (*commands, *_PACKAGES):
        assert bare.kind_of(command) is not None, command
    assert bare.kind_of("/usr/bin/gcc") is None


def test_a_search_path_has_everything_but_the_tools_of_other_kinds(tmp_path: Path) -> None:
    place, links = tmp_path / "bin", tmp_path / "links"
    for folder in (place, links):
        folder.mkdir()
    for name in ("gcc", "qemu-arm", "chromium", "arm-none-eabi-gcc"):
        (place / name).touch()
    bare.link_commands(links, ("emulators",), [str(tmp_path / "none"), str(place)])
    assert {one.name for one in links.iterdir()} == {"gcc", "qemu-arm"}


@pytest.mark.parametrize("tool", ["qemu-arm", "arm-none-eabi-gcc"])
def test_commands_run_without_them_and_without_ci(
    tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "bin"
    place.mkdir()
    (place / tool).write_text("#!/bin/sh\n", encoding="utf-8")
    (place / tool).chmod(0o700)
    monkeypatch.setenv("PATH", f"{place}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CI", "true")
    code = f"import os, shutil, sys; sys.exit(bool(os.environ.get('CI') or shutil.which('{tool}')))"
    assert bare.run_with((), [sys.executable, "-c", code]) == 0
    assert bare.run_with((bare.kind_of(tool),), [sys.executable, "-c", code]) == 1


@pytest.mark.slow
def test_files_that_ask_are_noted(tmp_path: Path) -> None:
    texts = {"looking": _LOOKING, "starting": _STARTING, "other": "def test(): pass"}
    for name, text in texts.items():
        (tmp_path / f"test_{name}.py").write_text(text, encoding="utf-8")
    notes = tmp_path / "notes"
    environment = {**os.environ, bare._NOTES: str(notes), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.bare", "-c", "/dev/null"]
    subprocess.run([*command, "--rootdir", "."], cwd=tmp_path, env=environment, check=True)
    asked = bare.kinds_asked_for(notes)
    assert asked == {
        "test_looking.py": {"emulators"},
        "test_starting.py": {"emulators", "a browser"},
    }


def test_files_that_ask_for_one_kind_do_not_run_where_it_is_alone() -> None:
    asked = {"both": {"emulators", "a browser"}, "one": {"emulators"}, "other": {"a browser"}}
    assert bare.files_with((), asked) == ["both", "one", "other"]
    assert bare.files_with(("emulators",), asked) == ["both"]
