"""Whole messages of errors, recorded in ``errors.txt`` beside the tests that provoke them.

A test takes the fixture `messages` and writes ``with messages.raises(TargetError): ...`` instead
of repeating the text. The record holds each text under the name of its test; what depends on the
machine stands in braces. ``pytest --update-snapshots -n 0`` runs tests with messages only and
rewrites the records; the difference is reviewed like any other. An entry that its test no longer
makes fails that test, and one without a test fails the record, which is collected with its folder.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

E = TypeVar("E", bound=BaseException)
ROOT = Path(__file__).resolve().parent.parent
RECORD = "errors.txt"
UPDATE = "--update-snapshots"
HINT = f"`pytest {UPDATE} -n 0` rewrites it"


def parse(text: str) -> dict[str, str]:
    """Entries of a record: lines ``## name``, each followed by the exact text.

    A line of a text that begins so has a backslash before it.
    """
    parts = re.split(r"^## (.*)\n", text + "\n", flags=re.MULTILINE)
    bodies = (body.removesuffix("\n\n") for body in parts[2::2])
    texts = (re.sub(r"^\\(?=\\*## )", "", body, flags=re.MULTILINE) for body in bodies)
    return dict(zip(parts[1::2], texts, strict=True))


def render(entries: Mapping[str, str]) -> str:
    """The record of some entries, sorted by name."""
    texts = (
        (name, re.sub(r"^(?=\\*## )", r"\\", text, flags=re.MULTILINE))
        for name, text in sorted(entries.items())
    )
    return "\n".join(f"## {name}\n{text}\n" for name, text in texts)


def test_of(name: str) -> str:
    """The test that makes an entry: later messages of one test are numbered."""
    return re.sub(r" #\d+$", "", name)


def name_of(item: pytest.Item) -> str:
    """The name of a test in the record of its folder."""
    return f"{item.path.name}::{item.nodeid.partition('::')[2]}"


class Record:
    """The entries of one folder's file."""

    def __init__(self, path: Path, updating: bool) -> None:
        self.path = path
        self.updating = updating
        self.entries = parse(path.read_text(encoding="utf-8")) if path.exists() else {}

    def without_test(self, collected: Mapping[Path, set[str]]) -> list[str]:
        """Entries whose test is gone, as far as its file was collected."""
        return [
            name
            for name in self.entries
            for path in [self.path.with_name(name.partition("::")[0])]
            if not path.exists() or (path in collected and test_of(name) not in collected[path])
        ]

    def drop(self, names: list[str]) -> None:
        """Refuse entries that no test makes, or remove them when updating."""
        if names and not self.updating:
            pytest.fail(f"no test makes these entries of {self.path} ({HINT}): {names}", False)
        for name in names:
            del self.entries[name]

    def write(self) -> None:
        """Replace the file; a record without entries is no file."""
        if self.entries:
            self.path.write_text(render(self.entries), encoding="utf-8")
        else:
            self.path.unlink(missing_ok=True)


class Messages:
    """The messages of one test, in the order in which it makes them."""

    def __init__(self, record: Record, request: pytest.FixtureRequest, temporary: Path) -> None:
        self._record = record
        self._item: pytest.Item = request.node
        self._temporary = temporary
        self._used: list[str] = []

    @contextmanager
    def raises(
        self, kind: type[E] | tuple[type[E], ...], **parts: object
    ) -> Iterator[pytest.ExceptionInfo[E]]:
        """Expect an error with the recorded class and message; `parts` as for `check`."""
        with pytest.raises(kind) as caught:
            yield caught
        self.check(f"{caught.type.__name__}: {caught.value}", **parts)

    def check(self, text: str, **parts: object) -> None:
        """Compare a text with the record.

        ``folder=path`` records ``{folder}`` for every occurrence of ``str(path)``, and a compiled
        regular expression for every match. The test's ``tmp_path``, other temporary folders, the
        checkout and addresses are replaced anyway.
        """
        text = self._without_places(text, parts)
        name = name_of(self._item) + (f" #{len(self._used) + 1}" if self._used else "")
        self._used.append(name)
        if self._record.updating:
            self._record.entries[name] = text
        recorded = self._record.entries.get(name)
        if recorded is None:
            pytest.fail(f"{self._record.path} has no entry {name} ({HINT}):\n{text}", False)
        assert text == recorded, f"{name} of {self._record.path} ({HINT})"

    def _without_places(self, text: str, parts: Mapping[str, object]) -> str:
        places = dict(parts)
        own: Mapping[str, object] = getattr(self._item, "funcargs", {})
        if "tmp_path" in own:
            places["tmp_path"] = own["tmp_path"]
        for name, place in sorted(places.items(), key=lambda each: -len(str(each[1]))):
            pattern = place if isinstance(place, re.Pattern) else re.escape(str(place))
            text = re.sub(pattern, f"{{{name}}}", text)
        text = re.sub(
            rf"{re.escape(str(self._temporary))}/([^/\s]*?)\d+(?![\w-])", r"{tmp}/\1", text
        )
        text = text.replace(str(self._temporary), "{tmp}").replace(str(ROOT), "{root}")
        return re.sub(r"\b0x[0-9a-f]{8,}\b", "{address}", text)

    def finish(self) -> None:
        """Refuse entries of this test that it did not make."""
        own = [name for name in self._record.entries if test_of(name) == name_of(self._item)]
        self._record.drop([name for name in own if name not in self._used])


class _RecordItem(pytest.Item):
    def runtest(self) -> None:
        record = _record(self.config, self.path)
        record.drop(record.without_test(self.config.stash[_COLLECTED]))
        if not record.updating and self.path.read_text(encoding="utf-8") != render(record.entries):
            pytest.fail(f"{self.path} is not sorted, or names a test twice ({HINT})", False)


class _RecordFile(pytest.File):
    def collect(self) -> Iterator[pytest.Item]:
        yield _RecordItem.from_parent(self, name="every entry has a test")


_RECORDS = pytest.StashKey[dict[Path, Record]]()
_COLLECTED = pytest.StashKey[dict[Path, set[str]]]()


def _record(config: pytest.Config, path: Path) -> Record:
    records = config.stash[_RECORDS]
    if path not in records:
        records[path] = Record(path, config.getoption(UPDATE))
    return records[path]


@pytest.fixture
def messages(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Messages:
    """Compares messages of errors with ``errors.txt`` in the test's folder."""
    record = _record(request.config, request.path.with_name(RECORD))
    return Messages(record, request, tmp_path_factory.getbasetemp())


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that rewrites records."""
    parser.addoption(UPDATE, action="store_true", help=f"rewrite {RECORD} from the tests that run")


def pytest_configure(config: pytest.Config) -> None:
    """Start without records; refuse to write one file from several processes."""
    config.stash[_RECORDS] = {}
    config.stash[_COLLECTED] = {}
    if config.getoption(UPDATE) and config.getoption("numprocesses", None):
        raise pytest.UsageError(f"{UPDATE} writes from one process: give -n 0 too")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect a record as a test: its entries have tests."""
    return _RecordFile.from_parent(parent, path=file_path) if file_path.name == RECORD else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Note which tests have messages, before options choose among them; an update runs no other."""
    for item in items:
        tests = config.stash[_COLLECTED].setdefault(item.path, set())
        if "messages" in getattr(item, "fixturenames", ()):
            tests.add(name_of(item))
    if config.getoption(UPDATE):
        collected = config.stash[_COLLECTED]
        items[:] = [
            item
            for item in items
            if isinstance(item, _RecordItem) or name_of(item) in collected[item.path]
        ]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """After a test that passed: it made all its entries."""
    yield
    own = getattr(item, "funcargs", {}).get("messages")
    if isinstance(own, Messages):
        own.finish()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the records that were used, when updating."""
    config = session.config
    if config.getoption(UPDATE):
        for record in config.stash[_RECORDS].values():
            if not any("::" in argument for argument in config.args):
                record.drop(record.without_test(config.stash[_COLLECTED]))
            record.write()
