"""Reading a library's metadata without running it, and refusing what is not one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ibert_tvm.errors import LibraryError, TargetError
from ibert_tvm.runtime import load_library
from ibert_tvm.runtime.library_file import read_metadata
from ibert_tvm.runtime.metadata import FunctionRecord, KernelRecord

from .conftest import TinyModel

_COPY = "copy the file again, or make it again with `ibert compile NAME.ibert -o model.so`"


def test_metadata_is_read_without_tvm(library_path: Path) -> None:
    script = (
        "import sys\n"
        "from ibert_tvm.runtime.library_file import read_metadata\n"
        "print(len(read_metadata(sys.argv[1]).functions))\n"
        "print([name for name in ('tvm', 'torch') if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(library_path)],
        capture_output=True,
        text=True,
        check=True,
    )
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


def test_kernels_of_a_function(variant: Callable[..., Path]) -> None:
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
    (record,) = read_metadata(variant(metadata_changes={"functions": [function]})).functions
    assert record.kernels == (
        KernelRecord(
            "main_b1_s8_fc", "linear", "encoder.0.fc", 64, num_bytes=0
        ),  # an old library's
        KernelRecord("main_b1_s8_ln", "layer_norm", "encoder.0.ln", 0, num_bytes=9),
    )
    assert record.macs == 64


def test_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "no.so"
    with pytest.raises(LibraryError) as caught:
        load_library(path)
    assert str(caught.value) == (
        f"there is no library at {path}\n"
        "  why: the path does not exist\n"
        "  what to do: check the path; `ibert compile NAME.ibert -o model.so` makes one"
    )


def test_folder(tmp_path: Path) -> None:
    with pytest.raises(LibraryError) as caught:
        load_library(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path} is not a library\n"
        "  why: it is a folder; a compiled library is one file\n"
        "  what to do: give the .so file that `ibert compile` wrote"
    )


@pytest.mark.parametrize("content", [b"", b"hello, I am not a library"])
def test_not_an_elf_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.so"
    path.write_bytes(content)
    with pytest.raises(LibraryError) as caught:
        load_library(path)
    assert str(caught.value) == (
        f"cannot read the library {path}\n  why: it is not an ELF file\n  what to do: {_COPY}"
    )


def test_truncated_library_is_an_error_and_not_a_bus_error(
    tmp_path: Path, library_path: Path
) -> None:
    whole = library_path.read_bytes()
    path = tmp_path / "bad.so"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(LibraryError) as caught:
        load_library(path)
    assert str(caught.value) == (
        f"cannot read the library {path}\n"
        f"  why: it is truncated: {len(whole) // 2} bytes of {len(whole)}\n"
        f"  what to do: {_COPY}"
    )


@pytest.mark.parametrize("cut", [4, 16, 40, 63, 64, 100, 1000])
def test_any_truncation_is_a_library_error(tmp_path: Path, library_path: Path, cut: int) -> None:
    path = tmp_path / "bad.so"
    path.write_bytes(library_path.read_bytes()[:cut])
    with pytest.raises(LibraryError, match=r"^cannot read the library .*bad\.so\n  why: it"):
        load_library(path)


def test_library_without_our_sections(tmp_path: Path) -> None:
    source = tmp_path / "a.c"
    source.write_text("int f(void) { return 1; }\n")
    path = tmp_path / "other.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", path, source], check=True)
    with pytest.raises(LibraryError) as caught:
        load_library(path)
    assert str(caught.value) == (
        f"{path} was not made by ibert_tvm\n"
        "  why: it is a shared library without the section .ibert.metadata and .ibert.weights\n"
        "  what to do: give a library that `ibert compile` wrote, not stripped; or make it again "
        "with `ibert compile NAME.ibert -o model.so`"
    )


def test_other_format(variant: Callable[..., Path]) -> None:
    path = variant(metadata_changes={"format": 9})
    with pytest.raises(LibraryError) as caught:
        load_library(path)
    assert str(caught.value) == (
        f"the library {path} has format 9\n"
        "  why: this version of ibert_tvm reads format 1\n"
        "  what to do: use the version of ibert_tvm that made it, or make it again with "
        "`ibert compile NAME.ibert -o model.so`"
    )


def test_unusable_metadata(variant: Callable[..., Path]) -> None:
    path = variant(metadata_changes={"outputs": [{"name": "hidden"}]})
    with pytest.raises(LibraryError) as caught:
        load_library(path)
    assert str(caught.value) == (
        f"cannot read the library {path}\n"
        "  why: its metadata is unusable: 'dtype' is missing\n"
        f"  what to do: {_COPY}"
    )


def test_function_that_is_not_in_the_library(variant: Callable[..., Path]) -> None:
    functions = [{"name": "main_b9_s9", "batch": 9, "seq_len": 9}]
    path = variant(metadata_changes={"functions": functions})
    with pytest.raises(LibraryError, match="Module has no function 'main_b9_s9'"):
        load_library(path)


def test_processor_without_a_required_feature(variant: Callable[..., Path]) -> None:
    path = variant(features=("sse2", "warp_drive", "time_travel"))
    with pytest.raises(TargetError) as caught:
        load_library(path)
    assert str(caught.value) == (
        f"the library {path} does not run on this processor\n"
        "  why: it was compiled for host and needs warp_drive, time_travel, which /proc/cpuinfo "
        "does not list\n"
        "  what to do: compile with --target host on this machine; `ibert targets` lists the "
        "others"
    )


def test_other_processor_architecture(tmp_path: Path, library_path: Path) -> None:
    content = bytearray(library_path.read_bytes())
    content[18:20] = (183).to_bytes(2, "little")  # e_machine = EM_AARCH64
    path = tmp_path / "arm.so"
    path.write_bytes(content)
    with pytest.raises(TargetError, match=r"compiled for host \(EM_AARCH64\); this machine is x86"):
        load_library(path)


def test_library_without_tokenizer_refuses_texts(variant: Callable[..., Path]) -> None:
    from ibert_tvm.errors import InputError

    path = variant(tokenizer=False)
    library = load_library(path)
    assert library.tokenizer is None
    with pytest.raises(InputError) as caught:
        library.run_texts(["hello"])
    assert str(caught.value) == (
        "the library cannot take texts\n"
        f"  where: {path}\n"
        "  why: its model came without tokenizer files\n"
        "  what to do: give token ids: run(input_ids=...) or --inputs FILE.npz"
    )
