"""Reading a library's metadata without running it, and refusing what is not one."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ibert_tvm.common.errors import InputError, LibraryError, TargetError
from ibert_tvm.common.file_seal import sealed_bytes
from ibert_tvm.runtime import library as library_module
from ibert_tvm.runtime import load_library
from ibert_tvm.runtime.library_file import read_metadata
from ibert_tvm.runtime.metadata import FunctionRecord, KernelRecord
from ibert_tvm.targets.seal import seal_library
from tests.processes import run_captured
from tests.snapshots import Messages

from .conftest import TinyModel

Changed = Callable[..., Path]


@pytest.fixture
def changed(tmp_path: Path, library_path: Path) -> Changed:
    """A sealed library whose section of metadata says something else, in no more bytes."""
    from elftools.elf.elffile import ELFFile

    def make(**fields: object) -> Path:
        content = bytearray(library_path.read_bytes()[: sealed_bytes(library_path)])
        with library_path.open("rb") as stream:
            section = ELFFile(stream).get_section_by_name(".ibert.metadata")
            at, size = section["sh_offset"], section["sh_size"]
        document = {**json.loads(content[at : at + size]), "source_sha256": "", **fields}
        text = json.dumps(document, separators=(",", ":")).encode()
        assert len(text) <= size
        content[at : at + size] = text.ljust(size)
        path = tmp_path / "variant.so"
        path.write_bytes(content)
        seal_library(path)
        return path

    return make


def test_metadata_is_read_without_tvm(library_path: Path) -> None:
    script = (
        "import sys\n"
        "from ibert_tvm.runtime.library_file import read_metadata\n"
        "print(len(read_metadata(sys.argv[1]).functions))\n"
        "print([name for name in ('tvm', 'torch') if name in sys.modules])\n"
    )
    done = run_captured([sys.executable, "-c", script, str(library_path)], check=True)
    assert done.stdout.split("\n")[:2] == ["3", "[]"]


def test_metadata_content(library_path: Path, tiny: TinyModel) -> None:
    metadata = read_metadata(library_path)
    assert metadata.functions[2] == FunctionRecord("main_b4_s8", 4, 8)
    assert metadata.max_seq_len == 16
    assert metadata.info == tiny.info
    assert [(p.name, p.dtype, p.shape) for p in metadata.parameters] == [
        ("table", "int8", (8, 4)),
        ("bias", "int32", (4,)),
    ]
    assert [(o.name, o.scale, o.per_token) for o in metadata.outputs] == [
        ("hidden", 0.5, True),
        ("embedding", 0.25, False),
    ]
    assert metadata.weight_bytes >= sum(p.num_bytes for p in metadata.parameters)
    assert metadata.file_bytes == library_path.stat().st_size


def test_kernels_of_a_function(changed: Changed) -> None:
    kernels = [
        {"name": "main_b1_s8_fc", "kind": "linear", "layer": "encoder.0.fc", "macs": 64},
        {
            "name": "main_b1_s8_ln",
            "kind": "layer_norm",
            "layer": "encoder.0.ln",
            "macs": 0,
            "bytes": 9,
        },
    ]
    function = {"name": "main_b1_s8", "batch": 1, "seq_len": 8, "kernels": kernels}
    (record,) = read_metadata(changed(functions=[function], tokenizer=None)).functions
    assert record.kernels == (
        KernelRecord(
            "main_b1_s8_fc", "linear", "encoder.0.fc", 64, num_bytes=0
        ),  # an old library's
        KernelRecord("main_b1_s8_ln", "layer_norm", "encoder.0.ln", 0, num_bytes=9),
    )
    assert record.macs == 64


def test_missing_file(tmp_path: Path, messages: Messages) -> None:
    path = tmp_path / "no.so"
    with messages.raises(LibraryError):
        load_library(path)


def test_folder(tmp_path: Path, messages: Messages) -> None:
    with messages.raises(LibraryError):
        load_library(tmp_path)


@pytest.mark.parametrize("content", [b"", b"hello, I am not a library"])
def test_not_an_elf_file(tmp_path: Path, content: bytes, messages: Messages) -> None:
    path = tmp_path / "bad.so"
    path.write_bytes(content)
    with messages.raises(LibraryError):
        load_library(path)


def test_truncated_library_is_an_error_and_not_a_bus_error(
    tmp_path: Path, library_path: Path, messages: Messages
) -> None:
    whole = library_path.read_bytes()
    path = tmp_path / "bad.so"
    path.write_bytes(whole[: len(whole) // 2])
    with messages.raises(LibraryError):
        load_library(path)


@pytest.mark.parametrize("cut", [4, 16, 40, 63, 64, 100, 1000])
def test_any_truncation_is_a_library_error(tmp_path: Path, library_path: Path, cut: int) -> None:
    path = tmp_path / "bad.so"
    path.write_bytes(library_path.read_bytes()[:cut])
    with pytest.raises(LibraryError, match=r"^cannot read the library .*bad\.so\n  why: it"):
        load_library(path)


def test_library_without_our_sections(tmp_path: Path, messages: Messages) -> None:
    source = tmp_path / "a.c"
    source.write_text("int f(void) { return 1; }\n")
    path = tmp_path / "other.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", path, source], check=True)
    with messages.raises(LibraryError):
        load_library(path)


def test_other_format(changed: Changed, messages: Messages) -> None:
    path = changed(format=9)
    with messages.raises(LibraryError):
        load_library(path)


def test_unusable_metadata(changed: Changed, messages: Messages) -> None:
    path = changed(outputs=[{"name": "hidden"}])
    with messages.raises(LibraryError):
        load_library(path)


def test_function_that_is_not_in_the_library(changed: Changed) -> None:
    path = changed(functions=[{"name": "main_b9_s9", "batch": 9, "seq_len": 9}])
    with pytest.raises(LibraryError, match="Module has no function 'main_b9_s9'"):
        load_library(path)


def test_processor_without_a_required_feature(changed: Changed, messages: Messages) -> None:
    path = changed(required_cpu_features=["sse2", "warp_drive", "time_travel"])
    with messages.raises(TargetError):
        load_library(path)


def test_other_processor_architecture(tmp_path: Path, library_path: Path) -> None:
    content = bytearray(library_path.read_bytes())
    content[18:20] = (183).to_bytes(2, "little")  # e_machine = EM_AARCH64
    path = tmp_path / "arm.so"
    path.write_bytes(content[: sealed_bytes(library_path)])
    seal_library(path)
    with pytest.raises(TargetError, match=r"compiled for host \(EM_AARCH64\); this machine is x86"):
        load_library(path)


def test_library_without_tokenizer_refuses_texts(changed: Changed, messages: Messages) -> None:
    library = load_library(changed(tokenizer=None))
    assert library.tokenizer is None
    with messages.raises(InputError):
        library.run_texts(["hello"])


# -- one bit ------------------------------------------------------------------------------------


def _refusal(path: Path) -> str:
    with pytest.raises(LibraryError) as caught:
        read_metadata(path)
    return caught.value.why


def test_any_bit_anywhere_is_refused(tmp_path: Path, library_path: Path) -> None:
    """Of headers, code, weights, padding and the seal itself."""
    whole = library_path.read_bytes()
    end = sealed_bytes(library_path)
    assert end is not None
    generator = np.random.default_rng(3)
    places = [*generator.integers(len(whole), size=60), *range(0, 64, 3)]
    places += [*generator.integers(end, len(whole), size=40), *range(len(whole) - 56, len(whole))]
    path = tmp_path / "changed.so"
    for at in places:
        changed = bytearray(whole)
        changed[at] ^= 1 << int(generator.integers(8))
        path.write_bytes(changed)
        why = _refusal(path)
        if at < end:
            assert " parts were changed: " in why
        else:
            assert why.startswith(("its seal is damaged", "no seal is at its end"))


def test_the_damaged_part_is_named(tmp_path: Path, library_path: Path) -> None:
    from elftools.elf.elffile import ELFFile

    whole = library_path.read_bytes()
    with library_path.open("rb") as stream:
        elf = ELFFile(stream)
        names = (".text", ".ibert.weights", ".ibert.metadata", ".dynamic")
        places = {name: elf.get_section_by_name(name)["sh_offset"] for name in names}
    path = tmp_path / "changed.so"
    for name, at in {**places, "headers and padding": 20}.items():
        changed = bytearray(whole)
        changed[at] ^= 4
        path.write_bytes(changed)
        assert _refusal(path).endswith(f" parts were changed: {name}")


def test_a_library_without_a_seal(tmp_path: Path, library_path: Path) -> None:
    path = tmp_path / "stripped.so"
    path.write_bytes(library_path.read_bytes()[: sealed_bytes(library_path)])
    assert _refusal(path).startswith("no seal is at its end, with the hashes of its parts: ")


def _packed(**tokens: object) -> dict[str, object]:
    return {"name": "a", "batch": 2, "seq_len": 8, "tokens": {"kept": [], **tokens}}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"format": True}, ""),
        ({"functions": [{"name": "a", "batch": 2**40, "seq_len": 8}]}, "functions[0].batch: it is"),
        ({"functions": {}}, "functions: it is {}; a list is needed"),
        ({"inputs": [{"name": "input_ids", "dtype": "float32"}]}, "inputs[0].dtype: it is"),
        ({"tokenizer": [1]}, "tokenizer: it is [1]; an object or null is needed"),
        ({"info": {"outputs": 3}}, ""),
        ({"cuda": {"architectures": 3}}, "cuda.architectures: it is 3; a list is needed"),
        (
            {"cuda": {"launches": {"k": {"blocks": [1, 1, 1], "rows": [1, 4]}}}},
            "kernel k has [1, 4] for its rows",
        ),
        ({"functions": [_packed(mask=9, buckets=[8, 16])]}, "function a has no place for all"),
        ({"functions": [_packed(mask=0, buckets=[8, 12])]}, "function a has no place for all"),
        ({"functions": [_packed(mask=0, buckets=[0, 16])]}, "functions[0].tokens.buckets[0]: it"),
    ],
)
def test_metadata_that_are_none(changed: Changed, change: dict[str, object], why: str) -> None:
    """Of a library that is sealed: an attacker can seal as well."""
    assert why in _refusal(changed(**change))


def test_a_tokenizer_that_inflates_to_gigabytes(tmp_path: Path, library_path: Path) -> None:
    bomb = base64.b64encode(zlib.compress(bytes(2**26 + 1))).decode()
    with pytest.raises(LibraryError) as caught:
        library_module._inflated("vocab.txt", bomb)
    assert caught.value.why == f"it has more than {2**26} bytes"
    for name, text in (("vocab.txt", "?"), ("vocab.txt", "AAAA"), ("../vocab.txt", "eJwDAAAAAAE=")):
        with pytest.raises(LibraryError, match=r"^the library's tokenizer cannot be read"):
            library_module._inflated(name, text)
    assert library_module._inflated("vocab.txt", "eJwDAAAAAAE=") == b""
