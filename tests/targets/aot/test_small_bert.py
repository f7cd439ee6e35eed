"""A whole small BERT without runtime: bit for bit what the specification says."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import ibert_tvm as ibert
from ibert_tvm.runtime.library_file import read_metadata
from tests.processes import PATIENCE, run_captured
from tests.targets.aot.bare_bert import SHAPES, assert_equal, expected, inputs_of
from tests.targets.aot.c_interface import Caller


@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_bit_exact_in_an_arena_that_just_holds_it(
    quantized, compiled, library_path: Path, shape: tuple[int, int], padding: bool
) -> None:
    nbytes = compiled.bare.arena_bytes[shape]
    try:
        caller = Caller(library_path, nbytes)
    except AssertionError:  # smaller than the smallest shape needs: cannot be
        pytest.fail("ibert_init refuses the arena of a compiled shape")
    inputs = inputs_of(*shape, seed=shape[1], padding=padding)
    want = expected(quantized, inputs)
    assert_equal(caller.run(inputs), want)
    # The arena holds what the last call left; arrays are aligned to their type, no more.
    assert_equal(caller.run(inputs, offset=1), want)
    assert_equal(Caller(library_path, nbytes, fill=0xFF).run(inputs, offset=3), want)


def test_one_library_serves_all_shapes_with_one_copy_of_the_weights(
    compiled, library_path: Path
) -> None:
    metadata = read_metadata(library_path)
    assert metadata.runtime == "none"
    assert [(f.batch, f.seq_len) for f in metadata.functions] == sorted(SHAPES)
    assert all(
        f.arena_bytes == compiled.bare.arena_bytes[f.batch, f.seq_len] for f in metadata.functions
    )
    assert any(f.packed for f in metadata.functions)
    total = sum(array.nbytes for array in compiled.parameters.values())
    padding = 64 * len(compiled.parameters)
    assert total <= metadata.weight_bytes <= total + padding
    assert metadata.file_bytes < total + padding + 400_000


def test_the_library_runs_like_any_other(quantized, library_path: Path) -> None:
    """`load_library` pads, cuts batches into calls, and gives views of the parameters."""
    library = ibert.load_library(library_path)
    inputs = inputs_of(5, 12, seed=1, padding=False)
    outputs = library.run(**inputs, dequantize=False)
    assert_equal([output.values for output in outputs.values()], expected(quantized, inputs))
    assert set(library.parameters) == {record.name for record in library.metadata.parameters}


def test_its_own_threads_run_its_kernels(quantized, library_path: Path) -> None:
    inputs = inputs_of(2, 16, seed=4, padding=True)
    for threads in (2, 1, 3):
        library = ibert.load_library(library_path, num_threads=threads)
        assert library.num_threads == threads
        outputs = library.run(**inputs, dequantize=False)
        assert_equal([output.values for output in outputs.values()], expected(quantized, inputs))
    assert library.engine.pool.started() == 2


def test_threads_with_contexts_of_their_own_do_not_meet(
    quantized, compiled, library_path: Path
) -> None:
    nbytes = max(compiled.bare.arena_bytes.values())
    problems: list[str] = []
    started = threading.Barrier(2)

    def work(index: int) -> None:
        try:
            caller = Caller(library_path, nbytes)
            shape = SHAPES[index]
            cases = [inputs_of(*shape, seed=10 * index + i, padding=i % 2 == 1) for i in range(3)]
            wanted = [expected(quantized, case) for case in cases]
            started.wait(timeout=PATIENCE)
            for turn in range(30):
                assert_equal(caller.run(cases[turn % 3]), wanted[turn % 3])
        except BaseException as error:
            problems.append(f"{index}: {error!r}")
            started.abort()

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_a_process_needs_nothing_but_the_library(quantized, library_path: Path) -> None:
    """Python's standard library alone runs it, and gives the numbers of the specification."""
    example = Path(__file__).parents[3] / "examples" / "python_ctypes" / "embed.py"
    ids = [7, 21, 60, 4]
    done = run_captured(
        [sys.executable, "-I", "-S", str(example), str(library_path), *map(str, ids)]
    )
    assert done.returncode == 0, done.stderr
    inputs = {
        "input_ids": np.array([ids], "int32"),
        "attention_mask": np.ones((1, 4), "int32"),
        "token_type_ids": np.zeros((1, 4), "int32"),
    }
    names = [record.name for record in read_metadata(library_path).outputs]
    scales = [record.scale for record in read_metadata(library_path).outputs]
    lines = done.stdout.splitlines()
    for index, (name, want, scale) in enumerate(
        zip(names, expected(quantized, inputs), scales, strict=True)
    ):
        assert lines[2 * index].startswith(f"{name}: ")
        values = ", ".join(f"{value:.5f}" for value in want.ravel()[:8] * scale)
        assert lines[2 * index + 1].strip() == values
