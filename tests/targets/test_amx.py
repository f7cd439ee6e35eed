"""Tiles of x86 processors (AMX): the real instructions read, the same in plain C run."""

from __future__ import annotations

import ctypes
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ibert_tvm.targets.library_audit import audit_library
from ibert_tvm.targets.linking import Tools
from ibert_tvm.targets.microkernels import microkernel_sources, write_microkernels
from ibert_tvm.targets.processors.x86 import X86_AMX
from tests.processes import run_captured
from tests.twins import tiles_in_plain_c

TILES = ("ldtilecfg", "tileloadd", "tdpbusd", "tilestored", "tilerelease")
# Rows and columns that are less than a tile, one, a part of a second, two, and more; depths of
# less than a tile, of whole ones, and of both; rows of which the depth is a run.
SIZES = (
    *((rows, 32, 64, 32, 64) for rows in (1, 15, 16, 17, 31, 32, 33, 64, 70)),
    *((17, columns, 128, columns + 5, 130) for columns in (16, 32, 48, 64)),
    *((33, 48, depth, 48, 200) for depth in (4, 32, 60, 64, 68, 128, 196)),
)
# What a processor refuses: each breaks off the program.
REFUSED = {
    "another palette": "shapes.palette = 2; set_up(&all, &shapes);",
    "17 rows": "shapes.rows[0] = 17; set_up(&all, &shapes);",
    "65 bytes": "shapes.bytes[4] = 65; set_up(&all, &shapes);",
    "rows of nothing": "shapes.bytes[4] = 0; set_up(&all, &shapes);",
    "a ninth tile": "shapes.rows[8] = shapes.bytes[8] = 4; set_up(&all, &shapes);",
    "a tile that is not there": "shapes = shapes_of(3, 0, 8); set_up(&all, &shapes); "
    "move(&all, 5, all.of[0].bytes[0], 64, 1);",
    "sums of other rows": "shapes = shapes_of(3, 2, 8); set_up(&all, &shapes); "
    "multiply(&all, 2, 4, 6);",
    "another depth": "shapes.bytes[4] = 12; set_up(&all, &shapes); multiply(&all, 0, 4, 6);",
}
_PROGRAM = """
#include "{source}"
int main(void) {{
    tile_shapes shapes = shapes_of(3, 0, 8);
    tiles all;
    set_up(&all, &shapes);
    multiply(&all, 0, 4, 6);
    {statement}
    return 7;
}}
"""


@pytest.fixture(scope="module")
def in_plain_c(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., int]:
    twin, folder = tiles_in_plain_c(), tmp_path_factory.mktemp("tiles")
    library = folder / "tiles.so"
    arguments = ["-shared", "-o", str(library), *write_microkernels(twin, folder)]
    Tools(twin).compile(arguments, folder, "cannot link")
    return ctypes.CDLL(str(library)).ibert_mk_tdpbusd


@pytest.mark.parametrize("extreme", [False, True], ids=["random", "extreme"])
def test_products_of_all_sizes(extreme: bool, in_plain_c: Callable[..., int]) -> None:
    random = np.random.default_rng(0)
    for rows, columns, depth, stride, length in SIZES:
        a = random.integers(0, 256, (rows, length)).astype("uint8")
        weight = random.integers(-128, 128, (columns, depth)).astype("int8")
        if extreme:
            a[:], weight[:] = 255, -128
        c = random.integers(-(2**20), 2**20, (rows, stride)).astype("int32")
        expected = c.copy()
        expected[:, :columns] += a[:, :depth].astype("int32") @ weight.T.astype("int32")
        packed = weight.reshape(columns // 16, 16, depth // 4, 4).transpose(0, 2, 1, 3).copy()
        places = (array.ctypes.data_as(ctypes.c_void_p) for array in (a, packed, c))
        assert in_plain_c(*places, rows, columns, depth, stride, length, 16 * depth) == 0
        np.testing.assert_array_equal(c, expected, err_msg=f"{rows}x{columns}x{depth}")


@pytest.mark.parametrize("statement", [*REFUSED.values(), ""], ids=[*REFUSED, "nothing wrong"])
def test_plain_c_refuses_what_the_processor_refuses(statement: str, tmp_path: Path) -> None:
    (source,) = microkernel_sources(X86_AMX)
    program = tmp_path / "program.c"
    program.write_text(_PROGRAM.format(source=source, statement=statement), encoding="utf-8")
    words = [*Tools(X86_AMX).compiler, "-DIBERT_PLAIN_C", str(program), "-o", "program"]
    run_captured(words, cwd=tmp_path, check=True)
    code = run_captured([str(tmp_path / "program")]).returncode
    assert (code < 0) == bool(statement), code
    assert code == 7 or statement


@pytest.mark.parametrize("compiler", ["gcc", "clang", "clang-14"])
def test_the_real_form_is_instructions_on_tiles_of_bytes(
    compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    monkeypatch.setenv("IBERT_CC_X86_AMX", compiler)
    (path,) = map(Path, write_microkernels(X86_AMX, tmp_path))
    assert audit_library(path, X86_AMX).findings == ()
    listing = run_captured(["objdump", "-d", "-M", "intel", str(path)], check=True).stdout
    assert set(re.findall(r"\b(?:\w*tile\w*|tdp\w+)\b(?=\s)", listing)) - {"tiles"} == {*TILES}
    # Four sums of two tiles of rows by two of columns, each operand loaded once.
    assert len(re.findall(r"tdpbusd tmm[0-3],tmm[45],tmm[67]", listing)) >= 4
    assert "arch_prctl" in run_captured(["nm", "-u", str(path)], check=True).stdout


def test_a_floating_point_instruction_on_tiles_is_found(tmp_path: Path) -> None:
    source = tmp_path / "tiles.s"
    source.write_text("f: tdpbusd %tmm1, %tmm2, %tmm3\n tdpbf16ps %tmm1, %tmm2, %tmm3\n ret\n")
    Tools(X86_AMX).compile(["-c", "tiles.s", "-o", "tiles.o"], tmp_path, "cannot assemble")
    (finding,) = audit_library(tmp_path / "tiles.o", X86_AMX).findings
    assert "tdpbf16ps" in finding


def test_weights_are_those_of_vnni() -> None:
    from ibert_tvm.targets.processors.x86 import VNNI_512

    shared = {"name": "", "tile_rows": 1, "tile_vectors": 1}
    assert replace(X86_AMX.dot, **shared) == replace(VNNI_512, **shared)


def test_sums_start_at_a_cache_line() -> None:
    import tvm

    from ibert_tvm.targets.pipeline import cpu_pipeline
    from tests.schedules.linear_kernels import linear_kernel, weight_of

    for target, alignment in ((X86_AMX, 64), (replace(X86_AMX, stack_alignment=16), 16)):
        kernel = linear_kernel(target, 64, weight_of(64, 64), "uint8")
        library = tvm.compile(
            tvm.IRModule({"kernel": kernel.with_attr("global_symbol", "kernel")}),
            target=tvm.target.Target(dict(target.tvm_target)),
            tir_pipeline=cpu_pipeline(replace(target, name=f"aligned-{alignment}")),
        )
        text = str(library.mod.inspect_source("ll"))
        sums = re.findall(r"alloca \[(\d+) x (?:i32|<16 x i32>)\], align (\d+)", text)
        assert [int(found) for _, found in sums] == [alignment]
