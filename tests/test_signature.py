"""Signatures: of what was signed, by whom, and never by silence."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from ibert_tvm.common.errors import ArtefactError, LibraryError, UsageError, VerificationError
from ibert_tvm.common.integrity import write_manifest
from ibert_tvm.model.artefact import QuantizedModel
from ibert_tvm.verification.signature import check_signature, sign, signature_file
from tests.artefact.conftest import make_quantized
from tests.runtime.conftest import TinyModel
from tests.snapshots import Messages

_PEM = serialization.Encoding.PEM


def _keys(folder: Path, name: str, key: object = None) -> tuple[Path, Path]:
    """Files of a private key and of its public one."""
    private = key or ed25519.Ed25519PrivateKey.generate()
    files = folder / f"{name}.pem", folder / f"{name}.pub"
    files[0].write_bytes(
        private.private_bytes(  # type: ignore[attr-defined]
            _PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    files[1].write_bytes(
        private.public_key().public_bytes(  # type: ignore[attr-defined]
            _PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return files


def _folder(place: Path) -> Path:
    return make_quantized().save(place / "tiny.ibert")


def _library(place: Path) -> Path:
    return TinyModel(shapes=((1, 8),)).build(place / "model.so")


def _package(place: Path) -> Path:
    """What is read of one: a document, and a manifest."""
    folder = place / "package"
    folder.mkdir()
    (folder / "ibert_model.json").write_text('{"kind": "ibert bare-metal package"}')
    (folder / "code.a").write_bytes(b"code")
    write_manifest(folder)
    return folder


MAKERS = (_folder, _library, _package)


@pytest.mark.parametrize("make", MAKERS)
def test_what_was_signed_passes_with_its_key_alone(
    tmp_path: Path, make: Callable[[Path], Path], messages: Messages
) -> None:
    private, public = _keys(tmp_path, "mine")
    _, other = _keys(tmp_path, "other")
    path = make(tmp_path)
    with messages.raises(VerificationError):
        check_signature(path, public)
    assert sign(path, private) == signature_file(path)
    assert len(check_signature(path, public)) == 16
    with messages.raises(VerificationError, key=re.compile(r"(?<=key ')\w+")):
        check_signature(path, other)


@pytest.mark.parametrize("make", MAKERS)
def test_a_signature_of_another_content(
    tmp_path: Path, make: Callable[[Path], Path], messages: Messages
) -> None:
    private, public = _keys(tmp_path, "mine")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = make(tmp_path / "a"), make(tmp_path / "b")
    if second.is_file():
        second = TinyModel(shapes=((1, 9),)).build(second)
    else:
        (second / "quantization.json").write_text("{}")
        write_manifest(second)
    if make is _folder:
        from dataclasses import replace

        model = make_quantized()
        replace(model, quantization={**model.quantization, "preset": "paper"}).save(second)
    sign(first, private)
    signature_file(second).write_bytes(signature_file(first).read_bytes())
    with messages.raises(VerificationError):
        check_signature(second, public)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("signature", "00" * 64),
        ("signature", "zz"),
        ("signature", 3),
        ("version", 2),
    ],
)
def test_a_forged_signature(tmp_path: Path, field: str, value: object, messages: Messages) -> None:
    private, public = _keys(tmp_path, "mine")
    file = sign(_folder(tmp_path), private)
    file.write_text(json.dumps({**json.loads(file.read_text()), field: value}))
    with messages.raises(VerificationError):
        check_signature(file.parent, public)


def test_what_is_damaged_is_neither_signed_nor_accepted(tmp_path: Path) -> None:
    private, public = _keys(tmp_path, "mine")
    folder, library = _folder(tmp_path), _library(tmp_path)
    for path in (folder, library):
        sign(path, private)
    content = bytearray(library.read_bytes())
    content[5000] ^= 1
    library.write_bytes(content)
    (folder / "model.json").write_text((folder / "model.json").read_text() + " ")
    for act in (lambda p: sign(p, private), lambda p: check_signature(p, public)):
        with pytest.raises(LibraryError):
            act(library)
        with pytest.raises(ArtefactError):
            act(folder)


def test_a_signed_folder_is_read_and_replaced_as_one_that_is_not(tmp_path: Path) -> None:
    private, _ = _keys(tmp_path, "mine")
    folder = _folder(tmp_path)
    sign(folder, private)
    assert QuantizedModel.load(folder).preset == "accurate"
    make_quantized().save(folder)
    assert not signature_file(folder).exists()


def test_keys_that_cannot_be_used(tmp_path: Path, messages: Messages) -> None:
    folder = _folder(tmp_path)
    private, public = _keys(tmp_path, "curve", ec.generate_private_key(ec.SECP256R1()))
    with messages.raises(UsageError):
        sign(folder, private)
    with messages.raises(UsageError):
        check_signature(folder, public)
    (tmp_path / "empty").write_bytes(b"")
    for file in (tmp_path / "empty", tmp_path / "none", tmp_path):
        with messages.raises(UsageError, pem=re.compile("Unable to load PEM file.*")):
            sign(folder, file)
    mine, _ = _keys(tmp_path, "mine")
    with messages.raises(UsageError):
        sign(tmp_path, mine)


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ibert_tvm.cli import main

    private, public = _keys(tmp_path, "mine")
    folder = _folder(tmp_path)
    report = str(tmp_path / "verify.json")
    verify = ["verify", str(folder), "--inputs", "1", "-o", report, "--key", str(public)]
    assert main(verify) == 5
    assert capsys.readouterr().err.startswith(f"error: {folder} is not signed with this key\n")
    assert main(["sign", str(folder), "--key", str(private)]) == 0
    assert capsys.readouterr().out == f"wrote {folder / 'signature.json'}\n"
    assert main(verify) == 0
    assert "signature: passed (key " in capsys.readouterr().out
