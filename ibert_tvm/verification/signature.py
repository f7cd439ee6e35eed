"""Signatures of artefacts with a key of the user's: who made this, not only whether it is whole.

A signature is a file: ``signature.json`` in a folder, which signs the SHA-256 of ``manifest.json``
(the manifest has the hashes of the other files), or ``model.so.sig`` beside a library, which signs
the SHA-256 of the whole file, its seal included. Keys are Ed25519 (RFC 8032) in PEM files, as
OpenSSL writes them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.errors import DocumentError, UsageError, VerificationError
from ..common.files import files_sha256, write_file
from ..common.integrity import MANIFEST, SIGNATURE
from ..common.schema import STRING, check, one_of
from ..common.strict_json import JsonDict, read_bytes, read_json
from ..model.artefact import is_artefact, read_document

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

FORMAT, VERSION = "ibert-signature", 1
_MAX_BYTES, _MAX_DEPTH = 2**16, 2
_SCHEMA = {
    "format": one_of(FORMAT),
    "version": one_of(VERSION),
    "key": STRING,
    "sha256": STRING,
    "signature": STRING,
}


def signature_file(path: Path) -> Path:
    """Where the signature of a folder or of a library lies."""
    return path / SIGNATURE if path.is_dir() else path.with_name(f"{path.name}.sig")


def sign(path: Path, key: Path) -> Path:
    """Sign an artefact.

    Parameters
    ----------
    path : pathlib.Path
        A ``NAME.ibert`` folder, a package, or a library; it is checked against its digests.
    key : pathlib.Path
        PEM file of a private key.

    Returns
    -------
    pathlib.Path
        The file of the signature.

    Raises
    ------
    UsageError
        If the key cannot be read, there is no artefact, or the signature cannot be written.
    IbertError
        If the artefact is not what it was when it was made.
    """
    private = _private_key(key)
    digest = _checked_digest(path)
    document = {
        "format": FORMAT,
        "version": VERSION,
        "key": key_name(private.public_key()),
        "sha256": digest,
        "signature": private.sign(_message(path, digest)).hex(),
    }
    file = signature_file(path)
    with write_file(file) as temporary:
        temporary.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return file


def check_signature(path: Path, key: Path) -> str:
    """Check that an artefact is signed, with this key, as it is.

    Parameters
    ----------
    path : pathlib.Path
        As for `sign`.
    key : pathlib.Path
        PEM file of the public key.

    Returns
    -------
    str
        Name of the key, see `key_name`.

    Raises
    ------
    VerificationError
        If it is not signed, by another key, or was changed since.
    UsageError
        If the key cannot be read, or there is no artefact.
    IbertError
        If the artefact is not what its own digests say.
    """
    public = _public_key(key)
    from cryptography.exceptions import InvalidSignature

    digest = _checked_digest(path)
    file = signature_file(path)
    if not file.exists():
        raise _refused(path, f"there is no signature at {file}")
    try:
        document: JsonDict = read_json(file, _MAX_BYTES, _MAX_DEPTH)
        check(document, _SCHEMA)
        signature = bytes.fromhex(document["signature"])
    except DocumentError as error:
        raise _refused(path, f"{file.name} cannot be read: {error.what}") from error
    except ValueError as error:
        raise _refused(path, f"{file.name} cannot be read: {error}") from error
    name = key_name(public)
    if document["key"] != name:
        raise _refused(path, f"{file.name} says that the key {document['key'][:16]!r} signed it")
    if document["sha256"] != digest:
        raise _refused(path, f"{file.name} is of another content: it was changed or made again")
    try:
        public.verify(signature, _message(path, digest))
    except InvalidSignature as error:
        raise _refused(path, "the signature was not made with this key") from error
    return name


def key_name(key: Ed25519PublicKey) -> str:
    """What a key is called in files and messages: the beginning of its SHA-256."""
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()[:16]


def _message(path: Path, digest: str) -> bytes:
    """What is signed: of a folder another text than of a file with the same content."""
    kind = "folder" if path.is_dir() else "library"
    return f"{FORMAT} {VERSION} {kind} {digest}".encode()


def _checked_digest(path: Path) -> str:
    """SHA-256 that stands for an artefact, which is what its own digests say."""
    from ibert_tvm.targets.bare_metal import is_package, read_package

    from ..runtime.library_file import read_metadata

    if path.is_file():
        read_metadata(path)
        return files_sha256([path])
    if path.is_dir() and is_package(path):
        read_package(path)
    elif path.is_dir() and is_artefact(path):
        read_document(path)
    else:
        raise UsageError(
            f"there is nothing to sign at {path}",
            todo="give a NAME.ibert folder, a library or a package for a microcontroller",
        )
    return files_sha256([path / MANIFEST])


def _refused(path: Path, why: str) -> VerificationError:
    return VerificationError(
        f"{path} is not signed with this key",
        why=why,
        todo="do not use it, unless you know who made it; `ibert sign` signs what you made",
    )


def _private_key(file: Path) -> Ed25519PrivateKey:
    serialization, ed25519 = _cryptography()

    def read(content: bytes) -> Any:
        return serialization.load_pem_private_key(content, password=None)

    key: Ed25519PrivateKey = _key(file, "private", read, ed25519.Ed25519PrivateKey)
    return key


def _public_key(file: Path) -> Ed25519PublicKey:
    serialization, ed25519 = _cryptography()
    read = serialization.load_pem_public_key
    key: Ed25519PublicKey = _key(file, "public", read, ed25519.Ed25519PublicKey)
    return key


def _key(file: Path, kind: str, read: Callable[[bytes], Any], wanted: type) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        key = read(read_bytes(file, _MAX_BYTES))
    except DocumentError as error:
        raise _bad_key(file, kind, error.what) from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _bad_key(file, kind, str(error).splitlines()[0]) from error
    if not isinstance(key, wanted):
        raise _bad_key(file, kind, "it is of another kind than Ed25519")
    return key


def _bad_key(file: Path, kind: str, why: str) -> UsageError:
    command = "genpkey -algorithm ed25519" if kind == "private" else "pkey -in KEY -pubout"
    return UsageError(
        f"cannot read the {kind} key {file}",
        why=why,
        todo=f"give an Ed25519 key as a PEM file without a passphrase: openssl {command} -out FILE",
    )


def _cryptography() -> tuple[Any, Any]:
    """Modules that read keys, and that have their classes."""
    if find_spec("cryptography") is None:
        raise UsageError(
            "signatures need the package cryptography",
            why="it is not installed",
            todo="install it with pip install 'ibert-tvm[sign]'",
        )
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519

    return serialization, ed25519
