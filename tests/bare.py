"""The default tests on a machine without the optional tools, and with one kind of them alone.

`.ci/run` installs every tool, so its tests never show what they do without. As a plugin of pytest
(``-p tests.bare``) this module writes down which tests looked for an optional tool or started one,
and of which kind; as a program it runs those tests again on other search paths. Each must pass or
skip. Where one kind is alone, a test that asks for no other does what it did where there were all,
and one that does not ask for it what it did where there was none: neither runs again.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
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
_NOTES = "IBERT_ASKED_FOR_TOOLS"  # the file that tests and kinds of tools are appended to
_KEPT = "IBERT_KEPT_TOOLS"  # kinds of the machine to run on, by commas; not set in the first run
_OURS = ("tests", "ibert_tvm", "benchmarks")


def kind_of(command: object) -> str | None:
    """The kind of optional tool that a command is."""
    if not isinstance(command, str | os.PathLike):
        return None
    name = os.path.basename(os.fspath(command))
    return next((kind for kind, names in TOOLS.items() if name.startswith(names)), None)


class Notes:
    """Pytest plugin: which tests ask for which optional tools, in this process.

    What is made once asks on behalf of every test that takes it: fixtures, and cached functions of
    this project.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._current = ""
        self._asking: set[tuple[str, str]] = set()
        self._open: list[set[str]] = []  # of fixtures and cached functions that run now
        self._fixtures: dict[tuple[str, str], set[str]] = defaultdict(set)

    def note(self, command: object) -> None:
        """Note the running test, if the command is an optional tool."""
        kind = kind_of(command)
        if kind is not None:
            self._add([kind])

    def _add(self, kinds: Iterable[str]) -> None:
        for kind in kinds:
            if self._current:
                self._asking.add((self._current, kind))
            for asked in self._open:
                asked.add(kind)

    @contextlib.contextmanager
    def _collecting(self) -> Iterator[set[str]]:
        asked: set[str] = set()
        self._open.append(asked)
        try:
            yield asked
        finally:
            self._open = [one for one in self._open if one is not asked]

    def cached(
        self, function: Callable[..., Any], decorate: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Decorate a function as `functools.lru_cache` does; each call asks for what the first did.

        Parameters
        ----------
        function, decorate
            The function, and what caches its results.
        """
        asked: dict[object, set[str]] = {}

        def key(arguments: tuple[object, ...], options: dict[str, object]) -> object:
            return arguments, tuple(options.items())

        @functools.wraps(function)
        def first(*arguments: Any, **options: Any) -> Any:
            with self._collecting() as kinds:
                result = function(*arguments, **options)
            if kinds:
                asked[key(arguments, options)] = kinds
            return result

        results = decorate(first)

        @functools.wraps(function)
        def every(*arguments: Any, **options: Any) -> Any:
            result = results(*arguments, **options)
            self._add(asked.get(key(arguments, options), ()))
            return result

        every.cache_clear, every.cache_info = results.cache_clear, results.cache_info  # type: ignore[attr-defined]
        return every

    def pytest_collectstart(self, collector: pytest.Collector) -> None:
        """A module may look for tools as it is imported: for all of its tests."""
        self._current = collector.nodeid.partition("::")[0]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins."""
        self._current = nodeid

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any]
    ) -> Generator[None, object, object]:
        """A fixture is made, for this test and perhaps others."""
        with self._collecting() as kinds:
            try:
                return (yield)
            finally:
                self._fixtures[fixturedef.baseid, fixturedef.argname] |= kinds

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """A test asks for what its fixtures asked for."""
        names = getattr(item, "fixturenames", ())
        for (place, name), kinds in self._fixtures.items():
            if name in names and item.nodeid.startswith(place):
                self._add(kinds)

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

    lru_cache = functools.lru_cache

    def caching(maxsize: Any = 128, typed: bool = False) -> Any:
        if callable(maxsize):
            return caching()(maxsize)

        def decorate(function: Callable[..., Any]) -> Any:
            ours = str(function.__module__).partition(".")[0] in _OURS
            cache = lru_cache(maxsize, typed)
            return notes.cached(function, cache) if ours else cache(function)

        return decorate

    shutil.which = noted
    functools.lru_cache = caching  # type: ignore[assignment]  # `functools.cache` calls it
    sys.addaudithook(started)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that do not differ on this machine, where it lacks kinds of tools."""
    if _KEPT not in os.environ:
        return
    kept = [kind for kind in os.environ[_KEPT].split(",") if kind]
    chosen = names_with(kept, kinds_asked_for(Path(os.environ[_NOTES])))
    run, left = [], []
    for item in items:
        (run if {item.nodeid, item.nodeid.partition("::")[0]} & chosen else left).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = run


def link_commands(folder: Path, kept: Collection[str], path: Iterable[str]) -> None:
    """Link the commands of a search path into a folder, of the optional ones some kinds only."""
    for place in map(Path, path):
        for command in place.iterdir() if place.is_dir() else ():
            kind = kind_of(command)
            if (kind is None or kind in kept) and not (folder / command.name).is_symlink():
                (folder / command.name).symlink_to(command)


def kinds_asked_for(notes: Path) -> dict[str, set[str]]:
    """The kinds of optional tools that each test, and each test file as a whole, asked for.

    A test asks for what its file does.
    """
    asked = defaultdict(set)
    for line in notes.read_text(encoding="utf-8").splitlines():
        name, kind = line.split("\t")
        asked[name].add(kind)
    for name, kinds in asked.items():
        kinds |= asked.get(name.partition("::")[0], set())
    return asked


def names_with(kept: Collection[str], asked: Mapping[str, Collection[str]]) -> set[str]:
    """Tests and files that may do something else with these kinds alone than with all or none."""
    return {name for name, kinds in asked.items() if {*kept} < {*kinds}}


def run_with(kept: Collection[str], command: list[str]) -> int:
    """Run a command where of the optional tools there are some kinds only; return its status."""
    # Where CI is set, a test fails for want of a tool.
    variables = {name: value for name, value in os.environ.items() if name != "CI"}
    with tempfile.TemporaryDirectory(prefix="ibert-commands-") as folder:
        link_commands(Path(folder), kept, os.environ["PATH"].split(os.pathsep))
        variables |= {"PATH": folder, _KEPT: ",".join(kept)}
        return subprocess.run(command, env=variables, cwd=ROOT).returncode


def main() -> None:
    """Run pytest, the arguments' command, on the tests that asked, once for each machine.

    Those that ask without any tool, for one in place of another, are noted in the first run.
    """
    failed = []
    for kept in ((), *((kind,) for kind in ALONE)):
        names = names_with(kept, kinds_asked_for(Path(os.environ[_NOTES])))
        files = sorted({name.partition("::")[0] for name in names})
        if not files and not kept:
            raise SystemExit("no test asked for an optional tool: the notes are wrong")
        machine = " and ".join(kept) or "no optional tool"
        print(f"-- {len(names)} tests of {len(files)} files, {machine}", flush=True)
        if files and run_with(kept, [*sys.argv[1:], "-q", "-p", "tests.bare", *files]) != 0:
            failed.append(machine)
    if failed:
        raise SystemExit(f"tests failed on a machine with: {', '.join(failed)}")


if __name__ == "__main__":
    main()
