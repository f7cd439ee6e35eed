"""Cortex-M55: the matrix product with integer vectors, alone and in kernels, bit for bit."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm.script import from_source

from benchmarks.arm.counting import Counts
from ibert_tvm.schedules.finish import SCALAR_LOOPS
from ibert_tvm.schedules.intrinsics.whole_tiles import whole_tile_sources
from ibert_tvm.targets import TargetDescription
from ibert_tvm.targets.microkernels import compile_microkernels, microkernel_sources
from ibert_tvm.targets.processors.cortex_m import VMLADAVA
from tests.arm import bare_kernels, matrix_kernels, row_kernels
from tests.arm.qemu_board import run_kernel
from tests.arm.softmax_kernel import scheduled
from tests.arm.tools import board
from tests.cuda.attention_kernels import AttentionCase, attention_kernel
from tests.examples import examples

_CALL = """
#include <stdint.h>
typedef int32_t product(const int8_t *, const int8_t *, int32_t *, int32_t, int32_t, int32_t,
                        int32_t, int32_t, int32_t);
product ibert_mk_vmladava, ibert_mk_vmladava_set;
int32_t call(const int32_t *sizes, const int8_t *a, const int8_t *b, int32_t *c)
{
    const int32_t count = *sizes++;
    for (int32_t i = 0; i < count; i++, sizes += 5) {
        const int32_t rows = sizes[0], columns = sizes[1], depth = sizes[2], stride = sizes[3];
        const int32_t length = sizes[4];
        (i % 2 ? ibert_mk_vmladava_set : ibert_mk_vmladava)(a, b, c, rows, columns, depth, stride,
                                                            length, 4 * length);
        a += rows * length, b += columns * length, c += rows * stride;
    }
    return 0;
}
"""
# Row operations whose loops and arithmetic others have, or nearly: poolings, norms, one line each.
ALIKE = ("sqrt_mean_pool", "mean_pool", "max_pool", "last_token", "rotate_packed", "sigmoid")
ALIKE += ("rms_norm_wide", "rms_norm", "layer_norm_wide", "gelu_paper", "residual_add", "gate")
# Rows below, at and above the tile of four; depths below, at and above those of the unrolled loop;
# the last number is the length of the rows, of which the depth may be a run.
DEPTHS = (16, 32, 48, 64, 112, 128, 240, 272, 384)
SIZES = (
    *((rows, 4, 16, 4, 16) for rows in range(1, 10)),
    *((4, columns, 48, columns + 3, 48) for columns in (4, 8, 64)),
    *((rows, 12, depth, 12, depth) for rows in (3, 4, 6) for depth in DEPTHS),
    *((rows, 12, depth, 12, 64) for rows in (1, 4, 6) for depth in (16, 32, 48)),
)


@pytest.fixture(scope="module")
def m55() -> TargetDescription:
    return board("cortex-m55")


def packed(weight: np.ndarray) -> np.ndarray:
    """[N, K] as the instruction's layout has it."""
    columns, depth = weight.shape
    return weight.reshape(columns // 4, 4, depth // 16, 16).transpose(0, 2, 1, 3).copy()


def operands(
    sizes: tuple[int, int, int, int, int], seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows, columns, _depth, stride, length = sizes
    random = np.random.default_rng(seed)
    a = random.integers(-128, 128, (rows, length)).astype("int8")
    weight = random.integers(-128, 128, (columns, length)).astype("int8")
    if seed % 3 == 0:  # the largest products there are
        a[:], weight[:] = -128, -128
    c = random.integers(-(2**20), 2**20, (rows, stride)).astype("int32")
    return a, weight, c


def expected(
    a: np.ndarray, weight: np.ndarray, c: np.ndarray, depth: int, adds: bool = True
) -> np.ndarray:
    """Entries between the rows of the result stay as they are."""
    result, a, weight = c.copy(), a[:, :depth], weight[:, :depth]
    before = result[:, : len(weight)] if adds else 0
    result[:, : len(weight)] = before + a.astype("int32") @ weight.astype("int32").T
    return result


@pytest.mark.parametrize("form", ["vectors", "plain C"])
def test_the_microkernel_multiplies(form: str, m55: TargetDescription, tmp_path: Path) -> None:
    source = tmp_path / "call.c"
    source.write_text(_CALL)
    code = microkernel_sources(m55) if form == "plain C" else compile_microkernels(m55).values()
    every = [sizes for sizes in SIZES for _adds in (True, False)]
    cases = [operands(sizes, seed) for seed, sizes in enumerate(every)]
    table = np.array([len(every), *np.ravel(every)], "int32")
    a, b, c = (
        np.concatenate([part.ravel() for part in parts])
        for parts in zip(*((a, packed(w), c) for a, w, c in cases), strict=True)
    )
    flags = ["-DIBERT_PLAIN_C"] if form == "plain C" else []
    run = run_kernel(m55, [source, *code], "call", [table, a, b, c], flags=flags)
    parts = [
        expected(*case, sizes[2], adds=place % 2 == 0).ravel()
        for place, (case, sizes) in enumerate(zip(cases, every, strict=True))
    ]
    want = np.concatenate(parts)
    np.testing.assert_array_equal(run.arrays[3], want)


def test_products_are_vector_instructions(m55: TargetDescription) -> None:
    _, counts = bare_kernels.run(matrix_kernels.linear(m55, 8, 48, 12), m55)
    # LLVM's disassembler has shorter names for VMLADAVA and VMLADAV.
    sums = 8 * 12
    assert counts.by_mnemonic["vmlava.s8"] == sums * 48 / 16 - sums
    assert counts.by_mnemonic["vmlav.s8"] == sums
    assert "memset" not in counts.by_symbol


@pytest.mark.representatives(3)
@pytest.mark.parametrize("sizes", SIZES[:14])
def test_the_description_is_the_product(sizes: tuple[int, int, int, int, int]) -> None:
    rows, columns, depth, *_ = sizes
    description, implementation, _ = whole_tile_sources(VMLADAVA, rows, columns, depth)
    assert "ibert_mk_vmladava" in implementation
    text = re.sub(r", strides=\[T.int32\(\), .*?\]", "", description)
    module = tvm.IRModule({"main": from_source(text).with_attr("global_symbol", "main")})
    a, weight, c = operands((rows, columns, depth, columns, depth), 1)
    arrays = [tvm.runtime.tensor(array) for array in (a, packed(weight), c)]
    tvm.compile(module, target="llvm")["main"](*arrays)
    np.testing.assert_array_equal(arrays[2].numpy(), expected(a, weight, c, depth))


# Rows, depths and columns that neither tile nor vector divides; both tails, and whole tiles.
@pytest.mark.representatives(1)
@pytest.mark.parametrize(
    ("rows", "depth", "columns"),
    examples([(1, 16, 4), (7, 20, 5), (9, 48, 66)], (7, 20, 5), (9, 48, 66), unpack=True),
)
@pytest.mark.parametrize(
    "epilogue", examples(["none", "requantise", "gelu", "residual"], "gelu", "residual")
)
def test_linear_layers(
    rows: int, depth: int, columns: int, epilogue: str, m55: TargetDescription
) -> None:
    _check(matrix_kernels.linear(m55, rows, depth, columns, epilogue=epilogue), m55)


@pytest.mark.slow
@pytest.mark.representatives(1)
@pytest.mark.parametrize(
    ("seq_len", "heads", "head_dim", "masked"),
    examples(
        [(16, 2, 16, 3), (9, 1, 20, 0), (32, 1, 32, 31)], (16, 2, 16, 3), (9, 1, 20, 0), unpack=True
    ),
)
def test_attention(
    seq_len: int, heads: int, head_dim: int, masked: int, m55: TargetDescription
) -> None:
    _check(matrix_kernels.attention(m55, 1, seq_len, heads, head_dim, masked=masked), m55)


@pytest.mark.slow
@pytest.mark.parametrize("seq_len", examples([6, 10, 14, 18], 10))
def test_probabilities_of_keys_that_fill_no_vector(seq_len: int, m55: TargetDescription) -> None:
    """LLVM has to survive the keys that pad the last vector, which are known where they lie."""
    case = AttentionCase(seq_len=seq_len, heads=2, head_dim=8, preset="paper", mask="")
    kernel = attention_kernel(m55, case)
    _check(
        row_kernels.RowKernel("published", kernel.func, kernel.inputs, [kernel.expected], 1), m55
    )


@pytest.mark.representatives(1)
@pytest.mark.parametrize(
    ("name", "channels"),
    examples(
        [(name, channels) for name in row_kernels.KERNELS for channels in (24, 13)],
        *((name, 13) for name in row_kernels.KERNELS if name not in ALIKE),
        unpack=True,
    ),
)
def test_row_operations(name: str, channels: int, m55: TargetDescription) -> None:
    _check(row_kernels.KERNELS[name](m55, 5, channels), m55)


@pytest.mark.parametrize("name", ["layer_norm_wide", "mean_pool"])
def test_products_of_64_bits_are_vector_instructions(name: str, m55: TargetDescription) -> None:
    kernel = row_kernels.KERNELS[name](m55, 5, 24)
    assert SCALAR_LOOPS not in scheduled(kernel, m55).attrs
    counts = _check(kernel, m55)
    assert counts.by_mnemonic["vmulh.s32"] >= 24 // 4


def test_epilogues_of_inlined_stages_with_bindings_compile(m55: TargetDescription) -> None:
    _check(row_kernels.KERNELS["gelu_paper"](m55, 5, 24), m55)


def _check(kernel: row_kernels.RowKernel, target: TargetDescription) -> Counts:
    """Equal to the specification, and no floating-point instruction executed."""
    outputs, counts = bare_kernels.run(kernel, target)
    for output, want in zip(outputs, kernel.outputs, strict=True):
        np.testing.assert_array_equal(output, want)
    assert (counts.floating_point, counts.unknown) == (0, 0)
    return counts


@pytest.mark.slow
def test_a_linear_layer_needs_no_more_instructions_than_cmsis_nn(m55: TargetDescription) -> None:
    """128x384 -> 384 with bias and requantisation: 3.93M by CMSIS-NN."""
    kernel = matrix_kernels.linear(m55, 128, 384, 384)
    outputs, counts = bare_kernels.run(kernel, m55)
    np.testing.assert_array_equal(outputs[0], kernel.outputs[0])
    assert counts.instructions <= 3_930_000
