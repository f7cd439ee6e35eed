"""Signatures: of what was signed, by whom, and never by silence."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from ibert_tvm.common.errors import ArtefactError, LibraryError, UsageError, VerificationError
from ibert_tvm.common.integrity import write_manifest
from ibert_tvm.model.artefact import QuantizedModel
from ibert_tvm.verification.signature import check_signature, sign, signature_file
from tests.artefact.conftest import make_quantized
from tests.extras import needs
from tests.runtime.conftest import TinyModel
from tests.small_package import small_package
from tests.snapshots import Messages

_PEM = serialization.Encoding.PEM


def write_keys(folder: Path, name: str, key: object = None) -> tuple[Path, Path]:
    """Files of a private key and of its public one."""
    private = key or ec.generate_private_key(ec.SECP256R1())
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
    return small_package(place / "package")


MAKERS = (_folder, _library, _package)


@pytest.mark.parametrize("curve", [ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1()])
def test_curves(tmp_path: Path, curve: ec.EllipticCurve) -> None:
    private, public = write_keys(tmp_path, "mine", ec.generate_private_key(curve))
    path = _package(tmp_path)
    sign(path, private)
    assert check_signature(path, public)


@pytest.mark.parametrize("make", MAKERS)
def test_the_command_line_of_model_signing(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    """It accepts what `sign` wrote, as long as it is that, and `check_signature` what it wrote."""
    needs("model_signing")
    from click.testing import CliRunner

    (program,) = entry_points(group="console_scripts", name="model_signing")
    private, public = write_keys(tmp_path, "mine")
    _, other = write_keys(tmp_path, "other")
    path = make(tmp_path)

    def theirs(verb: str, *options: str) -> int:
        given = [verb, "key", "--signature", str(signature_file(path)), *options, str(path)]
        return CliRunner().invoke(program.load(), given).exit_code

    sign(path, private)
    assert theirs("verify", "--public_key", str(public)) == 0
    assert theirs("verify", "--public_key", str(other)) != 0
    changed = path if path.is_file() else next(path.glob("*.json"))
    content = changed.read_bytes()
    changed.write_bytes(content + b" ")
    assert theirs("verify", "--public_key", str(public)) != 0
    changed.write_bytes(content)
    signature_file(path).unlink()
    assert theirs("sign", "--private_key", str(private)) == 0
    assert check_signature(path, public)


def test_a_folder_is_signed_whole(tmp_path: Path, messages: Messages) -> None:
    """But for what git has there; a file is not added unnoticed, nor read through a link."""
    private, public = write_keys(tmp_path, "mine")
    folder = _folder(tmp_path)
    (folder / "README.md").write_text("about it")
    sign(folder, private)
    (folder / ".git" / "refs").mkdir(parents=True)
    (folder / ".git" / "refs" / "head").write_text("of git")
    assert check_signature(folder, public)
    for change in (
        lambda: (folder / "README.md").write_text("another"),
        lambda: (folder / "new.txt").write_text("new"),
        lambda: (folder / "new.txt").unlink() or (folder / "new.txt").symlink_to("/etc/passwd"),
    ):
        change()
        with messages.raises(VerificationError):
            check_signature(folder, public)
    with pytest.raises(VerificationError):
        sign(folder, private)


@pytest.mark.parametrize("make", MAKERS)
def test_what_was_signed_passes_with_its_key_alone(
    tmp_path: Path, make: Callable[[Path], Path], messages: Messages
) -> None:
    private, public = write_keys(tmp_path, "mine")
    _, other = write_keys(tmp_path, "other")
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
    private, public = write_keys(tmp_path, "mine")
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


def _envelope(**fields: object) -> Callable[[dict[str, Any]], object]:
    return lambda bundle: bundle["dsseEnvelope"].update(fields)


@pytest.mark.parametrize(
    "forge",
    [
        _envelope(signatures=[{"sig": base64.b64encode(bytes(64)).decode()}]),
        _envelope(signatures=[{"sig": "zz"}]),
        _envelope(signatures=[]),
        _envelope(signatures=3),
        _envelope(payload=base64.b64encode(b"{}").decode()),
        _envelope(payloadType="text/plain"),
        lambda bundle: bundle.update(mediaType="application/vnd.dev.sigstore.bundle.v0.2+json"),
        lambda bundle: bundle.update(verificationMaterial={"certificate": {}}),
    ],
    ids=[
        *("another-signature", "no-base64", "no-signature", "no-list", "another-payload"),
        *("payload-type", "bundle-version", "certificate"),
    ],
)
def test_a_forged_bundle(
    tmp_path: Path, forge: Callable[[dict[str, Any]], object], messages: Messages
) -> None:
    private, public = write_keys(tmp_path, "mine")
    file = sign(_folder(tmp_path), private)
    bundle = json.loads(file.read_text())
    forge(bundle)
    file.write_text(json.dumps(bundle))
    with messages.raises(VerificationError):
        check_signature(file.parent, public)


@pytest.mark.parametrize(
    "change",
    [
        lambda statement: statement.update(predicateType="https://slsa.dev/provenance/v1"),
        lambda statement: statement["predicate"]["serialization"].update(method="shards"),
        lambda statement: statement["predicate"]["resources"][0].update(algorithm="blake3"),
        # What does not sign the manifest signs nothing that is read.
        lambda statement: statement["predicate"].update(
            serialization={"method": "files", "hash_type": "sha256", "ignore_paths": ["."]},
            resources=[],
        ),
    ],
    ids=["predicate", "shards", "hash", "nothing"],
)
def test_what_is_signed_with_the_key_and_is_no_signature_of_the_files(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], messages: Messages
) -> None:
    from ibert_tvm.verification import signature

    private, public = write_keys(tmp_path, "mine")
    file = sign(_folder(tmp_path), private)
    bundle = json.loads(file.read_text())
    envelope = bundle["dsseEnvelope"]
    statement = json.loads(base64.b64decode(envelope["payload"]))
    change(statement)
    payload = json.dumps(statement).encode()
    key = serialization.load_pem_private_key(private.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    signed = key.sign(signature._message(payload), ec.ECDSA(hashes.SHA256()))
    envelope["payload"] = base64.b64encode(payload).decode()
    envelope["signatures"][0]["sig"] = base64.b64encode(signed).decode()
    file.write_text(json.dumps(bundle))
    with messages.raises(VerificationError):
        check_signature(file.parent, public)


def test_a_signature_of_an_earlier_version(tmp_path: Path, messages: Messages) -> None:
    _, public = write_keys(tmp_path, "mine")
    folder = _folder(tmp_path)
    former = {"format": "ibert-signature", "version": 1, "key": "", "sha256": "", "signature": ""}
    signature_file(folder).write_text(json.dumps(former))
    with messages.raises(VerificationError):
        check_signature(folder, public)


def test_what_is_damaged_is_neither_signed_nor_accepted(tmp_path: Path) -> None:
    private, public = write_keys(tmp_path, "mine")
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
    private, _ = write_keys(tmp_path, "mine")
    folder = _folder(tmp_path)
    sign(folder, private)
    assert QuantizedModel.load(folder).preset == "accurate"
    make_quantized().save(folder)
    assert not signature_file(folder).exists()


def test_keys_that_cannot_be_used(tmp_path: Path, messages: Messages) -> None:
    folder = _folder(tmp_path)
    private, public = write_keys(tmp_path, "edwards", ed25519.Ed25519PrivateKey.generate())
    with messages.raises(UsageError):
        sign(folder, private)
    with messages.raises(UsageError):
        check_signature(folder, public)
    (tmp_path / "empty").write_bytes(b"")
    for file in (tmp_path / "empty", tmp_path / "none", tmp_path):
        with messages.raises(UsageError, pem=re.compile("Unable to load PEM file.*")):
            sign(folder, file)
    mine, _ = write_keys(tmp_path, "mine")
    with messages.raises(UsageError):
        sign(tmp_path, mine)


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ibert_tvm.cli import main

    private, public = write_keys(tmp_path, "mine")
    folder = _folder(tmp_path)
    report = str(tmp_path / "verify.json")
    verify = ["verify", str(folder), "--inputs", "1", "-o", report, "--key", str(public)]
    assert main(verify) == 5
    assert capsys.readouterr().err.startswith(f"error: {folder} is not signed with this key\n")
    assert main(["sign", str(folder), "--key", str(private)]) == 0
    assert capsys.readouterr().out == f"wrote {folder / 'signature.json'}\n"
    assert main(verify) == 0
    assert "signature: passed (key " in capsys.readouterr().out
