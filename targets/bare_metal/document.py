"""What a package says about itself, read without running or linking any of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ibert_tvm.common.errors import DocumentError, LibraryError
from ibert_tvm.common.files import OutputKind
from ibert_tvm.common.integrity import check_manifest, lists_all
from ibert_tvm.common.schema import NUMBER, OBJECT, STRING, check, integer, one_of
from ibert_tvm.common.strict_json import read_json

from .options import FORMS

FORMAT = 1
KIND = "ibert bare-metal package"
DOCUMENT = "ibert_model.json"
_MAX_BYTES, _MAX_DEPTH = 64 * 2**20, 16
_NAME = (
    lambda value: isinstance(value, str) and re.fullmatch(r"[A-Za-z_]\w*", value, re.ASCII),
    "a name in C",
)
_SIZE, _COUNT = integer(0, 2**48), integer(1, 2**31 - 1)
_SCHEMA = {
    "kind": one_of(KIND),
    "prefix": _NAME,
    "emit": one_of(*FORMS),
    "target": {"name": STRING},
    "functions": [
        {
            "symbol": _NAME,
            "batch": _COUNT,
            "seq_len": _COUNT,
            "kernels": [{"symbol": _NAME, "layer": STRING}],
        }
    ],
    "inputs": [{"name": STRING}],
    "outputs": [{"name": STRING, "scale": NUMBER}],
    "info": OBJECT,
    "source_sha256": STRING,
    "memory": {
        "flash": {"total": _SIZE, "weights": _SIZE, "code": _SIZE, "constants": _SIZE},
        "ram": {"total": _SIZE, "arena": _SIZE, "stack": _SIZE, "peak": {"layer": STRING}},
    },
    "verified": {"instructions": _SIZE},
}
"""What is read of a package; `ibert_tvm.runtime.package_engine` reads more of one that runs."""


def is_package(folder: Path) -> bool:
    """Whether a folder is a package of any version."""
    try:
        return bool(_read(folder)["kind"] == KIND)
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
        document = _read(folder)
        check(document, _SCHEMA)
        return document
    except DocumentError as error:
        why = ": ".join(filter(None, (error.where, error.what)))
        raise damaged(folder / DOCUMENT, why) from error


def _read(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = read_json(folder / DOCUMENT, _MAX_BYTES, _MAX_DEPTH)
    check(document, {"kind": STRING})
    return document
