"""Some damaged files for each reader; ``python -m tests.fuzz`` reads as many as one wants."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.examples import examples
from tests.fuzz.readers import READERS
from tests.fuzz.run import fuzz

_SECONDS = {"compile": 6, "import": 60, "onnx": 60}


@pytest.mark.slow  # some; `make fuzz`, which `.ci/run` calls, reads files of every reader
@pytest.mark.parametrize(
    "name", examples(READERS, "artefact", "compile", "library", otherwise="record")
)
def test_damaged_files(name: str) -> None:
    result = fuzz(name, _SECONDS.get(name, 2))
    assert result["findings"] == []
    assert result["cases"] > 0 and result["cases"] == result["refused"] + result["accepted"]


def test_what_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception of another kind, a change that nobody notices."""
    from dataclasses import replace

    from tests.fuzz import worker

    reader = READERS["texts"]

    def broken(_folder: object) -> object:
        raise KeyError("x")

    monkeypatch.setitem(READERS, "texts", replace(reader, read=broken))
    assert worker.read_case("texts", 0).endswith("KeyError: 'x'\n")
    silent = replace(reader, repair=lambda files, _: files, read=lambda folder: folder)
    monkeypatch.setitem(READERS, "texts", silent)
    found = {worker.read_case("texts", number).partition(":")[0] for number in range(20)}
    assert found == {"accepted", "a change was not noticed"}


def test_time_in_which_a_process_is_stopped_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was, by an alarm, and a run that someone stopped for a while found a case too slow."""
    from tests.fuzz import run

    monkeypatch.setattr(run, "CLOCK_SECONDS", 0.5)
    monkeypatch.setattr(run, "LOOK_SECONDS", 0.1)
    progress = tmp_path / "progress"
    progress.write_text("7")
    process = subprocess.Popen(["sleep", "60"])
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    going_on = threading.Timer(1, process.send_signal, (signal.SIGCONT,))
    going_on.start()
    begun = time.monotonic()
    run.wait(process, progress)
    assert process.returncode == -signal.SIGALRM
    assert time.monotonic() - begun > 1.3  # half a second after it went on, or nearly


_PLANTED = """
import zipfile

begin = zipfile.ZipFile.__init__

def init(self, *arguments, **named):
    try:
        begin(self, *arguments, **named)
    except zipfile.BadZipFile:
        raise IndexError("planted") from None

zipfile.ZipFile.__init__ = init
"""


def test_packed_files_are_those_that_were_packed() -> None:
    from tests.fuzz.coverage import packed, unpacked

    files = {"a/b.json": b"{}", "\u00e9": b"", "c": bytes(range(256)) * 300}
    assert unpacked(packed(files)) == files
    assert unpacked(packed(files)[:-1]) == {}
    for name in ("/etc/passwd", "../a", "a/../../b"):
        assert unpacked(packed({name: b"x"})) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_kept_files_are_read_or_refused(name: str) -> None:
    """Those that reach all of a reader's code that fuzzing found."""
    from tests.fuzz.coverage import kept, read_packed

    files = kept(name)
    assert files
    for content in files.values():
        read_packed(content, name)


@pytest.mark.slow
def test_what_reaches_new_code_is_kept_and_what_fails_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("atheris", reason="the extra fuzz brings it")
    from tests.fuzz import coverage
    from tests.fuzz.coverage import follow, unpacked

    result = follow("npz", 5, tmp_path)
    assert result["findings"] == []
    assert result["cases"] > 10 and result["edges"] > 10
    reached = {path.read_bytes() for path in (tmp_path / "npz").iterdir()}
    assert len(reached) >= result["corpus"] > 2
    monkeypatch.setattr(coverage, "KEPT", tmp_path / "kept")
    assert len(reached) >= coverage.keep("npz", tmp_path) == len(coverage.kept("npz")) > 2
    assert reached.issuperset(coverage.kept("npz").values())
    (tmp_path / "sitecustomize.py").write_text(_PLANTED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (first, *_others) = follow("npz", 5, tmp_path / "other")["findings"]
    assert "IndexError: planted" in first["what"]
    assert unpacked((tmp_path / "other" / "npz-findings" / first["file"]).read_bytes())


def test_the_record_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second run reads the cases behind those of the first, and adds up."""
    from tests.fuzz import __main__ as program

    begun = []

    def run(name: str, _seconds: float, first: int, count: int) -> dict[str, object]:
        begun.append((name, first))
        finding = {"case": first, "what": "x"}
        counts = {"cases": count, "refused": count - 1, "accepted": 0, "findings": [finding]}
        return {**counts, "seconds": 1.5, "peak_bytes": 100 - first}

    monkeypatch.setattr(program, "fuzz", run)
    record = tmp_path / "record.json"
    given = ["fuzz", "--reader", "texts", "--first", "7", "--count", "5", "--output", str(record)]
    monkeypatch.setattr("sys.argv", given)
    assert program.main() == 1
    assert program.main() == 1
    document = json.loads(record.read_text())
    assert begun == [("texts", 7), ("texts", 12)]
    assert document["cases"] == 10 and "onnx" in document["versions"]
    assert document["readers"]["texts"] == {
        **{"cases": 10, "refused": 8, "accepted": 0, "seconds": 3.0, "peak_bytes": 93},
        "findings": [{"case": 7, "what": "x"}, {"case": 12, "what": "x"}],
        **{"first": 7, "next": 17},
    }
