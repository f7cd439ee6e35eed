"""Records of messages: what passes, what fails, and what an update writes."""

from __future__ import annotations

import pytest

from tests.snapshots import Messages, parse, render

pytest_plugins = ["pytester"]

SUBJECT = """
import re
import pytest

@pytest.mark.parametrize("word", ["long", "short"])
def test_word(messages, word, tmp_path):
    with messages.raises(ValueError, word=word, seconds=re.compile("[0-9.]+ s")):
        raise ValueError(f"no {word}\\n  where: {tmp_path}/a\\n  at 0x7f12345678 in 0.25 s")
    messages.check(f"again\\n\\n{tmp_path.parent}/other12 {SECOND}")
"""
RECORD = """\
## test_it.py::test_word[long]
ValueError: no {word}
  where: {tmp_path}/a
  at {address} in {seconds}

## test_it.py::test_word[long] #2
again

{tmp}/other 2

## test_it.py::test_word[short]
ValueError: no {word}
  where: {tmp_path}/a
  at {address} in {seconds}

## test_it.py::test_word[short] #2
again

{tmp}/other 2
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(test_it=SUBJECT.replace("{SECOND}", "2"))
    (pytester.path / "errors.txt").write_text(RECORD)
    return pytester


def outcomes(run: pytest.Pytester, *args: str) -> dict[str, int]:
    return run.runpytest_inprocess("-p", "tests.snapshots", *args).parseoutcomes()


def test_entries_are_read_as_they_were_written() -> None:
    assert render(parse(RECORD)) == RECORD
    entries = {"b": "ends with a line\n", "a #2": "", "a": "\n## no\n\\\\## yes\n"}
    assert parse(render(entries)) == entries
    assert list(parse(render(entries))) == ["a", "a #2", "b"]
    assert render({}) == "" and parse("") == {}


def test_recorded_messages_pass(run: pytest.Pytester) -> None:
    assert outcomes(run) == {"passed": 3}


@pytest.mark.parametrize(
    ("old", "new", "failed"),
    [
        ("no {word}\n", "no word\n", 2),
        ("[long]\n", "[all]\n", 2),
        ("[short] #2", "[short] #3", 1),
        ("test_it.py::test_word[long]\n", "test_gone.py::test_word\n", 2),
        ("[short]\n", "[long]\n", 2),
        ("## test_it.py::test_word[long] #2", "\n## test_it.py::test_word[long] #2", 1),
    ],
    ids=["text", "missing", "number", "file gone", "named twice", "form"],
)
def test_a_wrong_record_fails_until_it_is_updated(
    run: pytest.Pytester, old: str, new: str, failed: int
) -> None:
    record = run.path / "errors.txt"
    record.write_text(RECORD.replace(old, new))
    expected = {"passed": 3 - failed, "failed": failed}
    assert outcomes(run) == {word: count for word, count in expected.items() if count}
    assert record.read_text() == RECORD.replace(old, new)
    assert outcomes(run, "--update-snapshots") == {"passed": 3}
    assert record.read_text() == RECORD


def test_an_entry_more_than_a_test_makes_fails_it(run: pytest.Pytester) -> None:
    (run.path / "errors.txt").write_text(RECORD + "\n## test_it.py::test_word[short] #3\nmore\n")
    assert outcomes(run) == {"passed": 2, "failed": 1}
    assert outcomes(run, "-k", "long") == {"passed": 1, "deselected": 2}
    assert outcomes(run, "--update-snapshots", "-k", "short") == {"passed": 1, "deselected": 2}
    assert (run.path / "errors.txt").read_text() == RECORD


def test_a_failing_or_missing_test_keeps_its_entries(run: pytest.Pytester) -> None:
    run.makepyfile(test_it="import pytest\npytest.skip('no torch', allow_module_level=True)")
    assert outcomes(run, "--update-snapshots") == {"passed": 1, "skipped": 1}
    run.makepyfile(test_it=SUBJECT.replace("{SECOND}", "{1 / 0}"))
    assert outcomes(run, "--update-snapshots") == {"passed": 1, "failed": 2}
    assert (run.path / "errors.txt").read_text() == RECORD


def test_an_update_of_a_file_removes_what_it_no_longer_has(run: pytest.Pytester) -> None:
    stale = RECORD + "\n## test_it.py::test_word[zero]\nno {word}\n"
    (run.path / "errors.txt").write_text(stale)
    assert outcomes(run, "--update-snapshots", "test_it.py::test_word") == {"passed": 2}
    assert (run.path / "errors.txt").read_text() == stale
    assert outcomes(run, "--update-snapshots", "test_it.py") == {"passed": 2}
    assert (run.path / "errors.txt").read_text() == RECORD


def test_an_update_runs_tests_with_messages_only(run: pytest.Pytester) -> None:
    run.makepyfile(test_other="def test_long(): ...")
    assert outcomes(run) == {"passed": 4}
    assert outcomes(run, "--update-snapshots") == {"passed": 3}


def test_no_record_is_written_by_several_processes(run: pytest.Pytester) -> None:
    result = run.runpytest_inprocess(
        "-p", "xdist", "-p", "tests.snapshots", "-n2", "--update-snapshots"
    )
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--update-snapshots writes from one process: give -n 0 too*"])


def test_an_error_of_another_kind_or_none_fails(messages: Messages) -> None:
    with pytest.raises(KeyError), messages.raises(ValueError):
        raise KeyError("other")
    with pytest.raises(pytest.fail.Exception), messages.raises(ValueError):
        pass
