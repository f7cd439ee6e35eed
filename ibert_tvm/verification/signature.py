"""Signatures of artefacts with a key of the user's: who made this, not only whether it is whole.

The form is that of OpenSSF Model Signing 1.0 with a local key, which the package model-signing
writes and checks, too: a Sigstore bundle (v0.3) whose DSSE envelope holds an in-toto statement with
the SHA-256 of every file. It lies in a folder as ``signature.json``, beside a library as
``model.so.sig``. Keys are of the elliptic curves P-256, P-384 and P-521, in PEM files.

https://github.com/ossf/model-signing-spec, https://github.com/secure-systems-lab/dsse
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from ..common.errors import DocumentError, UsageError, VerificationError
from ..common.extras import require
from ..common.files import files_sha256, marked, write_file
from ..common.integrity import MANIFEST, SIGNATURE
from ..common.schema import STRING, check, one_of
from ..common.strict_json import JsonDict, decode, parse, read_bytes, read_json
from ..model.artefact import read_document

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec

_MAX_BYTES, _MAX_DEPTH = 2**20, 8
_PAYLOAD_TYPE = "application/vnd.in-toto+json"
_BUNDLE_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
_PREDICATE_TYPE = "https://model_signing/signature/v1.0"
_BUNDLE = {
    "mediaType": one_of(_BUNDLE_TYPE),
    "verificationMaterial": {"publicKey": {"hint?": STRING}},
    "dsseEnvelope": {
        "payload": STRING,
        "payloadType": one_of(_PAYLOAD_TYPE),
        "signatures": [{"sig": STRING}],
    },
}
_RESOURCE = {"name": STRING, "algorithm": one_of("sha256"), "digest": STRING}
_STATEMENT = {
    "_type": one_of(_STATEMENT_TYPE),
    "predicateType": one_of(_PREDICATE_TYPE),
    "predicate": {
        "serialization": {
            "method": one_of("files"),
            "hash_type": one_of("sha256"),
            "ignore_paths?": [STRING],
        },
        "resources": [_RESOURCE],
    },
}
_FORMER = "ibert-signature"
_SIGNED = marked("a signature", _BUNDLE_TYPE.encode(), _FORMER.encode())
_UNSIGNED = (SIGNATURE, ".git", ".gitattributes", ".github", ".gitignore")
"""Of a folder: what model-signing leaves out by default, too."""
_WHOLE = "."
"""What the form calls the file where that is all there is."""
_HASHES = {"secp256r1": "SHA256", "secp384r1": "SHA384", "secp521r1": "SHA512"}
"""By the curve of a key, as Sigstore has them."""


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
    VerificationError
        If a folder holds a link or a device.
    IbertError
        If the artefact is not what it was when it was made.
    """
    private: ec.EllipticCurvePrivateKey = _key(key, "private")
    _check_digests(path)
    digests = _file_digests(path, _UNSIGNED)
    root = hashlib.sha256(b"".join(map(bytes.fromhex, digests.values()))).hexdigest()
    statement = {
        "_type": _STATEMENT_TYPE,
        "subject": [{"name": path.resolve().name, "digest": {"sha256": root}}],
        "predicateType": _PREDICATE_TYPE,
        "predicate": {
            "serialization": {
                "method": "files",
                "hash_type": "sha256",
                "allow_symlinks": False,
                "ignore_paths": _UNSIGNED,
            },
            "resources": [
                {"name": name, "algorithm": "sha256", "digest": digest}
                for name, digest in digests.items()
            ],
        },
    }
    payload = json.dumps(statement).encode()
    signature = private.sign(_message(payload), _algorithm(private))
    bundle = {
        "mediaType": _BUNDLE_TYPE,
        "verificationMaterial": {
            "publicKey": {"hint": _hint(private.public_key())},
            "tlogEntries": [],
        },
        "dsseEnvelope": {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": _PAYLOAD_TYPE,
            "signatures": [{"sig": base64.b64encode(signature).decode(), "keyid": ""}],
        },
    }
    file = signature_file(path)
    with write_file(file, _SIGNED) as temporary:
        temporary.write_text(json.dumps(bundle) + "\n", encoding="utf-8")
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
    public: ec.EllipticCurvePublicKey = _key(key, "public")
    _check_digests(path)
    file = signature_file(path)
    if not file.exists():
        raise _refused(path, f"there is no signature at {file}")
    try:
        predicate = _signed_predicate(path, file, public)
    except DocumentError as error:
        why = " ".join(filter(None, (error.where, error.what)))
        raise _refused(path, f"{file.name} cannot be read: {why}") from error
    except ValueError as error:
        raise _refused(path, f"{file.name} cannot be read: {error}") from error
    signed = {item["name"]: item["digest"] for item in predicate["resources"]}
    ignored = predicate["serialization"].get("ignore_paths", [])
    found = _file_digests(path, {SIGNATURE, *ignored})
    differing = sorted(dict(signed.items() ^ found.items()))
    # The manifest has the digests of all that is ever read of a folder.
    if differing or (path.is_dir() and MANIFEST not in signed):
        names = ", ".join(differing[:5]) if path.is_dir() and differing else "all of it"
        raise _refused(
            path, f"{file.name} is of another content: it was changed or made again ({names})"
        )
    return key_name(public)


def _signed_predicate(path: Path, file: Path, public: ec.EllipticCurvePublicKey) -> JsonDict:
    """What a bundle says of an artefact's files, if `public` signed it.

    Raises
    ------
    VerificationError
        If it did not, or the signature is of the form of earlier versions.
    DocumentError, ValueError
        If the bundle is none.
    """
    from cryptography.exceptions import InvalidSignature

    bundle = read_json(file, _MAX_BYTES, _MAX_DEPTH)
    if isinstance(bundle, dict) and bundle.get("format") == _FORMER:
        raise VerificationError(
            f"{path} has a signature that is no longer read",
            why=f"{file.name} was made with an Ed25519 key, by an earlier version of ibert_tvm",
            todo="let who made it sign it again with `ibert sign` and a key of the curve P-256",
        )
    check(bundle, _BUNDLE)
    hint = bundle["verificationMaterial"]["publicKey"].get("hint", _hint(public))
    if hint != _hint(public):
        raise _refused(path, f"{file.name} says that the key {hint[:16]!r} signed it")
    envelope = bundle["dsseEnvelope"]
    signatures = [base64.b64decode(one["sig"], validate=True) for one in envelope["signatures"]]
    payload = base64.b64decode(envelope["payload"], validate=True)
    if len(signatures) != 1:
        raise DocumentError(f"it has {len(signatures)} signatures; one is needed")
    try:
        public.verify(signatures[0], _message(payload), _algorithm(public))
    except InvalidSignature as error:
        raise _refused(path, "the signature was not made with this key") from error
    statement = parse(decode(payload), _MAX_DEPTH)
    check(statement, _STATEMENT)
    return statement["predicate"]


def key_name(key: ec.EllipticCurvePublicKey) -> str:
    """What a key is called in messages: the beginning of the SHA-256 of its PEM file."""
    return _hint(key)[:16]


def _hint(key: ec.EllipticCurvePublicKey) -> str:
    serialization, _ = _cryptography()
    pem: bytes = key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return hashlib.sha256(pem).hexdigest()


def _message(payload: bytes) -> bytes:
    """What is signed of a payload: DSSE's pre-authentication encoding."""
    return f"DSSEv1 {len(_PAYLOAD_TYPE)} {_PAYLOAD_TYPE} {len(payload)} ".encode() + payload


def _algorithm(key: ec.EllipticCurvePublicKey | ec.EllipticCurvePrivateKey) -> ec.ECDSA:
    from cryptography.hazmat.primitives import hashes

    _, curves = _cryptography()
    return curves.ECDSA(getattr(hashes, _HASHES[key.curve.name])())


def _check_digests(path: Path) -> None:
    """Check an artefact against its own digests."""
    from ibert_tvm.targets.bare_metal import is_package, read_package

    from ..runtime.library_file import read_metadata

    if path.is_file():
        read_metadata(path)
    elif path.is_dir() and is_package(path):
        read_package(path)
    elif (path / MANIFEST).is_file():
        read_document(path)
    else:
        raise UsageError(
            f"there is nothing to sign at {path}",
            todo="give a NAME.ibert folder, a library or a package for a microcontroller",
        )


def _file_digests(path: Path, unsigned: Iterable[str]) -> dict[str, str]:
    """SHA-256 of all files but some, by their names in the form, in its order."""
    if path.is_file():
        return {_WHOLE: files_sha256([path])}
    files = {}
    for file in path.rglob("*"):
        place = PurePosixPath(file.relative_to(path).as_posix())
        if any(place.is_relative_to(name) for name in unsigned):
            continue
        if file.is_symlink() or not (file.is_file() or file.is_dir()):
            raise VerificationError(
                f"{path} cannot be signed",
                where=str(place),
                why="it is no file of its own, but a link or a device",
                todo="remove it, or put a copy of the file in its place",
            )
        if file.is_file():
            files[place] = files_sha256([file])
    return {str(place): files[place] for place in sorted(files)}


def _refused(path: Path, why: str) -> VerificationError:
    return VerificationError(
        f"{path} is not signed with this key",
        why=why,
        todo="do not use it, unless you know who made it; `ibert sign` signs what you made",
    )


def _key(file: Path, kind: str) -> Any:
    """A ``private`` or ``public`` key from its PEM file."""
    serialization, curves = _cryptography()
    from cryptography.exceptions import UnsupportedAlgorithm

    read, wanted, command = {
        "private": (
            partial(serialization.load_pem_private_key, password=None),
            curves.EllipticCurvePrivateKey,
            "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256",
        ),
        "public": (
            serialization.load_pem_public_key,
            curves.EllipticCurvePublicKey,
            "pkey -in KEY -pubout",
        ),
    }[kind]
    try:
        key = read(read_bytes(file, _MAX_BYTES))
        if isinstance(key, wanted) and key.curve.name in _HASHES:
            return key
        why = f"it is of another kind than {', '.join(_HASHES)}"
    except DocumentError as error:
        why = error.what
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        why = (str(error) or "it is no key").splitlines()[0]
    raise UsageError(
        f"cannot read the {kind} key {file}",
        why=why,
        todo=f"give a P-256 key as a PEM file without a passphrase: openssl {command} -out FILE",
    )


def _cryptography() -> tuple[Any, Any]:
    """Modules that read keys, and that have their classes."""
    require("cryptography", to="a signature")
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    return serialization, ec
