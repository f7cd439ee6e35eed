"""This project at another commit, ``ibert@COMMIT``: what a change costs, in the same run.

It is quantised, compiled and run by its own sources and its own benchmark worker, which are laid
out beside the artefacts. What it needs is installed already, for it is this project.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.models import Cell, ModelSpec

from .base import Peer, Run
from .ibert import IbertPeer

__all__ = ["CommitPeer", "Place", "commit_of", "place_of"]

ROOT = Path(__file__).resolve().parents[2]
# Folders that are installed inside of the package (``package-dir`` in pyproject.toml).
_INSIDE = {"firmware": "examples/firmware"} | {
    name: name for name in ("relay_passes", "schedules", "targets")
}


@dataclass(frozen=True)
class Place:
    """Where a peer's worker runs.

    Attributes
    ----------
    root : Path
        The checkout whose sources it is of.
    peer : str
        What the peer is called there.
    cache : Path
        Where its artefacts are.
    """

    root: Path
    peer: str
    cache: Path


class CommitPeer(Peer):
    """The default preset of another commit. Its workers know it as ``ibert``."""

    precision = IbertPeer.precision
    packages = IbertPeer.packages

    def __init__(self, commit: str) -> None:
        self.commit = commit
        self.name = f"{IbertPeer.name}@{commit}"
        self.title = f"{IbertPeer.title}, at commit {commit}"

    def missing(self) -> str | None:
        """Say so, too, where this repository has no such commit."""
        if _hash(self.commit) is None:
            return f"this repository has no commit {self.commit!r} (git fetch brings others)"
        return super().missing()

    def build(self, spec: ModelSpec, cell: Cell, source: Path, folder: Path, cache: Path) -> None:
        """Refuse: these sources are not those of the commit."""
        raise RuntimeError(f"{self.name} is built by a worker of its own checkout")

    def load(self, folder: Path, spec: ModelSpec, cell: Cell | None, threads: int) -> Run:
        """Refuse, likewise."""
        raise RuntimeError(f"{self.name} is run by a worker of its own checkout")


def commit_of(peer: str) -> str | None:
    """The commit in a peer's name; None of any other peer."""
    name, at, commit = peer.partition("@")
    return commit if at and name == IbertPeer.name else None


def place_of(peer: str, cache: Path) -> Place:
    """Where the workers of a peer run; lays the checkout out if it is of another commit.

    Raises
    ------
    FileNotFoundError
        If there is no such commit.
    """
    commit = commit_of(peer)
    if commit is None:
        return Place(ROOT, peer, cache)
    digest = _hash(commit)
    if digest is None:
        raise FileNotFoundError(f"this repository has no commit {commit!r}")
    home = cache.resolve() / "commits" / digest  # its worker runs in another folder
    if not (home / "checkout").exists():
        _lay_out(digest, home)
    return Place(home / "checkout", IbertPeer.name, home / "bench")


def _git(*arguments: str) -> bytes:
    return subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, check=True
    ).stdout


def _hash(commit: str) -> str | None:
    """The full hash of what git takes for a commit; None if there is none."""
    try:
        found = _git("rev-parse", "--verify", "--quiet", "--end-of-options", commit + "^{commit}")
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.decode().strip()


def _lay_out(digest: str, home: Path) -> None:
    """Put the files of a commit where they can be imported from."""
    part = home / f"checkout.{os.getpid()}"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(_git("archive", "--format=tar", digest))) as archive:
        archive.extractall(part, filter="data")
    for name, folder in _INSIDE.items():
        if (part / folder).is_dir():
            (part / "ibert_tvm" / name).symlink_to(Path("..") / folder)
    part.rename(home / "checkout")
