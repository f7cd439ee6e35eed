"""What all tests share is built once, and kept while it is used."""

import multiprocessing
import os
from types import SimpleNamespace

import pytest

import ibert_tvm
from tests import cache
from tests.cache import cached, compiled_once, forget_unused


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


class _Model:
    def __init__(self, text):
        self.text = text

    def save(self, folder):
        folder.mkdir()
        (folder / "manifest.json").write_text(self.text, encoding="utf-8")
        return folder


def test_equal_models_are_compiled_once_for_a_target(tmp_path, monkeypatch):
    compiled = []

    def compile(model, target, shapes, **options):
        compiled.append((model.text, target, *shapes, *options.values()))
        said = str(compiled[-1])
        return SimpleNamespace(export=lambda path, require_load: path.write_text(said))

    monkeypatch.setattr(cache, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(cache, "version_of", lambda *_: "these sources")
    monkeypatch.setattr(ibert_tvm, "compile", compile)
    cases = [("a", "host", (1, 8)), ("b", "host", (1, 8)), ("a", "x86-64", (1, 8))]
    cases += [("a", "host", (2, 8)), ("a", "host", (1, 8), "none")]
    for text, target, shape, *runtime in cases * 2:
        options = dict(zip(["runtime"], runtime, strict=False))
        path = compiled_once(_Model(text), target, [shape], **options)
        assert path.read_text() == str((text, target, shape, *runtime))
    assert compiled == cases
