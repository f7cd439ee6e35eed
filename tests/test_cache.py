"""What all tests share is built once, and kept while it is used."""

import multiprocessing
import os

import pytest

from tests import cache
from tests.cache import cached, forget_unused


def test_what_was_built_is_kept_while_it_is_used(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "cache_folder", lambda: tmp_path)
    for name in ("old", "new"):
        with cached(name, "text") as (_, work):
            assert work is not None
            (work / "made").write_text(name, encoding="utf-8")
    with cached("old", "text") as (place, work):
        assert work is None and (place / "made").read_text(encoding="utf-8") == "old"
    os.utime(place, (0, 0))
    forget_unused()
    assert [path.name.split("-")[0] for path in tmp_path.iterdir()] == ["new"]


def test_what_fails_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "cache_folder", lambda: tmp_path)
    with pytest.raises(ValueError, match="stop"), cached("image", "text"):
        raise ValueError("stop")
    assert not list(tmp_path.iterdir())


def _build(folder, started):
    cache.cache_folder = lambda: folder
    started.wait()
    with cached("thing", "text") as (_, work):
        if work is not None:
            with (folder.parent / "builds").open("a") as stream:
                stream.write("built\n")


def test_processes_that_ask_at_the_same_time_build_it_once(tmp_path):
    folder = tmp_path / "cache"
    folder.mkdir()
    context = multiprocessing.get_context("fork")
    started = context.Event()
    processes = [context.Process(target=_build, args=(folder, started)) for _ in range(4)]
    for process in processes:
        process.start()
    started.set()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert (tmp_path / "builds").read_text() == "built\n"
