"""This project at another commit, as a peer."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks import process
from benchmarks.models import MODELS, Cell
from benchmarks.peers import commit, find_peer, place_of
from benchmarks.process import WorkerError, build_artefact

SPEC, CELL = MODELS["minilm"], Cell(1, 32)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with two commits, of which the second is checked out."""
    root = tmp_path / "repository"
    for folder in ("ibert_tvm", "schedules"):
        (root / folder).mkdir(parents=True)
        (root / folder / "__init__.py").touch()
    git = ["git", "-C", str(root), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    for text in ("before", "now"):
        (root / "schedules" / "tile.py").write_text(text)
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "-q", "-m", text], check=True)
    monkeypatch.setattr(commit, "ROOT", root)
    return root


def test_a_commit_is_laid_out_as_it_is_installed(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_peer("ibert@HEAD~1").missing() is None
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        place = place_of("ibert@HEAD~1", Path("cache"))
        assert place.peer == "ibert"
        assert (place.root / "ibert_tvm" / "schedules" / "tile.py").read_text() == "before"
    assert place_of("ibert@HEAD", tmp_path / "cache").cache != place.cache
    assert place.root.is_absolute()
    # A branch that moves is another commit.
    assert place.root.parent.name != "HEAD~1"
    assert place_of("ibert", tmp_path) == commit.Place(repository, "ibert", tmp_path)


def test_its_worker_runs_from_its_checkout(repository: Path, tmp_path: Path) -> None:
    place = place_of("ibert@HEAD~1", tmp_path)
    command, root = process._worker("serve", SPEC, "ibert@HEAD~1", CELL, tmp_path, 1, "cell")
    assert root == place.root
    assert command[2:] == [
        *("benchmarks.worker", "serve", "minilm", "ibert", "1x32", "1", str(place.cache), "cell")
    ]
    command, root = process._worker("build", SPEC, "ibert", CELL, tmp_path)
    assert (command[3:], root) == (["build", "minilm", "ibert", "1x32", str(tmp_path)], repository)


@pytest.mark.parametrize("name", ["nope", "--all", "HEAD:schedules"])
def test_what_is_no_commit_is_refused(repository: Path, tmp_path: Path, name: str) -> None:
    peer = find_peer(f"ibert@{name}")
    assert peer.missing() == (f"this repository has no commit {name!r} (git fetch brings others)")
    with pytest.raises(WorkerError, match=f"this repository has no commit '{name}'"):
        build_artefact(SPEC, peer.name, CELL, tmp_path)


def test_these_sources_never_stand_for_those_of_the_commit(tmp_path: Path) -> None:
    peer = find_peer("ibert@HEAD")
    with pytest.raises(RuntimeError, match="a worker of its own checkout"):
        peer.build(SPEC, CELL, tmp_path, tmp_path, tmp_path)
    with pytest.raises(RuntimeError, match="a worker of its own checkout"):
        peer.load(tmp_path, SPEC, CELL, 1)
