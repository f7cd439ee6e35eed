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

_EXAMPLE = """
import functools, shutil, subprocess, pytest

def emulator():
    return shutil.which("qemu-none")
emulator.__module__ = "tests.example"
emulator = functools.cache(emulator)

@pytest.fixture(scope="module")
def opened():
    with pytest.raises(FileNotFoundError):
        subprocess.run(["chromium-none"])

def test_looking(): assert emulator() is None
def test_what_was_looked_for(): assert emulator() is None
def test_opening(opened): pass
def test_what_was_opened(opened): assert shutil.which("sh")
def test_both(opened): emulator()
def test_neither(): pass
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


@pytest.mark.representatives(1)
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
def test_tests_that_ask_are_noted_and_run_again(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(_EXAMPLE, encoding="utf-8")
    (tmp_path / "test_import.py").write_text(
        "import shutil; shutil.which('bochs')\ndef test_it(): pass", encoding="utf-8"
    )
    notes = tmp_path / "notes"
    environment = {**os.environ, bare._NOTES: str(notes), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-v", "-p", "tests.bare", "-c", "/dev/null"]

    def passed(**variables: str) -> set[str]:
        done = subprocess.run(
            [*command, "--rootdir", "."],
            cwd=tmp_path,
            env={**environment, **variables},
            check=True,
            capture_output=True,
            text=True,
        )
        return {line.split()[0] for line in done.stdout.splitlines() if " PASSED" in line}

    everything = passed()
    asked = bare.kinds_asked_for(notes)
    emulators, browser = {"emulators"}, {"a browser"}
    assert asked == {
        "test_import.py": emulators,
        "test_one.py::test_looking": emulators,
        "test_one.py::test_what_was_looked_for": emulators,
        "test_one.py::test_opening": browser,
        "test_one.py::test_what_was_opened": browser,
        "test_one.py::test_both": emulators | browser,
    }
    neither = "test_one.py::test_neither"
    assert passed(**{bare._KEPT: ""}) == everything - {neither}
    assert passed(**{bare._KEPT: "emulators"}) == {"test_one.py::test_both"}


def test_tests_that_ask_for_one_kind_do_not_run_where_it_is_alone(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.write_text("a.py\temulators\na.py::one\ta browser\nb.py::two\temulators\n")
    asked = bare.kinds_asked_for(notes)
    assert bare.names_with((), asked) == {"a.py", "a.py::one", "b.py::two"}
    assert bare.names_with(("emulators",), asked) == {"a.py::one"}
