"""Writing outputs so that a failure or an interruption never leaves half of one.

Everything is written to a temporary sibling (the same file system, so that a rename is atomic)
and renamed when it is complete.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from .errors import OutputError

_TEMPORARY_PREFIX = ".ibert-tmp-"


def check_writable(path: str | os.PathLike[str]) -> Path:
    """Check that an output can be created at `path`, before minutes are spent on its content.

    Parameters
    ----------
    path : path
        The file or folder that will be written. Its parent folder must exist.

    Returns
    -------
    pathlib.Path
        `path`, with a leading ``~`` expanded.

    Raises
    ------
    OutputError
        If the parent is missing, is not a folder, or does not let a file be created.
    """
    target = Path(path).expanduser()
    parent = target.parent
    if not parent.exists():
        raise OutputError(
            f"cannot write {target}",
            why=f"the folder {parent} does not exist",
            todo=f"create it (mkdir -p {parent}) or choose another output",
        )
    try:
        # Creating a file is the only honest test: permission bits say nothing about a read-only
        # or special file system.
        with tempfile.TemporaryFile(dir=parent, prefix=_TEMPORARY_PREFIX):
            pass
    except OSError as error:
        raise OutputError(
            f"cannot write {target}",
            why=f"a file cannot be created in {parent}: {error.strerror or error}",
            todo="choose an output in a folder that you may write to",
        ) from error
    return target


def _default_mode() -> int:
    """Permissions of a new file under the process's umask; temporary files are made 0600."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


@contextmanager
def write_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path to write to; rename it to `path` if the block succeeds.

    Parameters
    ----------
    path : path
        The file to create or replace.

    Yields
    ------
    pathlib.Path
        A path of the same suffix in the same folder, which does not exist yet.

    Raises
    ------
    OutputError
        If `path` cannot be written, or is a folder.
    """
    target = check_writable(path)
    if target.is_dir():
        raise OutputError(
            f"cannot write {target}",
            why="there is a folder of that name",
            todo="choose another output, or remove the folder",
        )
    folder = Path(tempfile.mkdtemp(dir=target.parent, prefix=_TEMPORARY_PREFIX))
    try:
        temporary = folder / target.name
        yield temporary
        try:
            temporary.chmod(_default_mode())
            os.replace(temporary, target)
        except OSError as error:
            raise OutputError(f"cannot write {target}", why=str(error.strerror or error)) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def write_folder(
    path: str | os.PathLike[str], replaceable: bool, kind: str = "an .ibert artefact"
) -> Iterator[Path]:
    """Give an empty temporary folder to fill; rename it to `path` if the block succeeds.

    Parameters
    ----------
    path : path
        The folder to create.
    replaceable : bool
        Whether what is at `path` now may be replaced (the caller has looked at it). An empty
        folder always may.
    kind : str
        What would have been replaceable, for the error.

    Yields
    ------
    pathlib.Path
        An empty folder beside `path`.

    Raises
    ------
    OutputError
        If `path` exists and may not be replaced, or its parent cannot be written to.
    """
    target = check_writable(path)
    exists = target.is_symlink() or target.exists()
    if exists and not (replaceable or (target.is_dir() and not any(target.iterdir()))):
        raise OutputError(
            f"cannot write {target}",
            why=f"something is there already, and it is not {kind}",
            todo="choose another output, or remove it yourself",
        )
    workspace = Path(tempfile.mkdtemp(dir=target.parent, prefix=_TEMPORARY_PREFIX))
    try:
        fresh = workspace / "new"
        fresh.mkdir()
        yield fresh
        for entry in fresh.rglob("*"):  # safetensors makes files that only their owner can read
            if entry.is_file():
                entry.chmod(_default_mode())
        # A folder cannot be replaced by a rename, so the old one steps aside first; if the second
        # rename fails it comes back.
        aside = workspace / "old"
        if exists:
            os.rename(target, aside)
        try:
            os.rename(fresh, target)
        except OSError as error:
            if exists:
                os.rename(aside, target)
            raise OutputError(f"cannot write {target}", why=str(error.strerror or error)) from error
    finally:
        shutil.rmtree(workspace, ignore_errors=True)


def files_sha256(files: Sequence[Path]) -> str:
    """Return the hash of the contents of files, one after the other."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()
