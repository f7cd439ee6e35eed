"""Hostile files: a named error each time, quickly and in little memory."""

from __future__ import annotations

import io
import json
import re
import resource
import struct
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ibert_tvm import texts
from ibert_tvm.common import array_file, file_seal, integrity, schema, strict_json
from ibert_tvm.common.array_file import read_arrays
from ibert_tvm.common.errors import DocumentError, LibraryError, ModelError, TargetError
from ibert_tvm.common.file_seal import sealed_bytes
from ibert_tvm.encoder import saved
from ibert_tvm.frontend import folder_files
from ibert_tvm.frontend.errors import ModelSourceError
from ibert_tvm.frontend.folder_files import inside, weight_files
from ibert_tvm.frontend.hf_folder import HfFolder
from ibert_tvm.model import quantization_file, tokenization, trained_scales
from ibert_tvm.relay_passes.integer import document
from ibert_tvm.runtime import library_file
from ibert_tvm.runtime.library_file import read_metadata
from ibert_tvm.schedules.tuning import database
from ibert_tvm.targets.bare_metal import document as package
from ibert_tvm.targets.rpc import address
from ibert_tvm.targets.rpc.address import BoardError
from ibert_tvm.targets.rpc.processor import BoardDescription
from ibert_tvm.targets.seal import seal_library
from ibert_tvm.verification import certificate, signature
from tests.runtime.conftest import TinyModel
from tests.small_package import small_package
from tests.snapshots import Messages

DEEP = "[" * 100_000
DOCUMENTATION = Path(__file__).parents[1] / "docs" / "security.md"


@contextmanager
def _bounded(more_bytes: int = 2**28) -> Iterator[None]:
    """Soon, and without memory for what a header claims."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    most = pages * resource.getpagesize() + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, limits[1]))
    started = time.process_time()
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert time.process_time() - started < 5


# -- arrays -------------------------------------------------------------------------------------


def _npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode("latin1")
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def _npz(file: Path, content: bytes, compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(file, "w", compression) as archive:
        archive.writestr("input_ids.npy", content)
    return file


_SHAPE = "{'descr': '%s', 'fortran_order': False, 'shape': %s}"
_HEADERS = {
    "58 TiB": _SHAPE % ("<i8", "(8000000000000,)"),
    "overflow": _SHAPE % ("<i8", f"({2**62}, {2**62})"),
    "negative": _SHAPE % ("<i8", "(-1,)"),
    "rank": _SHAPE % ("<i8", (1,) * 9),
    "nested": "(" * 900,
    "nested lists": _SHAPE % ("<i8", "[" * 800),
    "call": _SHAPE % ("<i8", "(exit(),)"),
    "strings": _SHAPE % ("<U9", "(0,)"),
    "objects": _SHAPE % ("|O", "(0,)"),
    "long": " " * 9000,
    "empty": "",
}


@pytest.mark.parametrize("case", _HEADERS)
def test_headers_of_arrays(tmp_path: Path, case: str, messages: Messages) -> None:
    file = _npz(tmp_path / "a.npz", _npy(_HEADERS[case]))
    with _bounded(), messages.raises(DocumentError):
        read_arrays(file)


def test_compressed_zeros(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    assert array_file.MAX_EXPANDED_BYTES == 2**29
    monkeypatch.setattr(array_file, "MAX_EXPANDED_BYTES", 2**20)
    file = _npz(tmp_path / "a.npz", bytes(2**20 + 1), zipfile.ZIP_DEFLATED)
    with messages.raises(DocumentError):
        read_arrays(file)


@pytest.mark.parametrize(("at", "value"), [(6, 1), (8, 99)])
def test_archives_that_are_not_read(
    tmp_path: Path, at: int, value: int, messages: Messages
) -> None:
    """Flags and methods stand in the local header and in the directory, two bytes further."""
    content = bytearray(_npz(tmp_path / "a.npz", _npy("")).read_bytes())
    content[at] = content[content.index(b"PK\x01\x02") + at + 2] = value
    (tmp_path / "a.npz").write_bytes(content)
    with messages.raises(DocumentError):
        read_arrays(tmp_path / "a.npz")


@settings(max_examples=2 * settings().max_examples)
@given(st.lists(st.tuples(st.integers(0, 399), st.integers(0, 255)), min_size=1, max_size=4))
def test_any_damaged_archive(changes: list[tuple[int, int]]) -> None:
    """Refused, or numbers."""
    from tempfile import TemporaryDirectory

    buffer = io.BytesIO()
    np.savez_compressed(buffer, input_ids=np.arange(12).reshape(3, 4))
    content = bytearray(buffer.getvalue())
    for at, value in changes:
        content[at % len(content)] = value
    with TemporaryDirectory() as folder:
        file = Path(folder) / "a.npz"
        file.write_bytes(content)
        try:
            arrays = read_arrays(file)
        except DocumentError:
            return
    assert all(array.dtype.kind in "biuf" for array in arrays.values())


# -- model folders ------------------------------------------------------------------------------

_CONFIG = json.dumps({"model_type": "bert", "architectures": ["BertModel"]})


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", DEEP),
        ("config.json", '{"a": ' + "9" * 6000 + "}"),
        ("config.json", '{"model_type": []}'),
        ("config.json", '{"model_type": "bert", "architectures": {"a": 1}}'),
        ("modules.json", DEEP),
        ("modules.json", '{"a": 1}'),
        ("modules.json", "[3]"),
        ("modules.json", '[{"type": "sentence_transformers.models.Transformer", "path": "../x"}]'),
        ("model.safetensors.index.json", DEEP),
        ("model.safetensors.index.json", "[]"),
        ("model.safetensors.index.json", '{"weight_map": []}'),
        ("model.safetensors.index.json", '{"weight_map": {"a": 3}}'),
        ("model.safetensors.index.json", '{"weight_map": {"a": "../b.safetensors"}}'),
        ("model.safetensors.index.json", '{"weight_map": {"a": "/etc/passwd"}}'),
    ],
)  # fmt: skip
def test_documents_of_model_folders(
    tmp_path: Path, name: str, content: str, messages: Messages
) -> None:
    (tmp_path / "config.json").write_text(_CONFIG)
    (tmp_path / name).write_text(content)
    with _bounded(), messages.raises(ModelSourceError):
        HfFolder.read(tmp_path)


@pytest.mark.parametrize("key", ["num_hidden_layers", "n_layer", "encoder_layers", "depth"])
def test_a_million_layers(tmp_path: Path, key: str, messages: Messages) -> None:
    config = {"model_type": "bert", key: 10**6, "layer_norm_eps": 1e-12}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    with _bounded(), messages.raises(ModelSourceError):
        HfFolder.read(tmp_path)


@pytest.mark.parametrize("name", ["a\0b", "x" * 300, "/x", "..", "a/../../b"])
def test_places_outside_of_a_folder(tmp_path: Path, name: str, messages: Messages) -> None:
    with messages.raises(ModelSourceError):
        inside(tmp_path, name, "modules.json")


def test_weights_that_are_a_pipe(tmp_path: Path, messages: Messages) -> None:
    import os

    os.mkfifo(tmp_path / "model.safetensors.index.json")
    with messages.raises(ModelSourceError):
        weight_files(tmp_path)
    with messages.raises(DocumentError):
        strict_json.read_json(tmp_path / "model.safetensors.index.json", 100, 3)


# -- tokenizers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [DEEP.encode(), b'{"a": ' + b"9" * 6000 + b"}", b"\xff"])
def test_settings_of_tokenizers(content: bytes, messages: Messages) -> None:
    with _bounded(), messages.raises(ModelError):
        tokenization.Tokenizer({"vocab.txt": b"[PAD]\n", "tokenizer_config.json": content})


def test_a_text_of_50_mb(messages: Messages) -> None:
    tokenizer = tokenization.Tokenizer({"vocab.txt": b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n"})
    with _bounded(), messages.raises(tokenization.InputError):
        tokenizer.encode(["a", "b" * 50_000_000], 16)


def test_a_vocabulary_without_its_unknown_token(messages: Messages) -> None:
    tokenizer = tokenization.Tokenizer({"vocab.txt": b"[PAD]\n[CLS]\n[SEP]\n"})
    with messages.raises(ModelError):
        tokenizer.encode(["a"], 16)


def test_a_token_of_more_than_31_bits(messages: Messages) -> None:
    words = {"[PAD]": 2**31, "[UNK]": 1}
    model = {"type": "WordLevel", "vocab": words, "unk_token": "[UNK]"}
    text = json.dumps({"version": "1.0", "model": model, "added_tokens": []})
    tokenizer = tokenization.Tokenizer({"tokenizer.json": text.encode()})
    with messages.raises(ModelError):
        tokenizer.encode(["a"], 16)


# -- libraries that the linker left, and boards -------------------------------------------------


def test_an_elf_file_whose_section_is_longer_than_a_disk(
    tmp_path: Path, messages: Messages
) -> None:
    """It made the writer of seals hash for ever, and take all memory."""
    import subprocess

    file = tmp_path / "model.so"
    subprocess.run(
        ["gcc", "-shared", "-nostdlib", "-x", "c", "-", "-o", file], input=b"int a = 1;", check=True
    )
    content = bytearray(file.read_bytes())
    (headers,) = struct.unpack_from("<Q", content, 40)
    struct.pack_into("<Q", content, headers + 64 + 32, 2**62)  # sh_size of the first section
    file.write_bytes(content)
    with _bounded(), messages.raises(TargetError):
        seal_library(file)


@pytest.mark.parametrize("field", [32, 40])
def test_headers_behind_the_end_of_any_file(tmp_path: Path, field: int, messages: Messages) -> None:
    """A place that no file can be read at was a ValueError of Python's, found by fuzzing."""
    file = TinyModel().build(tmp_path / "model.so")
    content = bytearray(file.read_bytes()[: sealed_bytes(file)])
    struct.pack_into("<Q", content, field, 2**63)  # of program headers, of section headers
    file.write_bytes(content)
    with messages.raises(LibraryError, size=re.compile(r"\b\d{6}\b")):
        read_metadata(file)


@pytest.mark.parametrize(
    "text", ["capabilities x", "machine aarch64\ncapabilities 1", "processors"]
)
def test_what_a_board_says_of_itself(text: str, messages: Messages) -> None:
    with messages.raises(BoardError):
        BoardDescription.parse(text)


# -- the checker --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [float("nan"), 0, -1.0, 1e300, 1e-300, True, "1", None, pytest.param(10**400, id="10**400")],
)
def test_no_scale(value: object, messages: Messages) -> None:
    with messages.raises(DocumentError):
        schema.check({"a": [value]}, {"a": [schema.SCALE]})


# -- what is documented -------------------------------------------------------------------------


def test_limits_are_those_that_are_documented() -> None:
    mib = 2**20
    rows = {
        cells[1].strip(): [cell.strip() for cell in cells[2:-1]]
        for line in DOCUMENTATION.read_text().splitlines()
        if len(cells := line.split("|")) == 6
    }
    for name, max_bytes, depth in (
        ("`model.json`", document.MAX_BYTES, document.MAX_DEPTH),
        ("`quantization.json`", quantization_file.MAX_BYTES, quantization_file._MAX_DEPTH),
        ("`manifest.json`", integrity._MAX_MANIFEST_BYTES, integrity._MAX_DEPTH),
        ("metadata of a library", library_file._MAX_METADATA, library_file._MAX_DEPTH),
        ("seal of a library", file_seal._MAX_BYTES, file_seal._MAX_DEPTH),
        ("`database.json`", database._MAX_ABOUT, database._MAX_DEPTH),
        (
            "`ibert_scales.json` of a trained model",
            trained_scales.MAX_BYTES,
            trained_scales._MAX_DEPTH,
        ),
        ("JSON of a model folder", folder_files.MAX_BYTES, folder_files.MAX_DEPTH),
        ("answer of a tracker", address._LARGEST_MESSAGE, address._MAX_DEPTH),
        ("signatures and keys", signature._MAX_BYTES, signature._MAX_DEPTH),
        ("certificates", certificate._MAX_BYTES, certificate._MAX_DEPTH),
        ("`encoder.json` of a saved encoder", saved._MAX_BYTES, saved._MAX_DEPTH),
        ("`ibert_model.json` of a package", package._MAX_BYTES, package._MAX_DEPTH),
    ):
        assert rows[name][:2] == [f"{max_bytes // mib} MiB", str(depth)], name
    assert rows["a text"][0] == f"{tokenization.MAX_CHARACTERS:,} characters"
    assert rows["a file of texts, one per line"] == [
        f"{texts.MAX_TEXTS_BYTES // mib} MiB",
        "",
        f"{texts.MAX_TEXTS:,} texts",
    ]
    assert rows["`tokenizer/`"][0] == f"{tokenization.MAX_TOKENIZER_BYTES // mib} MiB a file"
    assert rows["`trials.jsonl`"][0] == (
        f"{database._MAX_TRIALS // mib} MiB, {database._MAX_LINE // 1024} KiB a line"
    )
    assert rows["`.npz`"] == [
        f"what is there; compressed {array_file.MAX_EXPANDED_BYTES // mib} MiB",
        "",
        f"{array_file.MAX_ARRAYS:,} arrays of numbers, rank {array_file.MAX_RANK}, headers of "
        f"{array_file._MAX_HEADER:,} bytes",
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"target": {}},
        {"prefix": "../x"},
        {"functions": [{"symbol": "f", "batch": 1, "seq_len": 8, "kernels": [{"symbol": "k"}]}]},
        {"memory": []},
        {"emit": "c"},  # without sources
    ],
    ids=["target", "prefix", "kernel", "memory", "files"],
)
def test_a_package_with_another_document(
    change: dict[str, object], tmp_path: Path, messages: Messages
) -> None:
    """`ibert verify` raised the KeyError of what was missing."""
    from ibert_tvm.targets.bare_metal import read_package

    with messages.raises(LibraryError):
        read_package(small_package(tmp_path / "package", **change))


def test_symbols_of_a_damaged_object(messages: Messages) -> None:
    from ibert_tvm.targets.elf import symbols

    with messages.raises(TargetError):
        symbols(b"\x7fELF" + bytes(60))
