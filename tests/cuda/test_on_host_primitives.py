"""Warp operations of the stand-in GPU against the PTX ISA's definition of fragments, in NumPy.

The formulas are those of the PTX ISA, "Warp-level matrix instructions": a lane's ``groupID`` is
``lane >> 2`` and its ``threadID_in_group`` ``lane % 4``.
"""

from pathlib import Path

import numpy as np
import pytest

from tests.arm.tools import needs
from tests.cuda.stand_in_gpu import load, run_cuda

CAPABILITIES = (75, 80, 90)
LANES = np.arange(32)
GROUP, THREAD = LANES >> 2, LANES % 4


@pytest.fixture(autouse=True)
def _compiler():
    needs("g++")


def registers_of(elements: np.ndarray) -> np.ndarray:
    """32-bit registers [register, lane] of bytes [lane, register * 4], first byte lowest."""
    return np.ascontiguousarray(elements).astype(np.uint8).view(np.uint32).T


def fragment_a(matrix: np.ndarray) -> np.ndarray:
    """Registers of A [16, depth]: "Matrix Fragments for mma.m16n8k16", "... m16n8k32", 8-bit."""
    depth = matrix.shape[1]
    elements = np.zeros((32, depth // 2), matrix.dtype)
    for i in range(depth // 2):
        row = GROUP if i % 8 < 4 else GROUP + 8
        column = THREAD * 4 + (i & 3) + (16 if i >= 8 else 0)
        elements[:, i] = matrix[row, column]
    return registers_of(elements)


def fragment_b(matrix: np.ndarray) -> np.ndarray:
    """Registers of B [depth, 8]."""
    depth = matrix.shape[0]
    elements = np.zeros((32, depth // 4), matrix.dtype)
    for i in range(depth // 4):
        row = THREAD * 4 + (i & 3) + (16 if i >= 4 else 0)
        elements[:, i] = matrix[row, GROUP]
    return registers_of(elements)


def fragment_c(matrix: np.ndarray) -> np.ndarray:
    """Registers of C [16, 8], int32."""
    rows = [GROUP if i < 2 else GROUP + 8 for i in range(4)]
    return np.stack([matrix[rows[i], THREAD * 2 + (i & 1)] for i in range(4)])


MMA = Path(__file__).with_name("mma.cu").read_text(encoding="utf-8")


@pytest.mark.representatives(1)
@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("depth", [16, 32])
@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_mma(capability, depth, kind):
    random = np.random.default_rng(depth)
    bounds = np.iinfo(kind)
    source = MMA.replace("TYPE", f"{kind}_t").replace("DEPTH", str(depth))
    source = source.replace("[A]", f"[{depth // 8}]").replace("[B]", f"[{depth // 16}]")
    source = source.replace("< A", f"< {depth // 8}").replace("< B", f"< {depth // 16}")
    for case in range(4):
        a = random.integers(bounds.min, bounds.max, (16, depth), endpoint=True).astype(kind)
        b = random.integers(-128, 127, (depth, 8), endpoint=True).astype("int8")
        c = random.integers(-(2**31), 2**31, (16, 8)).astype("int32")
        if case == 0:  # the largest sums, which wrap
            a[:], b[:], c[:] = bounds.min if bounds.min else bounds.max, -128, 2**31 - 1
        product = a.astype(np.int64) @ b.astype(np.int64) + c
        expected = product.astype(np.uint64).astype(np.uint32).view(np.int32)
        arguments = [fragment_a(a), fragment_b(b), fragment_c(c)]
        order = ("forward", "reverse", 3, 4)[case]
        with load().order(order):
            result = run_cuda(source, arguments, capability=capability)[2]
        np.testing.assert_array_equal(result, fragment_c(expected))


LDMATRIX = Path(__file__).with_name("ldmatrix.cu").read_text(encoding="utf-8")


@pytest.mark.representatives(1)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("matrices", [1, 2, 4])
def test_ldmatrix(matrices, transposed):
    # "ldmatrix", .m8n8 .b16: rows come from the addresses of lanes 8 i to 8 i + 7; a lane gets two
    # halves of row `lane / 4`, of the transposed matrix with .trans.
    random = np.random.default_rng(matrices)
    rows = random.integers(0, 2**16, (32, 8)).astype("uint16")
    order = random.permutation(32).astype("int32")
    to = np.zeros((matrices, 32), "uint32")
    source = LDMATRIX.replace("xN", f"x{matrices}").replace("[N]", f"[{matrices}]")
    source = source.replace("< N", f"< {matrices}").replace("TRANS", "_trans" * transposed)
    expected = []
    for i in range(matrices):
        matrix = rows[order[8 * i : 8 * i + 8]]
        if transposed:
            matrix = matrix.T
        low, high = matrix[GROUP, 2 * THREAD], matrix[GROUP, 2 * THREAD + 1]
        expected.append(low.astype(np.uint32) | high.astype(np.uint32) << 16)
    result = run_cuda(source, [rows, order, to], observed=True)[2]
    np.testing.assert_array_equal(result, np.stack(expected))


SHUFFLES = Path(__file__).with_name("shuffles.cu").read_text(encoding="utf-8")


@pytest.mark.parametrize("order", ["forward", "reverse", 1, 2])
def test_shuffles(order):
    # "shfl.sync": segments of `width` lanes; a lane out of the segment gives the own value. By xor
    # a lane may read from the segments before its own.
    random = np.random.default_rng(1)
    x = random.integers(-(2**31), 2**31, 32).astype("int32")
    wide = random.integers(-(2**62), 2**62, 32)

    def inside(source: np.ndarray, first: np.ndarray, width: int) -> np.ndarray:
        return x[np.where((source >= first) & (source < first + width), source, LANES)]

    none = np.zeros(32, int)
    votes = np.sum((x & 1).astype(np.uint32) << LANES.astype(np.uint32), dtype=np.uint32)
    expected = [
        x,
        x[(LANES * 7 + 3) % 32],
        x[LANES // 8 * 8 + 5],
        x[LANES ^ 9],
        x[np.where((LANES ^ 12) < LANES // 8 * 8 + 8, LANES ^ 12, LANES)],
        inside(LANES + 3, none, 32),
        inside(LANES + 3, LANES // 16 * 16, 16),
        inside(LANES - 3, LANES // 16 * 16, 16),
        np.full(32, votes).view(np.int32),
        np.ones(32, np.int32),
    ]
    with load().order(order):
        a, b = run_cuda(SHUFFLES, [np.concatenate([x, np.zeros(288, "int32")]), wide])
    np.testing.assert_array_equal(a, np.concatenate(expected))
    np.testing.assert_array_equal(b, wide[::-1])


ARITHMETIC = Path(__file__).with_name("arithmetic.cu").read_text(encoding="utf-8")


def test_arithmetic():
    random = np.random.default_rng(2)
    n = 256
    a, b = random.integers(-(2**31), 2**31, (2, n))
    a[:4], b[:4] = (-(2**31), 2**31 - 1, 0, -1), (-(2**31), -(2**31), 5, -1)
    a32, b32, index = a.astype("int32"), b.astype("int32"), np.arange(n)
    arguments = [a32, b32, np.zeros(9 * n, "int32"), np.zeros(2 * n, "uint64")]
    _, _, c, d = run_cuda(ARITHMETIC, arguments, block=(n,))
    c = c.reshape(9, n)
    unsigned = [[int(x) & 0xFFFFFFFF for x in numbers] for numbers in (a, b)]
    np.testing.assert_array_equal(c[0], (a * b) >> 32)
    pairs = list(zip(*unsigned, strict=True))
    np.testing.assert_array_equal(c[1].view(np.uint32), [x * y >> 32 for x, y in pairs])
    np.testing.assert_array_equal(c[2], [32 - (x & 0xFFFF).bit_length() for x in unsigned[0]])
    expected = []
    for i, (x, y) in enumerate(pairs):
        selectors = i * 2654435761 & 0xFFFFFFFF
        data = [*x.to_bytes(4, "little"), *y.to_bytes(4, "little")]
        word = 0
        for byte in range(4):
            selector = selectors >> 4 * byte & 15
            value = data[selector & 7]
            if selector & 8:
                value = 0xFF if value & 0x80 else 0
            word |= value << 8 * byte
        expected.append(word)
    np.testing.assert_array_equal(c[3].view(np.uint32), expected)
    bytes_a, bytes_b = (x.view(np.int8).reshape(n, 4).astype(np.int64) for x in (a32, b32))
    np.testing.assert_array_equal(c[4], (bytes_a * bytes_b).sum(1) + index)
    np.testing.assert_array_equal(c[5], [x.bit_count() for x in unsigned[0]])
    lowest = [x & ~0xFF & -(x & ~0xFF) for x in unsigned[0]]
    np.testing.assert_array_equal(c[6], [x.bit_length() for x in lowest])
    numbers = np.stack([a >> 22, b >> 22, index - 130, index + 100], 1)
    for row, kind in ((7, "int8"), (8, "uint8")):
        bounds = np.iinfo(kind)
        packed = numbers.clip(bounds.min, bounds.max).astype(kind)
        np.testing.assert_array_equal(c[row], packed.view(np.int32)[:, 0])
    wide = [(int(x) << 20) % 2**64 * ((int(y) << 9) % 2**64) for x, y in zip(a, b, strict=True)]
    np.testing.assert_array_equal(d[:n], [product >> 64 for product in wide])
    widths = [((x & 0xFFFF) << 9).bit_length() for x in unsigned[0]]
    np.testing.assert_array_equal(d[n:], 64 - np.array(widths))


def test_reduction_of_a_warp():
    source = """
    #include <cuda.h>
    extern "C" __global__ void run(int* a) {
      a[threadIdx.x] = __reduce_add_sync(0xffffffff, a[threadIdx.x]);
    }
    """
    x = np.random.default_rng(3).integers(-(2**31), 2**31, 32)
    [result] = run_cuda(source, [x.astype("int32")], capability=80)
    assert (result.view(np.uint32) == int(x.sum()) & 0xFFFFFFFF).all()


def test_indices_of_threads():
    source = """
    #include <cuda.h>
    extern "C" __global__ void run(int* a) {
      const int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
      const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
      int* at = a + 8 * (block * blockDim.x * blockDim.y * blockDim.z + thread);
      at[0] = threadIdx.x; at[1] = threadIdx.y; at[2] = threadIdx.z;
      at[3] = blockIdx.x; at[4] = blockIdx.y; at[5] = blockIdx.z;
      at[6] = gridDim.x * 100 + gridDim.y * 10 + gridDim.z;
      at[7] = blockDim.x * 100 + blockDim.y * 10 + blockDim.z;
    }
    """
    grid, block = (3, 2, 4), (5, 7, 2)
    [result] = run_cuda(source, [np.zeros((24, 70, 8), "int32")], grid, block, observed=True)
    threads, blocks = np.arange(70), np.arange(24)[:, None]
    expected = np.stack(
        np.broadcast_arrays(
            threads % 5, threads // 5 % 7, threads // 35, blocks % 3, blocks // 3 % 2, blocks // 6,
            324, 572,
        ),
        axis=2,
    )  # fmt: skip
    np.testing.assert_array_equal(result, expected)
