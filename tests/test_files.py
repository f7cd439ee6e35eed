"""Outputs are there whole or not at all, whatever ends the process that writes them."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest

from ibert_tvm.common import files
from ibert_tvm.common.errors import OutputError
from ibert_tvm.common.files import OutputKind, check_writable, marked, write_file, write_folder

from .snapshots import Messages

FOLDER = OutputKind("a folder", Path.is_dir, folder=True)
FILE = marked("a file with the mark", b"the mark")


def _save(path: Path, text: str) -> None:
    with write_folder(path, FOLDER) as folder:
        (folder / "a").write_text(text)
        (folder / "deep").mkdir()
        (folder / "deep" / "b").write_text(text)


def _workspace(parent: Path, seconds: float) -> Path:
    """A workspace that was made so many seconds ago."""
    folder = parent / ".ibert-tmp-killed"
    folder.mkdir()
    (folder / "half").write_text("half")
    then = folder.stat().st_mtime - seconds
    os.utime(folder, (then, then))
    return folder


def test_a_reader_finds_a_folder_while_it_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x.ibert"
    _save(path, "0")
    missing, done = [], threading.Event()

    def read() -> None:
        while not done.is_set():
            if not path.is_dir():
                missing.append(path)

    reader = threading.Thread(target=read)
    reader.start()
    for k in range(30):
        _save(path, str(k))
    done.set()
    reader.join()
    assert not missing
    assert (path / "deep" / "b").read_text() == "29"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.ibert"]


def test_a_file_system_that_cannot_exchange_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_exchange", lambda a, b: False)
    path = tmp_path / "x.ibert"
    _save(path, "old")
    _save(path, "new")
    assert (path / "a").read_text() == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.ibert"]


def test_the_old_folder_comes_back_if_the_new_one_cannot_be_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.ibert"
    _save(path, "old")
    rename = os.rename

    def full(source: Path, target: Path) -> None:
        if Path(source).name == "new":
            raise OSError(28, "No space left on device")
        rename(source, target)

    monkeypatch.setattr(files, "_exchange", lambda a, b: False)
    monkeypatch.setattr(files.os, "rename", full)
    with pytest.raises(OutputError, match="No space left"):
        _save(path, "new")
    assert (path / "a").read_text() == "old"


def test_all_is_stored_before_it_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: list[str] = []
    store, put = files.store, files._put_in_place
    monkeypatch.setattr(files, "store", lambda path: (stored.append(path.name), store(path)))
    monkeypatch.setattr(
        files, "_put_in_place", lambda *given: (stored.append("renamed"), put(*given))
    )
    _save(tmp_path / "x.ibert", "1")
    before, after = stored[: stored.index("renamed")], stored[stored.index("renamed") + 1 :]
    assert {"a", "deep", "b", "new"} == set(before)
    assert after == [tmp_path.name]


@pytest.mark.parametrize(
    "write", [lambda path: write_file(path, FILE), lambda path: write_folder(path, FOLDER)]
)
def test_what_a_killed_process_left_is_removed(tmp_path: Path, write: object) -> None:
    left = _workspace(tmp_path, 3600)
    with write(tmp_path / "out") as place:  # type: ignore[operator]
        if not place.exists():
            place.write_text("out")
    assert not left.exists()


def test_a_workspace_in_use_stays(tmp_path: Path) -> None:
    left = _workspace(tmp_path, 3600)
    descriptor = os.open(left, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        _save(tmp_path / "out", "1")
        assert left.exists()
    finally:
        os.close(descriptor)


def test_a_workspace_that_was_just_made_stays(tmp_path: Path) -> None:
    left = _workspace(tmp_path, 1)
    _save(tmp_path / "out", "1")
    assert left.exists()


def test_the_only_copy_of_an_output_stays(tmp_path: Path) -> None:
    left = _workspace(tmp_path, 0)
    (left / "old").mkdir()
    then = left.stat().st_mtime - 3600
    os.utime(left, (then, then))
    _save(tmp_path / "out", "1")
    assert (left / "old").exists()


def test_what_another_writer_replaced_is_looked_at_again(tmp_path):
    """Of two that saved one artefact, one met its half removed predecessor, and refused."""
    path, looks = tmp_path / "x.ibert", []
    path.mkdir()
    (path / "half").touch()

    def look(folder: Path) -> bool:
        looks.append([file.name for file in folder.iterdir()])
        if len(looks) == 1:  # the other writer comes in between
            with write_folder(path, FOLDER) as fresh:
                (fresh / "whole").touch()
        return looks[-1] == ["whole"]

    assert OutputKind("a folder", look, folder=True).replaces(path)
    assert looks == [["half"], ["whole"]]


@pytest.mark.parametrize("what", ["other", "ours", "empty", "nothing", "folder", "link"])
def test_a_file_replaces_its_kind_alone(messages: Messages, tmp_path: Path, what: str) -> None:
    path, other = tmp_path / "out.json", tmp_path / "theirs"
    other.write_text("theirs")
    makers = {
        "other": lambda: path.write_text("theirs" * 2000),
        "ours": lambda: path.write_text("x" * 9000 + "the mark"),
        "empty": path.touch,
        "nothing": lambda: None,
        "folder": path.mkdir,
        "link": lambda: path.symlink_to(other),
    }
    makers[what]()
    if what in ("ours", "empty", "nothing"):
        with write_file(path, FILE) as temporary:
            temporary.write_text("new")
        assert path.read_text() == "new"
        return
    with messages.raises(OutputError, tmp_path=tmp_path), write_file(path, FILE):
        raise AssertionError("it was not refused")
    assert other.read_text() == "theirs"


def test_a_folder_replaces_no_file(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    with pytest.raises(OutputError, match="it is not a folder"):
        check_writable(tmp_path / "out", FOLDER)


def test_a_device_or_pipe_is_no_output(tmp_path: Path) -> None:
    """Renaming would replace it: as root, even /dev/null."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    link = tmp_path / "link"
    link.symlink_to("/dev/null")
    for special in (pipe, link, Path("/dev/null")):
        for write in (check_writable, lambda *given: write_file(*given).__enter__()):
            with pytest.raises(OutputError, match="it is a device, a pipe or a socket"):
                write(special, FILE)
    assert pipe.is_fifo() and link.is_symlink() and Path("/dev/null").is_char_device()
