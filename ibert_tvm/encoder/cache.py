"""Where an encoder keeps what it made or copied."""

from __future__ import annotations

import os
from pathlib import Path

from ..common.errors import UsageError


def cache_folder() -> Path:
    """Folder of the libraries that were made, which is made if it is not there.

    Raises
    ------
    UsageError
        If others may write to it: a library is code.
    """
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The specification has relative paths be ignored.
    folder = (given if given.is_absolute() else Path.home() / ".cache") / "ibert_tvm"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            "there is no folder to keep compiled models in",
            where=str(folder),
            why=error.strerror or str(error),
            todo="let XDG_CACHE_HOME name a folder that you may write to, or compile the model "
            "with `ibert compile` and give the library",
        ) from error
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise UsageError(
            "compiled models are not taken from a folder that others can write to",
            where=str(folder),
            why="a library is code, which whoever put it there could choose",
            todo=f"run chmod go-w {folder}, or let XDG_CACHE_HOME name another folder",
        )
    return folder
