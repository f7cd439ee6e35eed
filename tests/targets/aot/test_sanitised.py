"""The C that users link, under random calls: no byte outside of what was given, every branch."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from ibert_tvm.targets.aot import Interface, ShapeSpec, TensorSpec
from ibert_tvm.targets.aot.compile import Program, driver_text
from ibert_tvm.targets.aot.graph import Graph, KernelCall, Value, place_values
from ibert_tvm.targets.aot.header import Sizes, header_text
from ibert_tvm.targets.aot.model import BareKernel, KernelParameter
from ibert_tvm.targets.weights import Weight
from tests.processes import run_captured

# Neither the smallest nor the largest, by entries or by arena, comes first or last.
SHAPES = ((1, 24), (2, 8), (3, 8))
INTERFACE = Interface(
    functions=tuple(ShapeSpec(f"main_b{b}_s{s}", b, s) for b, s in SHAPES),
    inputs=(
        TensorSpec("input_ids", "int32", ("batch", "seq_len"), low=0, high=99),
        TensorSpec("pixels", "uint8", ("batch", 3, 2), 0.5, 128, 5, 200),
        TensorSpec("large", "int64", ("batch",)),
    ),
    outputs=(
        TensorSpec("bytes", "int8", ("batch", 5), 0.25),
        TensorSpec("words", "int16", ("batch", "seq_len"), 0.25),
        TensorSpec("sums", "int64", ("batch",), 0.25),
        TensorSpec("ids", "int32", ("batch", "seq_len"), 1.0),
    ),
    pad_token_id=1,
)
WEIGHT = Weight(0, "a.weight", "int8", (8,), 0, 8)
_WORKSPACE = 24
_FLAGS = ("-std=c11", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror", "-g")


def _program() -> tuple[Program, dict[tuple[int, int], int]]:
    """A model of every type of entry, with an output that is an input."""
    graphs, kernels = [], {}
    for batch, seq_len in SHAPES:
        tokens = batch * seq_len
        values = (
            *(Value("int32", tokens), Value("uint8", batch * 6), Value("int64", batch)),
            Value("int8", 8),
            *(Value("int32", 8 * tokens), Value("int8", batch * 5)),
            *(Value("int16", tokens), Value("int64", batch)),
        )
        calls = []
        for number, (reads, writes) in enumerate(
            (((0, 3), (4,)), ((4, 1), (5,)), ((4, 2), (6, 7)))
        ):
            name = f"k{number}_b{batch}"
            calls.append(KernelCall(name, "a layer", reads, writes))
            kernels[name] = BareKernel(
                f"ibert_kernel_{name}",
                name,
                "linear",
                "a layer",
                0,
                tuple(
                    KernelParameter(values[v].dtype, values[v].elements, v in writes, 1)
                    for v in (*reads, *writes)
                ),
                _WORKSPACE,
                b"",
                0,
                (),
            )
        graph = Graph(f"main_b{batch}_s{seq_len}", values, 3, 1, tuple(calls), (5, 6, 7, 0))
        graphs.append(place_values(graph, dict.fromkeys(kernels, _WORKSPACE), 64))
    arena = {shape: graph.arena.nbytes for shape, graph in zip(SHAPES, graphs, strict=True)}
    return Program(INTERFACE, tuple(graphs), kernels, (WEIGHT,)), arena


def _kernels(program: Program) -> str:
    """Kernels that touch every byte that they are given, and fail when they are told to."""
    text = "extern int kernels_until_failure;\nconst int8_t ibert_weight_0[8] = {1, 2, 3};\n"
    for kernel in program.kernels.values():
        arguments = [
            f"{'' if p.written else 'const '}{p.dtype}_t *a{i}"
            for i, p in enumerate(kernel.parameters)
        ]
        text += f"int32_t {kernel.symbol}({', '.join(arguments)}, uint8_t *workspace) {{\n"
        text += "    uint64_t sum = 0;\n    int i;\n"
        text += "    if (kernels_until_failure >= 0 && kernels_until_failure-- == 0) return 1;\n"
        for i, p in enumerate(kernel.parameters):
            body = f"a{i}[i] = ({p.dtype}_t)sum" if p.written else f"sum += (uint64_t)a{i}[i]"
            text += f"    for (i = 0; i < {p.elements}; i++) {body};\n"
        text += f"    for (i = 0; i < {kernel.workspace_bytes}; i++) workspace[i] = (uint8_t)i;\n"
        text += "    return 0;\n}\n"
    return text


def _typed() -> str:
    """The functions of one shape each, called with arrays."""
    given = [
        f"(const {spec.dtype}_t *)inputs[{i}], input_bytes[{i}]"
        for i, spec in enumerate(INTERFACE.inputs)
    ]
    given += [
        f"({spec.dtype}_t *)outputs[{i}], output_bytes[{i}]"
        for i, spec in enumerate(INTERFACE.outputs)
    ]
    listed = ", ".join(given)
    return (
        "static int32_t typed(ibert_context *context, int32_t batch, const void *const *inputs,\n"
        "                     const size_t *input_bytes, void *const *outputs,\n"
        "                     const size_t *output_bytes) {\n"
        f"    if (batch == 1) return ibert_run_b1_s24(context, {listed});\n"
        f"    if (batch == 2) return ibert_run_b2_s8(context, {listed});\n"
        f"    return ibert_run_b3_s8(context, {listed});\n}}\n"
    )


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sanitised")
    program, arena = _program()
    header = header_text(INTERFACE, Sizes(64, arena, 8, 0x1234567890ABCDEF), "A test.")
    (folder / "ibert_model.h").write_text(header)
    (folder / "driver.c").write_text(driver_text(program))
    (folder / "kernels.c").write_text(f"#include <stdint.h>\n{_kernels(program)}")
    calls = Path(__file__).with_name("random_calls.c").read_text()
    include = '#include "ibert_model.h"\n'
    (folder / "main.c").write_text(calls.replace(include, f"{include}\n{_typed()}"))
    return folder


def _build(folder: Path, *flags: str) -> None:
    files = ("driver.c", "kernels.c", "main.c")
    subprocess.run(["gcc", *_FLAGS, *flags, *files, "-o", "main"], cwd=folder, check=True)


def _run(folder: Path, seed: int, calls: int) -> int:
    done = run_captured(["./main", str(seed), str(calls)], cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    return int(done.stdout)


_SANITISERS = ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@pytest.mark.parametrize(
    "calls", [3_000, pytest.param(3_000_000, marks=pytest.mark.record)], ids=["some", "many"]
)
def test_random_calls_under_sanitisers(sources: Path, tmp_path: Path, calls: int) -> None:
    folder = tmp_path / "build"
    shutil.copytree(sources, folder)
    _build(folder, *_SANITISERS)
    assert _run(folder, 1, calls) > calls // 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("input_bytes[i] < count_bytes(tensor, shape)", "0"),
        ("output_bytes[i] < count_bytes(&output_tensors[i], shape)", "0"),
        ("context->arena_bytes < shape->arena_bytes", "0"),
    ],
)
def test_a_check_that_is_missing_is_found(
    sources: Path, tmp_path: Path, line: str, instead: str
) -> None:
    folder = tmp_path / "build"
    shutil.copytree(sources, folder)
    text = (folder / "driver.c").read_text()
    assert text.count(line) == 1
    (folder / "driver.c").write_text(text.replace(line, instead))
    _build(folder, *_SANITISERS, "-Wno-unused-parameter", "-Wno-unused-function")
    done = subprocess.run(["./main", "1", "30000"], cwd=folder, capture_output=True, check=False)
    assert done.returncode != 0 and b"AddressSanitizer" in done.stderr


def _coverage(folder: Path, file: str) -> None:
    """Every line and every branch of a file was taken."""
    done = run_captured(["gcov", "-b", "-c", f"main-{file}"], cwd=folder, check=True)
    section = done.stdout.split(f"File '{file}'")[1].split("File '")[0]
    shares = dict(re.findall(r"^(Lines executed|Taken at least once):([\d.]+)%", section, re.M))
    never = [
        line
        for line in (folder / f"{file}.gcov").read_text().splitlines()
        if "#####" in line or re.search(r"branch .* (never executed|taken 0)", line)
    ]
    assert shares == {"Lines executed": "100.00", "Taken at least once": "100.00"}, never


@pytest.mark.slow
def test_every_branch_of_the_driver_is_taken(sources: Path, tmp_path: Path) -> None:
    folder = tmp_path / "build"
    shutil.copytree(sources, folder)
    _build(folder, "-O0", "--coverage")
    assert sum(_run(folder, seed, 5_000) for seed in range(4)) > 1_000
    _coverage(folder, "driver.c")
