"""Writing outputs so that a failure or an interruption never leaves half of one, or none.

Everything is written to a temporary sibling (the same file system, so that a rename is atomic),
stored to disk, and renamed when it is complete. An output replaces an earlier one of its kind,
which is recognised by its content, and nothing else (`OutputKind`).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from .errors import OutputError

TEMPORARY_PREFIX = ".ibert-tmp-"
"""What names begin with that are there while something is written."""
# Between making a workspace and locking it another process must not take it for one left behind.
_LEFT_BEHIND_SECONDS = 60.0
# What steps aside where two folders cannot be exchanged in one step.
_ASIDE = "old"
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # <fcntl.h>, <linux/fs.h>


_MARKED_BYTES = 4096


@dataclass(frozen=True)
class OutputKind:
    """A kind of output, and what of it may be replaced.

    Attributes
    ----------
    name
        What messages call it, with its article.
    written
        Whether the content of a file or folder shows that it is an earlier output of this kind; an
        OSError means that it does not.
    folder
        Whether it is a folder.
    """

    name: str
    written: Callable[[Path], object]
    folder: bool = False

    def replaces(self, path: Path) -> bool:
        """Whether it may take a place: nothing is there, or nothing in it, or one of its kind.

        Another process may replace an output meanwhile; the files of a folder are then removed one
        by one, so that a look at them finds too few. What changed is looked at again.
        """
        while (before := _identity(path)) is not None:
            with suppress(OSError):
                if self.folder == path.is_dir() and (_is_empty(path) or self.written(path)):
                    return True
            if _identity(path) == before:
                return False
        return True


def marked(name: str, *marks: bytes) -> OutputKind:
    """Make the kind of files that carry one of these marks in their first or last 4 KB."""

    def written(path: Path) -> bool:
        with path.open("rb") as stream:
            head = stream.read(_MARKED_BYTES)
            stream.seek(max(0, path.stat().st_size - _MARKED_BYTES))
            tail = stream.read(_MARKED_BYTES)
        return any(mark in head or mark in tail for mark in marks)

    return OutputKind(name, written)


def _is_empty(path: Path) -> bool:
    return not any(path.iterdir()) if path.is_dir() else not path.stat().st_size


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_ino, status.st_mtime_ns


def check_replaceable(target: Path, kind: OutputKind) -> None:
    """Refuse a place where something is that an output of a kind may not replace.

    Raises
    ------
    OutputError
        If there is another file or folder.
    """
    if not kind.replaces(target):
        raise OutputError(
            f"cannot write {target}",
            why=f"something is there already, and it is not {kind.name}",
            todo="choose another output, or remove it yourself",
        )


def check_writable(path: str | os.PathLike[str], kind: OutputKind) -> Path:
    """Check that an output can be created at `path`, before minutes are spent on its content.

    Parameters
    ----------
    path : path
        The file or folder that will be written. Its parent folder must exist.
    kind
        What will be written.

    Returns
    -------
    pathlib.Path
        `path`, with a leading ``~`` expanded.

    Raises
    ------
    OutputError
        If the parent is missing, is not a folder, or does not let a file be created; or if
        something has that name which is not an earlier output of this kind.
    """
    target = Path(path).expanduser()
    parent = target.parent
    if target.exists() and not (target.is_file() or target.is_dir()):
        raise OutputError(
            f"cannot write {target}",
            why="it is a device, a pipe or a socket, and outputs replace what has their name",
            todo="give the name of a file",
        )
    if not parent.exists():
        raise OutputError(
            f"cannot write {target}",
            why=f"the folder {parent} does not exist",
            todo=f"create it (mkdir -p {parent}) or choose another output",
        )
    check_replaceable(target, kind)
    try:
        # Creating a file is the only honest test: permission bits say nothing about a read-only
        # or special file system.
        with tempfile.TemporaryFile(dir=parent, prefix=TEMPORARY_PREFIX):
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
def write_file(path: str | os.PathLike[str], kind: OutputKind) -> Iterator[Path]:
    """Give a temporary path to write to; rename it to `path` if the block succeeds.

    Parameters
    ----------
    path : path
        The file to create, or to replace if it is of this kind.
    kind
        What is written.

    Yields
    ------
    pathlib.Path
        A path of the same suffix in the same folder, which does not exist yet.

    Raises
    ------
    OutputError
        As `check_writable` does.
    """
    target = check_writable(path, kind)
    with _refusing(target), workspace(target.parent) as folder:
        temporary = folder / target.name
        yield temporary
        temporary.chmod(_default_mode())
        store(temporary)
        os.replace(temporary, target)
        store(target.parent)


@contextmanager
def write_folder(path: str | os.PathLike[str], kind: OutputKind) -> Iterator[Path]:
    """Give an empty temporary folder to fill; rename it to `path` if the block succeeds.

    Parameters
    ----------
    path : path
        The folder to create, or to replace if it is of this kind.
    kind
        What is written.

    Yields
    ------
    pathlib.Path
        An empty folder beside `path`.

    Raises
    ------
    OutputError
        As `check_writable` does.
    """
    target = check_writable(path, kind)
    exists = target.exists()
    with _refusing(target), workspace(target.parent) as place:
        fresh = place / "new"
        fresh.mkdir()
        yield fresh
        for entry in fresh.rglob("*"):
            if entry.is_file():
                entry.chmod(_default_mode())  # safetensors makes files for their owner alone
            store(entry)
        store(fresh)
        _put_in_place(fresh, target, place / _ASIDE if exists else None)
        store(target.parent)


@contextmanager
def _refusing(target: Path) -> Iterator[None]:
    """A disk that is full or fails, on the way to an output, as an error of ours."""
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"cannot write {target}",
            why=str(error.strerror or error),
            todo="choose an output in a folder that you may write to, on a disk with space",
        ) from error


def _put_in_place(fresh: Path, target: Path, aside: Path | None) -> None:
    """Rename a folder; where there is one already (`aside` is given), both change places.

    They do so in one step, so that a reader finds one of them at any time. On file systems that
    cannot, the old one steps aside first, and comes back if the new one cannot be renamed.
    """
    if aside is None:
        os.rename(fresh, target)
    elif not _exchange(fresh, target):
        os.rename(target, aside)
        try:
            os.rename(fresh, target)
        except OSError:
            os.rename(aside, target)
            raise


def _exchange(a: Path, b: Path) -> bool:
    """Let two paths change places atomically; False where the system or file system cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    done = libc.renameat2(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), _RENAME_EXCHANGE)
    if done == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL):
        return False
    raise OSError(code, os.strerror(code))


def store(path: Path) -> None:
    """Have a file or the names in a folder written to disk, not only to the system's cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(path: str | os.PathLike[str]) -> Iterator[None]:
    """Let one process at a time into the block; the others wait.

    Parameters
    ----------
    path : path
        A file that is made for the lock and stays: who removed it would let two in. The lock ends
        with the process that holds it, however it ends.

    Raises
    ------
    OutputError
        If the file cannot be made.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise OutputError(f"cannot write {path}", why=str(error.strerror or error)) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def workspace(parent: Path) -> Iterator[Path]:
    """Make a temporary folder, locked while it is in use, and remove those that were left behind.

    A killed process leaves its folder, but no lock.

    Parameters
    ----------
    parent : pathlib.Path
        The folder that it is made in.

    Yields
    ------
    pathlib.Path
        The temporary folder, which is removed in the end.

    Raises
    ------
    OSError
        If it cannot be made.
    """
    sweep(parent)
    folder = Path(tempfile.mkdtemp(dir=parent, prefix=TEMPORARY_PREFIX))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        descriptor = os.open(folder, os.O_RDONLY)
        stack.callback(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield folder


def sweep(parent: Path) -> None:
    """Remove from a folder what killed processes left behind."""
    for entry in parent.glob(f"{TEMPORARY_PREFIX}*"):
        _sweep(entry)


def _sweep(folder: Path) -> None:
    """Remove a workspace that nobody uses, unless it holds the only copy of an output."""
    with suppress(OSError):
        found = folder.lstat()
        young = time.time() - found.st_mtime < _LEFT_BEHIND_SECONDS
        if young or found.st_uid != os.getuid() or (folder / _ASIDE).exists():
            return
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: it is in use
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)


def files_below(folder: Path) -> list[Path]:
    """Return the files in a folder and in those below it, linked ones too, in order; each once."""
    found, seen = [], set()
    for place, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        if real in seen:  # a link to a folder above it, or to one that was seen
            folders.clear()
            continue
        seen.add(real)
        found += [Path(place, name) for name in names]
    return sorted(file for file in found if file.is_file())


def files_sha256(files: Sequence[Path]) -> str:
    """Return the hash of the contents of files, one after the other; OSError as in reading."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()
