"""A folder that was changed is not taken for what it was, and nothing outside of it is read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ibert_tvm.common.errors import ArtefactError
from ibert_tvm.common.integrity import MANIFEST, write_manifest
from ibert_tvm.model.artefact import QuantizedModel, read_document
from tests.snapshots import Messages

_FILES = ("model.json", "params.safetensors", "quantization.json", "tokenizer/vocab.txt")


@pytest.fixture
def folder(quantized: QuantizedModel, tmp_path: Path) -> Path:
    return quantized.save(tmp_path / "tiny.ibert")


@pytest.mark.parametrize("name", _FILES)
@pytest.mark.parametrize("read", [QuantizedModel.load, read_document])
def test_one_bit(folder: Path, name: str, read: Callable[[Path], object]) -> None:
    whole = (folder / name).read_bytes()
    for byte in np.random.default_rng(len(whole)).integers(len(whole), size=8):
        changed = bytearray(whole)
        changed[byte] ^= 1 << int(byte) % 8
        (folder / name).write_bytes(changed)
        with pytest.raises(ArtefactError, match=r"SHA-256 is not the one in manifest\.json"):
            read(folder)
    (folder / name).write_bytes(whole)
    read(folder)


def test_one_bit_of_the_manifest(folder: Path) -> None:
    """Refused, or a space that became another space."""
    whole = (folder / MANIFEST).read_bytes()
    for bit in range(0, 8 * len(whole), 21):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        (folder / MANIFEST).write_bytes(changed)
        try:
            read_document(folder)
        except ArtefactError:
            continue
        assert json.loads(changed) == json.loads(whole)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["files"].pop("model.json"),
        lambda m: m["files"].pop("tokenizer/vocab.txt"),
        lambda m: m["files"].update({"../x": m["files"]["model.json"]}),
        lambda m: m["files"].update({"/etc/passwd": m["files"]["model.json"]}),
        lambda m: m["files"].update({"a": m["files"]["model.json"]}),
        lambda m: m["files"].update({"a" * 999: m["files"]["model.json"]}),
        lambda m: m.update(files=[]),
        lambda m: m.update(version=True),
        lambda m: m["files"]["model.json"].update(bytes=-1),
    ],
    ids=[
        *("unlisted", "unlisted tokenizer", "above", "elsewhere", "missing", "long name"),
        *("list", "version", "size"),
    ],
)
def test_manifests_that_lie(
    messages: Messages, folder: Path, change: Callable[[dict], object]
) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    change(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))
    with messages.raises(ArtefactError):
        QuantizedModel.load(folder)


def test_links_out_of_the_folder(messages: Messages, folder: Path, tmp_path: Path) -> None:
    """What lies there would become a part of every library that is compiled."""
    secret = tmp_path / "secret"
    secret.write_text("mine")
    link = folder / "tokenizer" / "vocab.txt"
    link.unlink()
    link.symlink_to(secret)
    write_manifest(folder)
    with messages.raises(ArtefactError):
        QuantizedModel.load(folder)
    link.unlink()
    os.mkfifo(link)
    with messages.raises(ArtefactError):
        QuantizedModel.load(folder)
    link.unlink()
    (folder / "tokenizer").rmdir()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "vocab.txt").write_text("mine")
    (folder / "tokenizer").symlink_to(outside)
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(manifest))
    with messages.raises(ArtefactError):
        QuantizedModel.load(folder)


def test_other_files_beside_the_tokenizer(messages: Messages, folder: Path) -> None:
    (folder / "tokenizer" / "id_rsa").write_text("mine")
    with messages.raises(ArtefactError):
        QuantizedModel.load(folder)
    write_manifest(folder)
    with messages.raises(ArtefactError):
        QuantizedModel.load(folder)
