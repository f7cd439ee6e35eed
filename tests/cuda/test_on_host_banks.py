"""Turns that the banks of shared memory take, as observed kernels are counted."""

from __future__ import annotations

import numpy as np
import pytest

from tests.arm.tools import needs
from tests.cuda.stand_in_gpu import load, run_cuda

HEAD = '#include "primitives.cuh"\nextern "C" __global__ void run(int* a) {\n'


def turns(body: str, block: int = 32, capability: int = 75) -> list[tuple[int, int, int]]:
    """(instructions, turns, least turns) of every place that accesses shared memory."""
    needs("g++")
    load().banks()
    source = f"{HEAD}__shared__ __align__(16) int s[2048]; const int t = threadIdx.x;\n{body}\n}}"
    arguments = [np.zeros(2048, np.int32)]
    run_cuda(source, arguments, block=(block,), capability=capability, observed=True)
    counts = load().banks()
    assert {count.kernel for count in counts} == {"run"}
    return [(count.instructions, count.turns, count.least) for count in counts]


@pytest.mark.representatives(2)
@pytest.mark.parametrize(
    ("index", "expected"),
    [
        ("t", 1),
        ("31 - t", 1),
        ("2 * t", 2),
        ("8 * t", 8),
        ("32 * t", 32),
        ("33 * t", 1),
        ("t < 16 ? t : 32 + t", 1),
        ("t < 16 ? t : 16 + t", 2),
    ],
)
def test_words(index, expected):
    assert turns(f"s[{index}] = 1;") == [(1, expected, 1)]


@pytest.mark.representatives(2)
@pytest.mark.parametrize(
    ("index", "expected"), [("0 * t", 1), ("t / 4 * 7", 1), ("t % 2 * 32", 2), ("t % 4 * 64", 4)]
)
def test_lanes_share_words(index, expected):
    stored, read = turns(
        f"for (int i = t; i < 256; i += 32) s[i] = 1; __syncwarp(); a[t] = s[{index}];"
    )
    assert stored == (8, 8, 8)
    assert read == (1, expected, 1)


@pytest.mark.representatives(2)
@pytest.mark.parametrize(
    ("index", "expected"), [("4 * t", 4), ("36 * t", 4), ("32 * t", 32), ("8 * t", 8)]
)
def test_vectors_are_served_by_quarters(index, expected):
    body = f"ibert::store_shared16(ibert::shared_address(s + {index}), make_uint4(1, 2, 3, 4));"
    assert turns(body) == [(1, expected, 4)]


def test_pairs_are_served_by_halves():
    assert turns("reinterpret_cast<uint2*>(s)[t] = make_uint2(1, 2);") == [(1, 2, 2)]
    assert turns("reinterpret_cast<uint2*>(s)[2 * t] = make_uint2(1, 2);") == [(1, 4, 2)]


@pytest.mark.representatives(2)
@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("16 * t", 4),  # eight rows side by side
        ("64 * t", 16),
        ("128 * t", 32),
        ("144 * t", 4),  # padded
        ("64 * t + 16 * ((t >> 1) & 3) - 64 * t % 64", 4),  # permuted
    ],
)
def test_ldmatrix(row, expected):
    body = f"""
    for (int i = t; i < 2048; i += 32) s[i] = 1;
    __syncwarp();
    uint32_t r[4];
    ibert::ldmatrix_x4(r, ibert::shared_address(s) + {row});
    a[t] = r[0];
    """
    counts = turns(body)
    assert counts[0] == (1, expected, 4)  # its place is a line, which is less than an address


def test_warps_are_counted_by_themselves():
    body = "for (int i = 0; i < 3; ++i) { s[t + 64 * i] = i; __syncthreads(); }"
    counts = turns(body, block=64)  # one place each time, if the loop is unrolled
    assert [sum(numbers) for numbers in zip(*counts, strict=True)] == [6, 6, 6]


def test_asynchronous_copies():
    body = """
    ibert::copy16_async(ibert::shared_address(s + 16 * t), a + 4 * t, true);
    ibert::commit_copies();
    ibert::wait_copies<0>();
    """
    assert turns(body, capability=80) == [(1, 16, 4)]
