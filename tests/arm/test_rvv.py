"""64-bit RISC-V with vectors: the same bits on registers of any length, and none without them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm.script import from_source

import ibert_tvm as ibert
from ibert_tvm.schedules.intrinsics.whole_tiles import whole_tile_sources
from ibert_tvm.targets import TargetError
from ibert_tvm.targets.library_audit import audit_library
from ibert_tvm.targets.linking import Tools
from ibert_tvm.targets.microkernels import microkernel_sources
from ibert_tvm.targets.processors.riscv import RV64GCV, VWMACC
from tests.arm.linux_kernels import BoardKernels, run_function
from tests.arm.small_bert import expected, inputs, small_bert
from tests.arm.test_board_kernels import compare, compiled, matrix_kernels, row_kernels
from tests.arm.tools import board, run_library, with_vectors
from tests.snapshots import Messages

pytestmark = pytest.mark.qemu

# Bits of a register: parts of the microkernel's columns, all of them, and twice as many.
LENGTHS = (128, 256, 512)
LANES = VWMACC.lanes
_CALL = """
#include <stdint.h>
int32_t ibert_mk_vwmacc{form}(const int16_t *, const {type} *, int32_t *, int32_t, int32_t, int32_t,
                              int32_t, int32_t, int32_t);
int32_t call(const int32_t *sizes, const int16_t *a, const {type} *b, int32_t *c)
{{
    const int32_t count = *sizes++;
    for (int32_t i = 0; i < count; i++, sizes += 5) {{
        const int32_t rows = sizes[0], columns = sizes[1], depth = sizes[2], stride = sizes[3];
        const int32_t length = sizes[4];
        ibert_mk_vwmacc{form}(a, b, c, rows, columns, depth, stride, length, 32 * length);
        a += rows * length, b += columns * length, c += rows * stride;
    }}
    return 0;
}}
"""
# Rows below, at and above the tile of seven; depths below, at and above the unrolled loop; the last
# number is the length of the rows, of which the depth may be a run.
SIZES = (
    *((rows, 32, 9, 32, 9) for rows in range(1, 16)),
    *((rows, 64, 40, 67, 41) for rows in (1, 6, 32)),
    *((3, 32, depth, 35, 384) for depth in (1, 2, 3, 4, 5, 7, 8, 383, 384)),
)


def operands(
    sizes: tuple[int, ...], dtype: str, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Activations [rows, length], weights [columns, length] and sums [rows, stride]."""
    rows, columns, _depth, stride, length = sizes
    random, limits = np.random.default_rng(seed), np.iinfo(dtype)
    a = random.integers(-(2**15), 2**15, (rows, length)).astype("int16")
    weight = random.integers(limits.min, limits.max + 1, (columns, length)).astype(dtype)
    if seed % 3 == 0:  # the largest products there are, whose sums wrap
        a[:], weight[:] = -(2**15), limits.min
    return a, weight, random.integers(-(2**31), 2**31, (rows, stride)).astype("int32")


def packed(weight: np.ndarray) -> np.ndarray:
    """[N, K] as the microkernel reads it."""
    return weight.reshape(len(weight) // LANES, LANES, -1).transpose(0, 2, 1).copy()


def products(a: np.ndarray, weight: np.ndarray, c: np.ndarray, depth: int) -> np.ndarray:
    """Sums modulo 2^32; entries between the rows of the result stay as they are."""
    result = c.astype("int64")
    result[:, : len(weight)] += a[:, :depth].astype("int64") @ weight[:, :depth].astype("int64").T
    return result.astype("int32")


@pytest.mark.representatives(2)
@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize("form", [*LENGTHS, 1024, "plain C"])
def test_the_microkernel_multiplies(form: int | str, dtype: str, tmp_path: Path) -> None:
    plain = form == "plain C"
    board("rv64gcv")
    target = with_vectors(128 if plain else int(form))
    source = tmp_path / "call.c"
    suffix = "_short" if dtype == "int16" else ""
    source.write_text(_CALL.format(form=suffix, type=f"{dtype}_t"))
    cases = [operands(sizes, dtype, seed) for seed, sizes in enumerate(SIZES)]
    table = np.array([len(SIZES), *np.ravel(SIZES)], "int32")
    a, b, c = (
        np.concatenate([part.ravel() for part in parts])
        for parts in zip(*((a, packed(w), c) for a, w, c in cases), strict=True)
    )
    flags = ["-DIBERT_PLAIN_C"] if plain else []
    sources = [source, *microkernel_sources(target)]
    _, arrays = run_function(target, sources, "call", [table, a, b, c], flags)
    pairs = zip(cases, SIZES, strict=True)
    want = np.concatenate([products(*case, sizes[2]).ravel() for case, sizes in pairs])
    np.testing.assert_array_equal(arrays[3], want)


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_the_description_is_the_product(dtype: str) -> None:
    dot = replace(VWMACC, name=VWMACC.name if dtype == "int8" else VWMACC.short, rhs_dtype=dtype)
    for rows, columns, depth in ((1, 32, 5), (3, 64, 8), (7, 32, 33)):
        description, implementation, _ = whole_tile_sources(dot, rows, columns, depth)
        assert f'"ibert_mk_{dot.name}"' in implementation
        text = re.sub(r", strides=\[T.int32\(\), .*?\]", "", description)
        module = tvm.IRModule({"main": from_source(text).with_attr("global_symbol", "main")})
        a, weight, c = operands((rows, columns, depth, columns, depth), dtype, 1)
        c >>= 1
        tensors = (a, packed(weight)[..., None], c)
        arrays = [tvm.runtime.tensor(array) for array in tensors]
        tvm.compile(module, target="llvm")["main"](*arrays)
        np.testing.assert_array_equal(arrays[2].numpy(), products(a, weight, c, depth))


@pytest.fixture(scope="module")
def kernels() -> tuple[dict, BoardKernels]:
    """Linear layers, attention and row operations, compiled once for all lengths."""
    target = board("rv64gcv")
    every = {**matrix_kernels(target), **row_kernels(target)}
    return every, compiled(every, target)


@pytest.mark.slow(seconds=60)
@pytest.mark.parametrize("bits", LENGTHS)
def test_kernels_give_the_same_on_registers_of_any_length(
    bits: int, kernels: tuple[dict, BoardKernels]
) -> None:
    every, built = kernels
    built.emulate(with_vectors(bits).emulated)
    compare(every, built)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    board("rv64gcv")
    program = ibert.compile(small_bert(), target="rv64gcv", shapes=[(1, 13)])
    path = tmp_path_factory.mktemp("rv64gcv") / "model.so"
    return program.export(path, require_load=True)


@pytest.mark.slow
@pytest.mark.parametrize("bits", (*LENGTHS, 1024))
def test_a_model_gives_the_same_on_registers_of_any_length(bits: int, library: Path) -> None:
    model = small_bert()
    arrays = {name: inputs(1, 13, seed=5, tokens=9)[name] for name in model.input_names}
    outputs = run_library(library, with_vectors(bits), arrays)
    for got, want in zip(outputs.values(), expected(model, arrays), strict=True):
        np.testing.assert_array_equal(got, want)


def test_its_code_is_vectors_of_integers(library: Path) -> None:
    target = board("rv64gcv")
    assert audit_library(library, target).findings == ()
    listing = Tools(target).run(
        [Tools(target).binary("objdump"), "-d", "--no-show-raw-insn", str(library)], None, "", ""
    )
    used = set(re.findall(r"\t(v\w+)", listing))
    assert {"vwmacc", "vsext", "vnsrl", "vmax"} <= used
    # The length of registers, by which spilled ones lie on the stack, and how averages are rounded.
    assert set(re.findall(r"\tcsr\w+\t(.*)", listing)) >= {"vxrm,2"}
    assert re.search(r"\tcsrr\t\w+,vlenb", listing)
    assert not {name for name in used if re.match(r"vm?f(?!irst)", name)}


def test_a_processor_without_vectors_is_refused(
    library: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    monkeypatch.setattr("ibert_tvm.targets.host.cpu_features", lambda: frozenset("imafdc"))
    with messages.raises(TargetError):
        ibert.load_library(library)


@pytest.mark.slow
def test_without_vectors_its_code_is_an_illegal_instruction(library: Path) -> None:
    model = small_bert()
    arrays = {name: inputs(1, 13, seed=1)[name] for name in model.input_names}
    with pytest.raises(TargetError) as caught:
        run_library(library, board("rv64gcv"), arrays, processor="rv64")
    assert "an illegal instruction (SIGILL)" in caught.value.why


def test_the_kernel_tells_of_vectors() -> None:
    system = RV64GCV.machine.system
    word = sum(1 << ord(letter) - ord("a") for letter in "imafdcv")
    assert system.features([word, 0]) == frozenset(RV64GCV.required_features)
    assert "v" not in system.features([word & ~(1 << 21), 0])
