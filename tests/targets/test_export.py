"""The shared library: what is in it, and how a failed export leaves things as they were."""

from __future__ import annotations

import ctypes
import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm
from elftools.elf.elffile import ELFFile
from tvm import relax

from ibert_tvm.common.errors import OutputError
from ibert_tvm.common.file_seal import Part, append_seal
from ibert_tvm.relay_passes.passes import IntegerProgram
from ibert_tvm.targets import TargetError, export
from ibert_tvm.targets.export import ALIGNMENT
from ibert_tvm.targets.machines.x86_64 import X86_64
from ibert_tvm.targets.weights import METADATA_SECTION, WEIGHTS_SECTION, weight_rows
from tests.rpc.small_model import small_model
from tests.snapshots import Messages
from tests.targets.encoder_library import METADATA, Build, build_program


@pytest.fixture(scope="module")
def build() -> Build:
    """One matrix product for plain x86-64: nearly every test here exports it anew."""
    model = small_model()
    return build_program(IntegerProgram(model.module, model.parameters), "x86-64")


@pytest.fixture(scope="module")
def library(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It, exported."""
    return build.export(tmp_path_factory.mktemp("export") / "model.so")


def section(path: Path, name: str) -> tuple[bytes, int, int]:
    """Content, address and alignment of a section."""
    with path.open("rb") as stream:
        found = ELFFile(stream).get_section_by_name(name)
        return found.data(), found["sh_addr"], found["sh_addralign"]


def metadata_of(path: Path) -> dict:
    return json.loads(section(path, METADATA_SECTION)[0].decode("utf-8"))


# -- contents ------------------------------------------------------------------------------------


def test_metadata_is_readable_without_running_the_library(library: Path) -> None:
    document = metadata_of(library)
    parameters = document.pop("parameters")
    assert document == METADATA
    assert [row["offset"] % ALIGNMENT for row in parameters] == [0] * len(parameters)


def test_every_weight_is_there_once_and_aligned(build: Build, library: Path) -> None:
    data, address, alignment = section(library, WEIGHTS_SECTION)
    assert address % ALIGNMENT == 0 and alignment >= ALIGNMENT
    rows = metadata_of(library)["parameters"]
    assert [row["name"] for row in rows] == list(build.parameters)
    end = 0
    for row, array in zip(rows, build.parameters.values(), strict=True):
        assert (row["dtype"], row["shape"]) == (str(array.dtype), list(array.shape))
        assert row["offset"] == end
        stored = np.frombuffer(data, row["dtype"], array.size, row["offset"])
        np.testing.assert_array_equal(stored.reshape(row["shape"]), array)
        end = row["offset"] + -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    assert len(data) >= end
    assert len(data) - end < 64, "weights are stored more than once"


def test_symbols_give_the_weights_to_whoever_loads_it(library: Path) -> None:
    data, _, _ = section(library, WEIGHTS_SECTION)
    loaded = ctypes.CDLL(str(library))
    size = ctypes.c_uint64.in_dll(loaded, "ibert_weights_size").value
    first = ctypes.c_byte.in_dll(loaded, "ibert_weights")
    assert ctypes.addressof(first) % ALIGNMENT == 0
    assert ctypes.string_at(ctypes.addressof(first), size) == data[:size]
    text, _, _ = section(library, METADATA_SECTION)
    start = ctypes.addressof(ctypes.c_byte.in_dll(loaded, "ibert_metadata"))
    assert ctypes.string_at(start, len(text)) == text


def test_it_is_an_ordinary_module_of_the_runtime(build: Build, library: Path) -> None:
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(library)), tvm.cpu())
    inputs = [np.full((1, 5), 7, "int32"), np.ones((1, 5), "int32")]
    arrays = [tvm.runtime.tensor(array) for array in (*inputs, *build.parameters.values())]
    in_memory = relax.VirtualMachine(build.executable, tvm.cpu())
    got, want = machine["main_b1_s5"](*arrays).numpy(), in_memory["main_b1_s5"](*arrays).numpy()
    assert np.unique(want).size > 3
    np.testing.assert_array_equal(got, want)


def test_weights_are_laid_out_in_order_without_overlap() -> None:
    arrays = {
        "a": np.zeros(3, "int8"),
        "b": np.zeros((16, 4), "int8"),
        "empty": np.zeros(0, "int32"),
        "c": np.zeros((5, 5), "int64"),
        "d": np.zeros(1, "int32"),
    }
    rows, size = weight_rows(arrays, ALIGNMENT)
    assert [(row.name, row.offset) for row in rows] == [
        ("a", 0),
        ("b", 64),
        ("empty", 128),
        ("c", 128),
        ("d", 384),
    ]
    assert size == 448
    assert rows[3].to_json() == {"name": "c", "dtype": "int64", "shape": [5, 5], "offset": 128}
    assert weight_rows({}, ALIGNMENT) == ((), 0)


def test_the_section_of_a_program_without_weights_is_not_empty(
    build: Build, tmp_path: Path
) -> None:
    path = build.export(tmp_path / "model.so", parameters={})
    assert section(path, WEIGHTS_SECTION)[0].startswith(bytes(ALIGNMENT))


def test_a_transposed_weight_is_stored_in_the_order_of_its_indices(
    build: Build, tmp_path: Path
) -> None:
    weight = np.arange(12, dtype="int16").reshape(3, 4).T
    path = build.export(tmp_path / "model.so", parameters={"w": weight})
    data, _, _ = section(path, WEIGHTS_SECTION)
    np.testing.assert_array_equal(np.frombuffer(data, "int16", 12).reshape(4, 3), weight)


# -- where it is written -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ['-o, a "größe"\\ $X %25.so', "with space.so"])
def test_any_file_name_will_do(build: Build, tmp_path: Path, name: str) -> None:
    folder = tmp_path / f"in {name}"
    folder.mkdir()
    assert metadata_of(build.export(folder / name))["note"] == METADATA["note"]
    assert [path.name for path in folder.iterdir()] == [name]


def test_a_relative_path_is_relative_to_the_working_directory(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    build.export(Path("model.so"))
    assert [path.name for path in tmp_path.iterdir()] == ["model.so"]


def test_a_directory_that_does_not_exist_is_an_error(
    build: Build, tmp_path: Path, messages: Messages
) -> None:
    path = tmp_path / "missing" / "model.so"
    with messages.raises(TargetError):
        build.export(path)


def test_a_directory_that_cannot_be_written_is_an_error(build: Build, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(TargetError) as caught:
            build.export(tmp_path / "model.so")
    finally:
        tmp_path.chmod(0o700)
    assert caught.value.why == "Permission denied"


def test_a_refused_directory_is_an_error_for_root_too(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    def refuse(*_args: object, **_kwargs: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    path = tmp_path / "model.so"
    with messages.raises(TargetError):
        build.export(path)


# -- failures leave what was there ---------------------------------------------------------------

PREVIOUS = b"the previous library"


@pytest.fixture
def existing(tmp_path: Path) -> Path:
    """A file at the output path, which must survive every failure."""
    path = tmp_path / "model.so"
    path.write_bytes(PREVIOUS)
    append_seal(path, [Part("all", 0, len(PREVIOUS))])
    return path


def refused(build: Build, path: Path, **changes: object) -> TargetError:
    """Export must fail, leave the existing file, and leave nothing else."""
    with pytest.raises(TargetError) as caught:
        build.export(path, **changes)
    assert path.read_bytes().startswith(PREVIOUS)
    assert [found.name for found in path.parent.iterdir()] == [path.name]
    return caught.value


def test_an_existing_file_is_replaced_by_a_complete_one(build: Build, existing: Path) -> None:
    inode = existing.stat().st_ino
    build.export(existing)
    assert metadata_of(existing)["note"] == METADATA["note"]
    assert existing.stat().st_ino != inode, "a process that has the old file mapped would crash"


def test_no_compiler(
    build: Build, existing: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "")
    messages.check(str(refused(build, existing)))


def script(folder: Path, text: str) -> str:
    folder.mkdir()
    path = folder / "fake-cc"
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def test_an_assembler_that_fails(
    build: Build, existing: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch, messages
) -> None:
    broken = script(tmp_path_factory.mktemp("tools") / "bin", "echo no assembler here >&2; exit 3")
    monkeypatch.setenv("CC", f"{broken} -m64")
    messages.check(str(refused(build, existing)), compiler=broken)
    silent = script(tmp_path_factory.mktemp("tools") / "bin", "exit 3")
    monkeypatch.setenv("CC", silent)
    assert refused(build, existing).why == "exit status 3"


def test_a_linker_that_fails(
    build: Build, existing: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch, messages
) -> None:
    text = 'case "$1" in -shared) echo "ld: cannot find crti.o"; exit 1;; esac\nexec gcc "$@"'
    broken = script(tmp_path_factory.mktemp("tools") / "bin", text)
    monkeypatch.setenv("CC", broken)
    messages.check(str(refused(build, existing)), compiler=broken)


def test_a_library_for_another_processor(build: Build, existing: Path, messages: Messages) -> None:
    other = replace(build.target, machine=replace(X86_64, elf_machine="EM_AARCH64"))
    messages.check(str(refused(build, existing, description=other)))


def test_a_full_disk(build: Build, existing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(export, "write_weights", full)
    error = refused(build, existing)
    assert (error.what, error.why) == (f"cannot write {existing}", "No space left on device")


def test_a_directory_in_the_place_of_the_file(
    build: Build, tmp_path: Path, messages: Messages
) -> None:
    path = tmp_path / "model.so"
    path.mkdir()
    (path / "theirs").touch()
    with messages.raises(OutputError):
        build.export(path)
    assert [found.name for found in tmp_path.iterdir()] == ["model.so"]
