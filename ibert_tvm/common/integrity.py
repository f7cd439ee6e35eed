"""Digests that go with what is written, so that a file that was changed is not taken for itself.

They find damage, not forgery: who writes a file can write its digest (`docs/security.md`). Like
`strict_json`, this module imports nothing that a folder of this project may not import.
"""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .errors import DocumentError
from .files import files_sha256
from .schema import STRING, check, integer, one_of
from .strict_json import read_json

MANIFEST = "manifest.json"
SIGNATURE = "signature.json"
"""Of the manifest's hash, see `ibert_tvm.verification.signature`; the manifest does not list it."""
_SEAL = "sha256"
_MAX_MANIFEST_BYTES = 2**20
_MAX_DEPTH = 4
_MAX_FILE_BYTES = 16 * 2**30
_SCHEMA = {
    "format": one_of("ibert-manifest"),
    "version": one_of(1),
    "files": {"*": {"sha256": STRING, "bytes": integer(0, _MAX_FILE_BYTES)}},
}


def write_manifest(folder: Path) -> None:
    """Write `MANIFEST` with the size and hash of every other file of a folder.

    Parameters
    ----------
    folder : pathlib.Path
        Complete but for the manifest, which is replaced.

    Raises
    ------
    OSError
        If it cannot be read or written.
    """
    names = (file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
    files = {
        name: {"sha256": files_sha256([folder / name]), "bytes": (folder / name).stat().st_size}
        for name in sorted(names)
        if name not in (MANIFEST, SIGNATURE)
    }
    document = {"format": "ibert-manifest", "version": 1, "files": files}
    (folder / MANIFEST).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def lists_all(folder: Path, made: tuple[str, ...] = ()) -> bool:
    """Whether a manifest lists every file of its folder, so that no other is lost with it.

    Parameters
    ----------
    folder : pathlib.Path
        It may have no manifest.
    made
        How names end of files that are made from those that are listed, and need not be.
    """
    try:
        listed = read_json(folder / MANIFEST, _MAX_MANIFEST_BYTES, _MAX_DEPTH)
        check(listed, _SCHEMA)
    except DocumentError:
        return False
    files = (file for file in folder.rglob("*") if not (file.is_dir() or file.name.endswith(made)))
    known = {MANIFEST, SIGNATURE, *listed["files"]}
    return all(file.relative_to(folder).as_posix() in known for file in files)


def check_manifest(folder: Path, refuse: Callable[[Path, str], Exception]) -> tuple[str, ...]:
    """Check that the files of a folder are those that its manifest lists.

    Files that it does not list are left to the caller, who must not read them.

    Parameters
    ----------
    folder : pathlib.Path
        With a manifest.
    refuse
        Makes the error of a file from its path and what is wrong with it.

    Returns
    -------
    tuple of str
        What it lists.
    """
    file = folder / MANIFEST
    try:
        document = read_json(file, _MAX_MANIFEST_BYTES, _MAX_DEPTH)
        check(document, _SCHEMA)
    except DocumentError as error:
        raise refuse(file, "; ".join(filter(None, (error.where, error.what, error.why)))) from None
    for name, stated in document["files"].items():
        parts = name.split("/")
        if not all(part.strip(".") and "\0" not in part for part in parts):
            raise refuse(file, f"{name!r} is no name of a file in the folder")
        places = [folder.joinpath(*parts[: count + 1]) for count in range(len(parts))]
        try:
            modes = [place.lstat().st_mode for place in places]
            if not stat.S_ISREG(modes[-1]) or not all(map(stat.S_ISDIR, modes[:-1])):
                raise refuse(places[-1], "it is no file of its own, but a link or a device")
            size = places[-1].stat().st_size
            if size != stated["bytes"]:
                raise refuse(places[-1], f"it has {size} bytes; {MANIFEST} says {stated['bytes']}")
            if files_sha256(places[-1:]) != stated["sha256"]:
                raise refuse(
                    places[-1], f"its SHA-256 is not the one in {MANIFEST}: it was changed"
                )
        except FileNotFoundError:
            raise refuse(places[-1], f"it is missing, and {MANIFEST} lists it") from None
        except OSError as error:
            raise refuse(places[-1], str(error.strerror or error)) from error
    return tuple(document["files"])


def sealed(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON-able document with the hash of the rest of it as one more key."""
    rest = {key: value for key, value in document.items() if key != _SEAL}
    text = json.dumps(rest, sort_keys=True, allow_nan=False)
    return {**rest, _SEAL: hashlib.sha256(text.encode()).hexdigest()}


def check_sealed(document: Mapping[str, Any]) -> None:
    """Refuse a document that `sealed` did not return; DocumentError."""
    if _SEAL not in document:
        raise DocumentError(f"the key {_SEAL!r} is missing")
    if sealed(document)[_SEAL] != document[_SEAL]:
        raise DocumentError(f"its {_SEAL} is not that of its content: it was changed")
