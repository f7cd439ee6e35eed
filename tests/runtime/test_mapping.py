"""A library is what its file holds, whatever its path held before."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ibert_tvm import compile as compile_model
from ibert_tvm import load_library, run
from ibert_tvm.common.errors import LibraryError
from ibert_tvm.common.file_seal import seal_digest, sealed_bytes
from ibert_tvm.runtime.library import Library
from ibert_tvm.runtime.library_file import read_metadata
from ibert_tvm.runtime.mapping import LibraryFile, SharedObject, opened
from ibert_tvm.runtime.plain_engine import PlainEngine
from ibert_tvm.targets.seal import seal_library
from tests.rpc.small_model import expected, inputs_of, small_model
from tests.runtime.conftest import TinyModel
from tests.snapshots import Messages

IDS = np.array([[2, 4, 6, 3]])


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Libraries whose outputs differ."""
    folder = tmp_path_factory.mktemp("others")
    kinds = [TinyModel(shapes=((1, 8),), channels=channels) for channels in (4, 3, 2)]
    return [kind.build(folder / f"{kind.channels}.so") for kind in kinds]


def channels_of(library: Library) -> int:
    """What tells the models apart: parameters, code and metadata have to agree to give it."""
    table, outputs = library.parameters["table"], library.run(IDS, dequantize=False)
    assert table.shape[1] == outputs["embedding"].values.shape[1]
    ids_sum = table[IDS[0]].astype(np.int32).sum(axis=0)
    bias = library.parameters["bias"] * IDS.size
    np.testing.assert_array_equal(outputs["embedding"].values[0], ids_sum + bias)
    return int(table.shape[1])


def is_mapped(path: Path) -> bool:
    status = path.stat()
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return any(line.split()[4] == str(status.st_ino) for line in maps if str(path) in line)


def put(content: Path, path: Path) -> Path:
    """Replace a file, as an export does."""
    copy = path.with_name("copy")
    shutil.copy(content, copy)
    return copy.replace(path)


def put_new(content: Path, path: Path) -> Path:
    """The same with a digest that no other library of this process has."""
    copy = path.with_name("copy")
    copy.write_bytes(content.read_bytes()[: sealed_bytes(content)] + os.urandom(8))
    seal_library(copy)
    return copy.replace(path)


@pytest.mark.parametrize("closed", [True, False])
def test_a_replaced_library_is_the_new_one(
    tmp_path: Path, others: list[Path], closed: bool
) -> None:
    kept = []
    for content, channels in zip(others, (4, 3, 2), strict=True):
        library = load_library(put(content, tmp_path / "model.so"))
        assert channels_of(library) == channels
        if closed:
            library.close()
        kept.append(library)
    if not closed:
        assert [channels_of(library) for library in kept] == [4, 3, 2]


@pytest.mark.slow
def test_a_replaced_library_without_runtime_is_the_new_one(tmp_path: Path) -> None:
    first, given = small_model(), inputs_of(8, 1)
    second = replace(
        first, parameters={**first.parameters, "table": first.parameters["table"][::-1].copy()}
    )
    for model in (first, second):
        path = tmp_path / "model.so"
        compile_model(model, "host", shapes=[(1, 8)], runtime="none").export(path)
        with load_library(path) as library:
            assert isinstance(library.engine, PlainEngine)
            got = library.run(**given, dequantize=False)["hidden"].values
            np.testing.assert_array_equal(got, expected(model, given))
        assert not is_mapped(path)
    assert not np.array_equal(expected(first, given), expected(second, given))


def test_run_by_path_takes_the_new_one(tmp_path: Path, others: list[Path]) -> None:
    path = tmp_path / "model.so"
    sizes = [run(put(content, path), input_ids=IDS)["embedding"].shape[1] for content in others]
    assert sizes == [4, 3, 2]


def test_a_library_that_was_overwritten_while_mapped_is_refused(
    tmp_path: Path, others: list[Path], messages: Messages
) -> None:
    path = tmp_path / "model.so"
    first = load_library(put_new(others[0], path))
    shutil.copyfile(put_new(others[1], tmp_path / "new.so"), path)  # the same file, other bytes
    with messages.raises(LibraryError):
        load_library(path)
    put(others[2], path)
    with load_library(path) as library:
        assert channels_of(library) == 2
    first.close()  # leaves it mapped: to unmap it would run what was written over its code


def test_a_library_that_changes_between_reading_and_mapping_is_refused(
    tmp_path: Path, others: list[Path]
) -> None:
    path = put(others[0], tmp_path / "model.so")
    metadata = read_metadata(path)
    put(others[1], path)
    for use in (SharedObject, LibraryFile):
        with pytest.raises(LibraryError, match="why: another file took its place"):
            use(metadata)
    path.unlink()
    with pytest.raises(LibraryError, match="why: No such file or directory"):
        SharedObject(metadata)


def test_a_file_that_is_held_open_stays_the_same(tmp_path: Path, others: list[Path]) -> None:
    """As an emulator and a board are given it."""
    path = put(others[0], tmp_path / "model.so")
    metadata = read_metadata(path)
    with opened(metadata) as file:
        put(others[1], path)
        assert file.path.read_bytes() == others[0].read_bytes()
        assert seal_digest(file.path) == metadata.digest != seal_digest(path)
    assert not file.path.exists()


def test_closing_unmaps(tmp_path: Path, library_path: Path, others: list[Path]) -> None:
    load_library(library_path)  # the threads of the process run in this one or an earlier one
    path = put_new(others[0], tmp_path / "model.so")
    library = load_library(path)
    again = load_library(path)
    channels_of(library)
    assert is_mapped(path)
    library.close()
    assert is_mapped(path) and channels_of(again) == 4  # one mapping, and somebody has it
    again.close()
    assert not is_mapped(path)


def test_views_of_parameters_keep_the_mapping(
    tmp_path: Path, library_path: Path, others: list[Path]
) -> None:
    load_library(library_path)
    path = put_new(others[0], tmp_path / "model.so")
    with load_library(path) as library:
        table = library.parameters["table"]
        expected = table.copy()
        row = table[1:2]
    del table
    assert is_mapped(path)
    np.testing.assert_array_equal(row, expected[1:2])
    del row
    assert not is_mapped(path)


def test_a_closed_library_has_no_code(others: list[Path]) -> None:
    library = load_library(others[0])
    library.close()
    for use in (lambda: library.engine, lambda: library.parameters, lambda: library.run(IDS)):
        with pytest.raises(LibraryError, match="is closed"):
            use()
    assert library.device == "cpu"


def test_the_digest_stands_for_the_content(tmp_path: Path, others: list[Path]) -> None:
    digests: list[Any] = [read_metadata(path).digest for path in others]
    assert len(set(digests)) == 3 and all(len(digest) == 64 for digest in digests)
    copy = put(others[0], tmp_path / "copy.so")
    assert read_metadata(copy).digest == digests[0]
    copy.write_bytes(copy.read_bytes()[: sealed_bytes(copy)])
    assert seal_digest(copy) == ""
    empty = tmp_path / "empty"
    empty.touch()
    assert seal_digest(empty) == ""


def test_a_file_mapped_by_others_is_taken(tmp_path: Path, others: list[Path]) -> None:
    import tvm_ffi

    path = put_new(others[0], tmp_path / "model.so")
    module = tvm_ffi.load_module(os.fspath(path), keep_module_alive=False)
    with load_library(path) as library:
        assert channels_of(library) == 4
    assert is_mapped(path) and module is not None
