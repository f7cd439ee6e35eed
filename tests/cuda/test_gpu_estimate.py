"""The estimate from machine code: reading it, following warps, the model of a multiprocessor."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks.cuda.cells import Task
from benchmarks.cuda.errors import GpuBenchmarkError
from benchmarks.cuda.estimate import (
    cell_row,
    check_products,
    disassemble,
    estimate_kernel,
    with_all_layers,
)
from benchmarks.cuda.estimate_report import write_estimate
from benchmarks.cuda.sass import parse_sass
from benchmarks.cuda.turing import T4, occupancy, simulate
from benchmarks.cuda.warp import Launch, follow_warp
from benchmarks.models import Cell
from ibert_tvm.targets.cuda.compile import DEVICE_CODE
from tests.cuda.tools import cuda_toolchain

_HEAD = '#include "primitives.cuh"\nextern "C" __global__ void __launch_bounds__(128) '
# name: (source, executed instructions of warp 0 that are counted)
SOURCES = {
    "loop": _HEAD + "loop(int* out, const int* in) {\n"
    "  int sum = in[threadIdx.x];\n"
    "#pragma unroll 1\n"
    "  for (int i = 0; i < 37; ++i) sum = __mulhi(sum, 12345) ^ i;\n"
    "  out[threadIdx.x] = sum;\n}\n",
    "conflicts": _HEAD + "conflicts(int* out) {\n"
    "  __shared__ int a[32 * 33];\n"
    "  a[32 * threadIdx.x] = threadIdx.x;\n"  # all in one bank
    "  __syncthreads();\n"
    "  out[threadIdx.x] = a[33 * (threadIdx.x % 32)];\n}\n",  # all in different banks
    "parting": _HEAD + "parting(int* out) {\n"
    "  int x = threadIdx.x;\n"
    "  if (threadIdx.x % 2) {\n"
    "#pragma unroll 1\n"
    "    for (int i = 0; i < (int)(threadIdx.x % 8); ++i) x = __mulhi(x, 99991);\n"
    "  }\n"
    "  out[x & 127] = x;\n}\n",
    "peak": _HEAD + "peak(int* out, const int* in) {\n"
    "  uint32_t a[4], b[2] = {(uint32_t)in[0], (uint32_t)in[1]};\n"
    "  int c[8][4];\n"
    "  for (int i = 0; i < 32; ++i) c[i / 4][i % 4] = i, a[i % 4] = in[i];\n"
    "#pragma unroll 1\n"
    "  for (int loop = 0; loop < 20; ++loop) {\n"
    "#pragma unroll\n"
    "    for (int i = 0; i < 64; ++i) ibert::mma_16x8x32<int8_t>(c[i % 8], a, b);\n"
    "  }\n"
    "  int all = 0;\n"
    "  for (int i = 0; i < 32; ++i) all ^= c[i / 4][i % 4];\n"
    "  out[threadIdx.x] = all;\n}\n",
    "products": _HEAD + "products(int* out, const int* in) {\n"
    "  uint32_t a[4] = {1, 2, 3, 4}, b[2] = {5, (uint32_t)in[threadIdx.x]};\n"
    "  int c[4] = {};\n"
    "#pragma unroll 1\n"
    "  for (int i = 0; i < 10; ++i) ibert::mma_16x8x32<int8_t>(c, a, b);\n"
    "  out[threadIdx.x] = c[0] + c[1] + c[2] + c[3];\n}\n",
}


@pytest.fixture(scope="module")
def codes(tmp_path_factory):
    """The kernels above, as machine code for sm_75."""
    folder = tmp_path_factory.mktemp("sass")
    source, cubin = folder / "a.cu", folder / "a.cubin"
    head = '#include "primitives.cuh"\n'
    source.write_text(head + "".join(text.removeprefix(head) for text in SOURCES.values()))
    command = [cuda_toolchain().nvcc, "-cubin", "-arch=sm_75", "-O3", "-std=c++17"]
    subprocess.run([*command, f"-I{DEVICE_CODE}", "-o", cubin, source], check=True)
    return disassemble(cubin.read_bytes())


def _follow(code, threads=32, warp=0, block=0):
    launch = Launch((4, 1, 1), (threads, 1, 1), (block, 0, 0), warp)
    return follow_warp(code, launch)


def _counts(code, trace, operation):
    return sum(code[step.index].operation == operation for step in trace.executed)


def test_scheduling_is_read_from_the_upper_half():
    text = (
        ".text.k:\n"
        "        /*0000*/               @!P0 IMAD.WIDE R2, R0, 0x4, c[0x0][0x160] ;"
        "      /* 0x0000580004028625 */\n"
        "                                      /* 0x001fe200078e0203 */\n"
        ".L_x_1:\n"
        "        /*0010*/               BRA `(.L_x_1);   /* 0xfffffff000007947 */\n"
        "                                      /* 0x000fc0000383ffff */\n"
    )
    first, second = parse_sass(text)["k"]
    assert (first.operation, first.predicate, first.modifiers) == ("IMAD", "!P0", {"WIDE"})
    assert first.operands == ("R2", "R0", "0x4", "c[0x0][0x160]")
    assert (first.stall, first.waits, first.sets) == (1, (0,), ())
    assert (second.target, second.stall) == (0x10, 0)
    with pytest.raises(GpuBenchmarkError, match="the second half of the instruction"):
        parse_sass(text.replace("0x001fe200078e0203", "nothing"))


def test_loops_are_executed_as_often_as_they_say(codes):
    code = codes["loop"]
    trace = _follow(code)
    assert trace.undecided == set()
    multiplies = [i for i in code if i.operation == "IMAD" and "HI" in i.modifiers]
    assert len(multiplies) == 1
    executed = sum(code[step.index] is multiplies[0] for step in trace.executed)
    assert executed == 37
    # 128 bytes, in four sectors, read and written once.
    moved = [step.transfers for step in trace.executed if code[step.index].operation == "LDG"]
    assert moved == [4]


def test_conflicts_of_banks_are_counted(codes):
    code = codes["conflicts"]
    trace = _follow(code)
    passes = {
        code[step.index].operation: step.transfers for step in trace.executed if step.transfers
    }
    assert passes["STS"] == 32
    assert passes["LDS"] == 1


def test_lanes_that_part_meet_again(codes):
    code = codes["parting"]
    trace = _follow(code)
    assert trace.undecided == set()
    # Lanes 1, 3, 5 and 7 of eight go round so many times; the warp as often as the last of them.
    multiplies = [i for i in code if i.operation == "IMAD" and "HI" in i.modifiers]
    executed = sum(code[step.index] in multiplies for step in trace.executed)
    assert executed == 7
    assert _counts(code, trace, "STG") == 1


def test_matrix_instructions_are_counted_and_bound_a_kernel(codes):
    code = codes["products"]
    trace = _follow(code)
    assert _counts(code, trace, "IMMA") == 40  # 16 x 8 x 32 is four of 8 x 8 x 16
    launch = Launch((400, 1, 1), (128, 1, 1))
    found = estimate_kernel(code, launch, registers=32, shared_bytes=0)
    assert found.matrix_instructions == 400 * 4 * 40
    assert found.waves == 10 / 8  # ten blocks on each of 40, eight at a time
    assert (found.resident, found.limited_by) == (8, "warps")
    # Ten blocks with a warp per scheduler: 400 instructions of four cycles.
    assert found.microseconds >= 400 * 4 / 1590
    assert found.undecided == 0


def test_products_on_registers_reach_the_data_sheet(codes):
    launch = Launch((120, 1, 1), (128, 1, 1))
    found = estimate_kernel(codes["peak"], launch, registers=64, shared_bytes=0)
    tops = 2 * found.matrix_instructions * 1024 / found.microseconds * 1e-6
    assert 0.93 * T4.tops < tops <= 1.01 * T4.tops
    assert found.bound == "tensor"


def test_occupancy():
    assert occupancy(T4, 4, 128, 0).blocks == 4
    assert occupancy(T4, 4, 129, 0) == occupancy(T4, 4, 136, 0)
    assert occupancy(T4, 4, 32, 40 << 10).limit == "shared memory"
    assert occupancy(T4, 1, 16, 0).limit == "blocks"


def test_more_warps_hide_latency_but_add_no_units(codes):
    code = codes["products"]
    traces = [_follow(code, 128, warp) for warp in range(4)]
    one, eight = simulate(code, traces, 1, 1), simulate(code, traces, 8, 8)
    assert one.cycles < eight.cycles < 8 * one.cycles
    assert eight.busy["tensor"] > one.busy["tensor"]
    assert simulate(code, traces, 8, 1).cycles > 7 * one.cycles


def _call(layer, microseconds=10.0, **more):
    part = {
        **{"microseconds": microseconds, "bound": "shared", "busy": {"shared": 0.9}, "blocks": 40},
        **{"waves": 1.0, "resident": 2, "limited_by": "registers", "undecided": 0},
        **{"matrix_instructions": 1000},
    }
    return {
        **{"name": "k", "kind": "linear", "layer": layer, "macs": 1024 * 1000, "bytes": 320},
        **{
            "launches": 1,
            "median_ms": 1e-3 * microseconds,
            "min_ms": 0.0,
            "device": [part],
            **more,
        },
    }


def test_a_model_of_two_layers_stands_for_all(tmp_path: Path):
    names = ["embeddings.x", "encoder.layer.0.a", "encoder.layer.0.b", "encoder.layer.1.a"]
    calls = with_all_layers([_call(name) for name in [*names, "pooler"]], 4)
    assert [call["layer"] for call in calls] == [
        "embeddings.x",
        *(f"encoder.layer.{n}.{part}" for n in range(3) for part in "ab"),
        "encoder.layer.3.a",
        "pooler",
    ]
    row = cell_row(Task("bert-base", Cell(1, 128)), calls)
    assert row["launches"] == 9
    assert row["estimated_ms"] == pytest.approx(0.09 + 9 * 1.5e-3 + 10e-3)
    assert [(k["role"], k["calls"]) for k in row["kernels"]] == [
        *(("embeddings.x", 1), ("encoder.layer.*.a", 4), ("encoder.layer.*.b", 3), ("pooler", 1)),
    ]
    software = {"commit": "c0ffee", "modified": False, "time": "now"}
    machine = {**T4.__dict__}
    result = {"machine": machine, "software": software, "context": "x", "wrong": [], "rows": [
        {**row, "from_two_layers": True}]}  # fmt: skip
    text = write_estimate(result, tmp_path / "e")[1].read_text()
    assert "**No GPU was used.**" in text
    assert "Compiled were models of two layers" in text
    assert "| encoder.layer.*.a | 4 | 40.0 |" in text


def test_kernels_that_execute_too_few_products_are_reported():
    assert check_products([_call("a")]) == []
    assert check_products([_call("a", macs=1024 * 1000 + 1)]) == [
        "k: 1000 of 1001 matrix instructions"
    ]
