"""The default tests on a machine without the optional tools, and with one kind of them alone.

`.ci/run` installs every tool, so its tests never show what they do without. As a plugin of pytest
(``-p tests.bare``) this module writes down which test files looked for an optional tool or started
one, and of which kind; as a program it runs those files again on other search paths. Each test must
pass or skip. Where one kind is alone, a file that asks for no other does what it did where there
were all, and one that does not ask for it what it did where there was none: neither runs again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.closure import ROOT

# Beginnings of the names of commands. What is not here belongs to the minimum that README.md names.
TOOLS = {
    "cross-compilers": (
        *("aarch64-linux-gnu-", "arm-linux-gnueabi", "arm-none-eabi-", "riscv64-"),
        *("clang-14", "wasm-ld"),
    ),
    "emulators": ("qemu-", "bochs", "node"),
    "a browser": ("chromium",),
    "a client of HTTP": ("h2load",),
    "further tools": ("llvm-", "mmdebstrap", "cmake", "pkg-config"),
}
ALONE = ("cross-compilers", "emulators", "a browser")
_NOTES = "IBERT_ASKED_FOR_TOOLS"  # the file that test files and kinds of tools are appended to


def kind_of(command: object) -> str | None:
    """The kind of optional tool that a command is."""
    if not isinstance(command, str | os.PathLike):
        return None
    name = os.path.basename(os.fspath(command))
    return next((kind for kind, names in TOOLS.items() if name.startswith(names)), None)


class Notes:
    """Pytest plugin: which test files ask for which optional tools, in this process."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._current = ""
        self._asking: set[tuple[str, str]] = set()

    def note(self, command: object) -> None:
        """Note the running test's file, if the command is an optional tool."""
        kind = kind_of(command)
        if self._current and kind is not None:
            self._asking.add((self._current, kind))

    def pytest_collectstart(self, collector: pytest.Collector) -> None:
        """A module may look for tools as it is imported."""
        self._current = collector.nodeid.partition("::")[0]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Fixtures ask on behalf of the test that needs them first."""
        self._current = nodeid.partition("::")[0]

    def pytest_sessionfinish(self) -> None:
        """Add what was found to the file that all processes write to."""
        with self._file.open("a", encoding="utf-8") as stream:
            stream.writelines(f"{name}\t{kind}\n" for name, kind in sorted(self._asking))


def pytest_configure(config: pytest.Config) -> None:
    """Watch this process."""
    notes = Notes(Path(os.environ[_NOTES]))
    config.pluginmanager.register(notes)
    which = shutil.which

    def noted(command: Any, *arguments: Any, **options: Any) -> Any:
        notes.note(command)
        return which(command, *arguments, **options)

    def started(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen":
            notes.note(arguments[0])

    shutil.which = noted
    sys.addaudithook(started)


def link_commands(folder: Path, kept: Collection[str], path: Iterable[str]) -> None:
    """Link the commands of a search path into a folder, of the optional ones some kinds only."""
    for place in map(Path, path):
        for command in place.iterdir() if place.is_dir() else ():
            kind = kind_of(command)
            if (kind is None or kind in kept) and not (folder / command.name).is_symlink():
                (folder / command.name).symlink_to(command)


def kinds_asked_for(notes: Path) -> dict[str, set[str]]:
    """The kinds of optional tools that each test file asked for."""
    asked = defaultdict(set)
    for line in notes.read_text(encoding="utf-8").splitlines():
        name, kind = line.split("\t")
        asked[name].add(kind)
    return asked


def files_with(kept: Collection[str], asked: Mapping[str, Collection[str]]) -> list[str]:
    """Test files that may differ where there are these kinds from what they do with all or none."""
    return sorted(name for name, kinds in asked.items() if {*kept} < {*kinds})


def run_with(kept: Collection[str], command: list[str]) -> int:
    """Run a command where of the optional tools there are some kinds only; return its status."""
    # Where CI is set, a test fails for want of a tool.
    variables = {name: value for name, value in os.environ.items() if name != "CI"}
    with tempfile.TemporaryDirectory(prefix="ibert-commands-") as folder:
        link_commands(Path(folder), kept, os.environ["PATH"].split(os.pathsep))
        return subprocess.run(command, env={**variables, "PATH": folder}, cwd=ROOT).returncode


def main() -> None:
    """Run pytest, the arguments' command, on the files that asked, once for each machine.

    Those that ask without any tool, for one in place of another, are noted in the first run.
    """
    failed = []
    for kept in ((), *((kind,) for kind in ALONE)):
        files = files_with(kept, kinds_asked_for(Path(os.environ[_NOTES])))
        if not files and not kept:
            raise SystemExit("no test asked for an optional tool: the notes are wrong")
        machine = " and ".join(kept) or "no optional tool"
        print(f"-- {len(files)} test files, {machine}", flush=True)
        if files and run_with(kept, [*sys.argv[1:], "-q", "-p", "tests.bare", *files]) != 0:
            failed.append(machine)
    if failed:
        raise SystemExit(f"tests failed on a machine with: {', '.join(failed)}")


if __name__ == "__main__":
    main()
