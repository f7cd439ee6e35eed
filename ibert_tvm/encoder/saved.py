"""Encoders as folders, which `Encoder.save_pretrained` writes: for the hub, and for other machines.

Such a folder holds a library, the settings of the encoder, a manifest with the digests of all that
is read, and a model card. A NAME.ibert folder in it is what machines compile that cannot run the
library; it holds no code, so it is used without trust in who made the folder.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..common.errors import DocumentError, LibraryError, ModelError, TargetError, UsageError
from ..common.files import OutputKind, files_sha256, write_folder
from ..common.integrity import MANIFEST, check_manifest, lists_all, write_manifest
from ..common.schema import STRING, check, either, integer, one_of
from ..common.strict_json import JsonDict, read_json
from ..runtime import Library, load_library
from .prepared import cache_folder

SETTINGS = "encoder.json"
LIBRARY, MODEL, CARD = "model.so", "model.ibert", "README.md"
_ADDED = (".md", ".verify.json", ".verify.txt", ".sig", ".gitattributes")
"""How names end of what may be added or edited: none of it is read to run the encoder."""
_MAX_BYTES, _MAX_DEPTH = 2**20, 4
_SIZE = integer(1, 2**31 - 1)
_NONE = one_of(None)
_SCHEMA = {
    "format": one_of("ibert-encoder"),
    "version": one_of(1),
    "max_seq_length": _SIZE,
    "prompts": {"*": STRING},
    "default_prompt_name": either(STRING, _NONE),
    "similarity_fn_name": either(STRING, _NONE),
    "truncate_dim": either(_SIZE, _NONE),
}


class SavedEncoderError(ModelError):
    """A folder that should hold a saved encoder does not, or not as it was saved."""


@dataclass(frozen=True)
class Settings:
    """What callers can set of an encoder; see its attributes."""

    max_seq_length: int
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    similarity_fn_name: str | None = None
    truncate_dim: int | None = None


def is_saved(folder: Path) -> bool:
    """Whether a folder holds a saved encoder."""
    return (folder / SETTINGS).is_file()


SAVED = OutputKind(
    "a saved encoder, with nothing added but its card and proofs",
    lambda folder: is_saved(folder) and lists_all(folder, made=_ADDED),
    folder=True,
)


def write_saved(
    path: str | os.PathLike[str],
    library: Path,
    settings: Settings,
    model: Path | None,
    certificate: Path | None,
    card: str | None,
) -> Path:
    """Write the folder of an encoder.

    Parameters
    ----------
    path
        The folder; one that was saved before is replaced.
    library, settings
        The encoder.
    model
        The NAME.ibert folder that the library was compiled from, to go with it.
    certificate
        What `ibert verify` wrote of the library, to go with it.
    card
        The text of its ``README.md``, which may be edited later.

    Raises
    ------
    OutputError
        If something else is there, or the folder cannot be written.
    """
    document = {"format": "ibert-encoder", "version": 1, **asdict(settings)}
    with write_folder(path, SAVED) as folder:
        shutil.copyfile(library, folder / LIBRARY)
        (folder / SETTINGS).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        if model is not None:
            shutil.copytree(model, folder / MODEL)
        write_manifest(folder)
        if certificate is not None:
            from ..verification.certificate import certificate_place

            shutil.copyfile(certificate, certificate_place(folder / LIBRARY))
        if card is not None:
            (folder / CARD).write_text(card, encoding="utf-8")
    return Path(path).expanduser()


def _read(folder: Path) -> tuple[Settings, tuple[str, ...]]:
    """Check the digests of a saved encoder; return its settings and the files that they cover."""

    def refuse(file: Path, why: str) -> SavedEncoderError:
        return SavedEncoderError(
            f"{folder} is not the encoder that was saved",
            where=str(file),
            why=why,
            todo="copy or download the folder again",
        )

    listed = check_manifest(folder, refuse)
    for name in (SETTINGS, LIBRARY):
        if name not in listed:
            raise refuse(folder / name, f"{MANIFEST} does not list it")
    try:
        document = read_json(folder / SETTINGS, _MAX_BYTES, _MAX_DEPTH)
        check(document, _SCHEMA)
    except DocumentError as error:
        raise refuse(folder / SETTINGS, f"{error.where} {error.what}".strip()) from error
    return Settings(**{one.name: document[one.name] for one in fields(Settings)}), listed


def _plain_copy(snapshot: Path) -> Path:
    """Copy a saved encoder out of the hub's cache, whose files are links, once; return the copy."""
    try:
        copy = cache_folder() / f"encoder-{files_sha256([snapshot / MANIFEST])[:32]}"
        if not is_saved(copy):
            with write_folder(copy, SAVED) as folder:
                shutil.copytree(snapshot, folder, dirs_exist_ok=True)
    except (OSError, shutil.Error) as error:
        raise SavedEncoderError(
            f"cannot read the encoder {snapshot}", why=str(error), todo="download it again"
        ) from error
    return copy


def open_saved(
    folder: Path, trusted: bool, target: str, options: Mapping[str, Any]
) -> tuple[Library, Settings]:
    """Load the library of a saved encoder, or one that is compiled of the model beside it.

    Parameters
    ----------
    folder
        What `write_saved` wrote, or a snapshot of it in the hub's cache.
    trusted
        Whether code of the folder may run.
    target
        What is compiled for, where the library is for another processor or not trusted.
    options
        Of `load_library`.

    Raises
    ------
    SavedEncoderError
        If a file is missing or was changed.
    UsageError
        If it is not trusted, and there is no model.
    TargetError
        If it is for another processor, and there is no model.
    """
    given = folder
    if (folder / SETTINGS).is_symlink():
        folder = _plain_copy(folder)
    settings, listed = _read(folder)
    has_model = any(name.startswith(f"{MODEL}/") for name in listed)
    if not trusted and not has_model:
        raise UsageError(
            "the encoder comes from the hub, and holds machine code alone",
            where=str(given / LIBRARY),
            why="a library is code, which whoever uploaded it could choose",
            todo="if you trust them, say so: Encoder(NAME, trust_remote_code=True)",
        )
    if trusted:
        try:
            return load_library(folder / LIBRARY, **options), settings
        except TargetError:
            if not has_model:
                raise
    from .prepared import Options, prepared_library  # brings the compiler along

    made = prepared_library(folder / MODEL, Options(target, None, settings.max_seq_length))
    return load_library(made, **options), settings


def check_companions(
    library: Library, model: Path | None, certificate: Path | None
) -> JsonDict | None:
    """Refuse what does not belong to a library; return what the certificate says, if there is one.

    Parameters
    ----------
    library
        What is saved.
    model, certificate
        As of `write_saved`.

    Raises
    ------
    UsageError
        If it was not compiled from the model, or the certificate is another file's.
    IbertError
        As `QuantizedModel.load` and `read_certificate` raise.
    """
    metadata = library.metadata
    if model is not None:
        from ..model.artefact import QuantizedModel

        if QuantizedModel.load(model).info.source_sha256 != metadata.source_sha256:
            raise UsageError(
                f"{model} is not the model that the library was compiled from",
                where=str(metadata.path),
                why="they have different sources",
                todo="give the NAME.ibert folder that it was compiled from",
            )
    if certificate is None:
        return None
    from ..verification.certificate import read_certificate

    document = read_certificate(certificate)
    if document["artefact_sha256"] != files_sha256([metadata.path]):
        raise LibraryError(
            f"{certificate} is not the certificate of the library",
            where=str(metadata.path),
            why="it is bound to another file by its SHA-256",
            todo="write it again with `ibert verify`",
        )
    return document
