"""Kernels as C: standalone, without a warning, and the same bits as from LLVM."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from ibert_tvm.targets import get_target
from ibert_tvm.targets.aot import BareModel, portable_description
from ibert_tvm.targets.aot.c_source import kernels_source
from ibert_tvm.targets.aot.weights import weights_assembly
from ibert_tvm.targets.toolchain import find_linker
from ibert_tvm.targets.weights import write_weights
from tests.cache import compiled_in_memory_once
from tests.targets.aot.bare_bert import assert_equal, expected, inputs_of
from tests.targets.aot.c_interface import Caller

SHAPES = [(1, 12), (2, 5)]
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wcast-align", "-Wundef", "-Werror")


@pytest.fixture(scope="module")
def in_c(quantized) -> BareModel:
    return compiled_in_memory_once(quantized, "x86-64", SHAPES, emit="c").bare


@pytest.fixture(scope="module")
def library(in_c: BareModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C sources and the weights, linked; with nothing for the linker to find."""
    folder = tmp_path_factory.mktemp("c")
    (folder / "ibert_model.h").write_text(in_c.header)
    (folder / "driver.c").write_text(in_c.driver_c)
    (folder / "kernels.c").write_text(kernels_source(in_c))
    (folder / "weights.s").write_text(weights_assembly(in_c, separate=True))
    write_weights(in_c.weights, in_c.parameters, in_c.weight_bytes, folder)
    compiler = find_linker(get_target("x86-64"))
    flags = ["-std=c99", "-O2", "-ffreestanding", "-fno-strict-aliasing", "-fPIC", *WARNINGS]
    sources = ["driver.c", "kernels.c", "weights.s"]
    command = [*compiler, *flags, "-shared", "-nostdlib", "-o", "model.so", *sources]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "model.so"


@pytest.mark.slow_cases(1)
@pytest.mark.slow
@pytest.mark.representatives(1)
@pytest.mark.parametrize("shape", SHAPES)
def test_c_gives_the_same_bits(
    quantized, in_c: BareModel, library: Path, shape: tuple[int, int]
) -> None:
    caller = Caller(library, max(in_c.arena_bytes.values()))
    for padding in (False, True):
        inputs = inputs_of(*shape, seed=3, padding=padding)
        assert_equal(caller.run(inputs), expected(quantized, inputs))


@pytest.mark.slow
def test_the_sources_call_nothing_and_know_no_floats(in_c: BareModel) -> None:
    text = kernels_source(in_c)
    code = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    assert re.findall(r"#include (.*)", code) == ["<stdbool.h>", "<stdint.h>"]
    assert not re.search(r"\b(?:float|double|TVM\w*|NULL)\b|\d\.\d|\df\b", code)
    called = set(re.findall(r"\b([A-Za-z_]\w*)\(", code)) - {"for", "if", "return", "while"}
    assert called == {kernel.symbol for kernel in in_c.kernels}


@pytest.mark.slow
def test_other_compilers_and_standards_take_it(in_c: BareModel, tmp_path: Path) -> None:
    (tmp_path / "kernels.c").write_text(kernels_source(in_c))
    compiler = find_linker(get_target("x86-64"))
    for flags in (["-std=c11", "-O0"], ["-std=c17", "-O3", "-fwrapv"]):
        command = [*compiler, *flags, *WARNINGS, "-c", "kernels.c"]
        subprocess.run(command, cwd=tmp_path, check=True)


@pytest.mark.parametrize(
    ("name", "dot", "microkernels"),
    [
        ("c99", "none", ()),
        ("cortex-m0", "muls", ("muls.c",)),
        ("cortex-m4", "smlad", ("smlad.c",)),
        ("cortex-m55", "smlad", ("smlad.c",)),
        ("rv32imc", "rv32m", ("rv32m.c",)),
        ("x86-amx", "none", ()),
    ],
)
def test_the_portable_form_has_microkernels_of_single_numbers_and_no_other_instructions(
    name: str, dot: str, microkernels: tuple[str, ...]
) -> None:
    target = portable_description(get_target(name))
    assert (target.dot.name, target.microkernels, target.vector_lanes) == (dot, microkernels, 1)
    assert target.q15_multiply == target.scalar_instructions == target.functions == ()
    assert target.name == name


@pytest.mark.slow
def test_microkernels_are_declared_and_their_operands_aligned(quantized) -> None:
    """C aligns arrays on the stack as their entries: those of halves are in the workspace."""
    compiled = compiled_in_memory_once(quantized, "cortex-m4", [(1, 4)], emit="c", prefix="tiny")
    text = kernels_source(compiled.bare)
    declared = (
        "void tiny_mk_smlad_2x2(const int16_t *a, const int16_t *b, int32_t *c, int32_t depth);"
    )
    assert declared in text and "ibert_mk" not in text
    called = set(re.findall(r"^ +(\w+_mk_\w+)\(", text, re.MULTILINE))
    assert called == {"tiny_mk_smlad_2x2", "tiny_mk_sxtb16"}
    arrays = re.findall(r"^ +u?int(\d+)_t \w+\[\d+\];", text, re.MULTILINE)
    assert arrays and not {"8", "16"} & set(arrays)


@pytest.mark.slow
def test_results_come_last(in_c: BareModel) -> None:
    """Every array that a kernel writes comes last, and is not constant."""
    text = kernels_source(in_c)
    for kernel in in_c.kernels:
        written = [parameter.written for parameter in kernel.parameters]
        assert written == sorted(written) and any(written)
        declared = re.search(rf"int32_t {kernel.symbol}\((.*)\);", text)
        assert declared is not None
        pieces = declared.group(1).split(", ")
        assert [not piece.startswith("const ") for piece in pieces[:-1]] == written
