"""What a package says about itself, read without running or linking any of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ibert_tvm.common.errors import DocumentError, LibraryError
from ibert_tvm.common.files import OutputKind
from ibert_tvm.common.integrity import MANIFEST, check_manifest, lists_all
from ibert_tvm.common.schema import FLAG, NUMBER, OBJECT, STRING, check, integer, one_of
from ibert_tvm.common.strict_json import read_json

from .options import BUILD_SYSTEMS, EXTERNAL, FORMS, OBJECTS, WASM

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
    "emit": one_of(*FORMS, WASM),
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
    "text?": {"pairs?": FLAG},
    "external?": one_of(*EXTERNAL),
    "external_bytes?": _SIZE,
    "fetch?": {"largest": _SIZE, "buffer?": _COUNT},
    "build_systems?": [one_of(*BUILD_SYSTEMS)],
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


class FileNames:
    """Names of a package's files, which a program with several packages may have side by side.

    Parameters
    ----------
    prefix
        What C names of the model begin with.

    Attributes
    ----------
    prefix
        As given.
    library
        The static library, ``-l`` and `model` for a linker.
    header
        The C interface.
    driver
        The source that calls the kernels.
    kernels
        The kernels as C.
    memory
        Memory functions.
    weights, assembled_weights
        The weights: C arrays, or assembly that includes a file.
    external_weights
        Those that the program gives an address for, or fetches.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.library = f"lib{prefix}_model.a"
        self.header = f"{prefix}_model.h"
        self.driver = f"{prefix}_model.c"
        self.kernels = f"{prefix}_kernels.c"
        self.memory = f"{prefix}_memory.c"
        self.weights, self.assembled_weights = f"{prefix}_weights.c", f"{prefix}_weights.S"
        self.external_weights = f"{prefix}_weights.bin"


def package_files(folder: Path) -> tuple[str, ...]:
    """Names of a package's files, each as it was when it was written; a `LibraryError` if not."""
    return check_manifest(folder, _damaged(folder))


def read_package(folder: Path) -> dict[str, Any]:
    """Content of a package's ``ibert_model.json``, once every file is what it was when written.

    Raises
    ------
    LibraryError
        If a file of the package is missing or was changed, or the document cannot be read.
    """
    files = package_files(folder)
    try:
        document = _read(folder)
        check(document, _SCHEMA)
    except DocumentError as error:
        why = ": ".join(filter(None, (error.where, error.what)))
        raise _damaged(folder)(folder / DOCUMENT, why) from error
    names = FileNames(document["prefix"])
    code = names.library if document["emit"] == OBJECTS else names.driver
    needed = (names.header, code) if document["emit"] != WASM else ("model.js", "model.wasm")
    for name in needed:
        if name not in files:
            raise _damaged(folder)(folder / name, f"{MANIFEST} does not list it")
    return document


def _damaged(folder: Path) -> Callable[[Path, str], LibraryError]:
    def damaged(file: Path, why: str) -> LibraryError:
        return LibraryError(
            f"the package {folder} is damaged",
            where=file.name,
            why=why,
            todo="copy the whole folder again, or make it again with `ibert compile`",
        )

    return damaged


def _read(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = read_json(folder / DOCUMENT, _MAX_BYTES, _MAX_DEPTH)
    check(document, {"kind": STRING})
    return document
