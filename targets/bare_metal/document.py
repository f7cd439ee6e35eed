"""What a package says about itself, read without running or linking any of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ibert_tvm.common.errors import DocumentError, LibraryError
from ibert_tvm.common.files import OutputKind
from ibert_tvm.common.integrity import check_manifest, lists_all
from ibert_tvm.common.schema import STRING, check
from ibert_tvm.common.strict_json import read_json

FORMAT = 1
KIND = "ibert bare-metal package"
DOCUMENT = "ibert_model.json"
_MAX_BYTES, _MAX_DEPTH = 64 * 2**20, 16


def is_package(folder: Path) -> bool:
    """Whether a folder is a package of any version."""
    try:
        return _read(folder).get("kind") == KIND
    except DocumentError:
        return False


PACKAGE = OutputKind(
    "a package that `ibert compile` wrote, with nothing added",
    lambda folder: is_package(folder) and lists_all(folder, made=(".o", ".a")),
    folder=True,
)


def read_package(folder: Path) -> dict[str, Any]:
    """Content of a package's ``ibert_model.json``, once every file is what it was when written.

    Raises
    ------
    LibraryError
        If a file of the package is missing or was changed, or the document cannot be read.
    """

    def damaged(file: Path, why: str) -> LibraryError:
        return LibraryError(
            f"the package {folder} is damaged",
            where=file.name,
            why=why,
            todo="copy the whole folder again, or make it again with `ibert compile`",
        )

    check_manifest(folder, damaged)
    try:
        return _read(folder)
    except DocumentError as error:
        raise damaged(folder / DOCUMENT, error.what) from error


def _read(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = read_json(folder / DOCUMENT, _MAX_BYTES, _MAX_DEPTH)
    check(document, {"kind": STRING})
    return document
