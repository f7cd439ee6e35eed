"""A library is what its file holds, whatever its path held before."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
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
from ibert_tvm.runtime.mapping import LibraryFile, SharedObject
from ibert_tvm.runtime.plain_engine import PlainEngine
from ibert_tvm.targets.seal import seal_library
from tests.arm.tools import board
from tests.processes import run_captured
from tests.rpc.small_model import expected, inputs_of, small_model
from tests.runtime.conftest import TinyModel

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


def is_open(path: Path) -> bool:
    descriptors = Path("/proc/self/fd").iterdir()
    return str(path) in (os.readlink(one) for one in descriptors if one.is_symlink())


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


@pytest.mark.representatives(1)
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
    tmp_path: Path, others: list[Path]
) -> None:
    """In a process that ends at once: the dynamic linker would run what is in the file now."""
    path, new = tmp_path / "model.so", tmp_path / "new.so"
    shutil.copyfile(others[0], path)
    shutil.copyfile(others[1], new)
    script = (
        "import os, shutil, sys\n"
        "from ibert_tvm import load_library\n"
        "from ibert_tvm.common.errors import LibraryError\n"
        "path, new, other = sys.argv[1:]\n"
        "first = load_library(path)\n"
        "shutil.copyfile(new, path)\n"  # the same file, other bytes
        "try:\n"
        "    load_library(path)\n"
        "except LibraryError as error:\n"
        "    print(error.why, error.todo, sep='\\n')\n"
        "os.replace(new, path)\n"
        "with load_library(path) as library:\n"
        "    print(library.parameters['table'].shape[1])\n"
        "print(first.close(), flush=True)\n"
        "os._exit(0)\n"
    )
    command = [sys.executable, "-c", script, *map(str, (path, new, others[2]))]
    done = run_captured(command, check=True)
    assert done.stdout.splitlines() == [
        "its file is mapped already, and was overwritten since with another library",
        "write the new one beside it and move it there (mv, os.replace)",
        "3",
        "its file was overwritten, and unmapping would run what is in it now",
    ]


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
    with closing(LibraryFile(metadata)) as file:
        put(others[1], path)
        assert file.path.read_bytes() == others[0].read_bytes()
        assert seal_digest(file.path) == metadata.digest != seal_digest(path)
    assert not file.path.exists()


def without_runtime(path: Path, target: str) -> Path:
    compile_model(small_model(), target, shapes=[(1, 8)], runtime="none").export(path)
    return put_new(path, path)


@pytest.mark.representatives(1)
@pytest.mark.parametrize(
    "kind", ["tvm", "plain", pytest.param("emulated", marks=[pytest.mark.qemu, pytest.mark.slow])]
)
def test_closing_unmaps_or_says_why_not(tmp_path: Path, others: list[Path], kind: str) -> None:
    path, ids = tmp_path / "model.so", {"input_ids": IDS}
    options: dict[str, Any] = {"num_threads": 1}
    if kind == "tvm":
        put_new(others[0], path)
    else:
        ids = inputs_of(8, 1)
        without_runtime(path, "host" if kind == "plain" else board("rpi4").name)
        if kind == "emulated":
            options = {"emulate": True}
    emulated = kind == "emulated"
    library, again = (load_library(path, **options) for _ in range(2))
    expected = library.run(**ids)
    assert is_mapped(path) != emulated and is_open(path)
    assert bool(library.close()) != emulated
    assert is_mapped(path) != emulated and is_open(path)
    for name, array in again.run(**ids).items():  # one mapping, and somebody has it
        np.testing.assert_array_equal(array, expected[name])
    assert again.close() is None
    assert not is_mapped(path) and not is_open(path)


def held_up(function: Any, entered: threading.Event, go_on: threading.Event) -> Any:
    def held(*arguments: Any) -> Any:
        entered.set()
        go_on.wait()
        return function(*arguments)

    return held


def test_closing_waits_for_a_call_and_unmaps(tmp_path: Path, others: list[Path]) -> None:
    path = put_new(others[0], tmp_path / "model.so")
    library = load_library(path, num_threads=1)
    entered, go_on = threading.Event(), threading.Event()
    with library.contexts.lent() as context:  # the one that the call below gets, too
        functions = context.functions
    del context
    functions["main_b1_s8"] = held_up(functions["main_b1_s8"], entered, go_on)
    with ThreadPoolExecutor() as pool:
        running = pool.submit(library.run, IDS)
        entered.wait()
        closing = pool.submit(library.close)
        del functions
        time.sleep(0.05)
        assert not closing.done() and is_mapped(path)
        go_on.set()
        assert running.result()["embedding"].shape == (1, 4)
    assert closing.done() and not is_mapped(path)


def test_views_of_parameters_keep_the_mapping(tmp_path: Path, others: list[Path]) -> None:
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
