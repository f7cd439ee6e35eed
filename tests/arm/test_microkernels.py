"""Every microkernel computes what its description says, bit for bit, in assembly and in plain C."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm.script import from_source

from ibert_tvm.relay_passes.spec import nibbles
from ibert_tvm.schedules.intrinsics.microkernels import (
    is_microkernel,
    microkernel_operands,
    microkernel_sources,
    widening_sources,
)
from ibert_tvm.targets import DotInstruction, TargetDescription, get_target, microkernels
from ibert_tvm.targets.machines.record import Linux
from ibert_tvm.targets.microkernels import compile_microkernels, microkernel_symbols
from ibert_tvm.targets.microkernels import microkernel_sources as microkernel_paths
from ibert_tvm.targets.processors import PROCESSORS
from ibert_tvm.targets.processors.cortex_m import MLA, MULS, SMLAD
from ibert_tvm.targets.processors.riscv import RV32M, RV64M
from tests.arm.linux_kernels import run_function
from tests.arm.qemu_board import run_kernel
from tests.arm.tools import board, needs
from tests.lowering import layout_of

TARGETS = {
    "cortex-m4": SMLAD,
    "cortex-m3": MLA,
    "cortex-m0": MULS,
    "rv32imc": RV32M,
    "rv64gc": RV64M,
}
# Around the sizes of the unrolled loops, and the longest rows that models have.
DEPTHS = {
    "smlad": (4, 8, 28, 32, 36, 60, 64, 384, 3072),
    "mla": (1, 2, 15, 16, 17, 33, 384, 3072),
    "rv32m": (1, 2, 7, 8, 9, 17, 384, 3072),
    "rv64m": (1, 2, 7, 8, 9, 17, 384, 3072),
    "muls": (1, 2, 31, 32, 33, 65, 384, 3072),
}
INT32 = np.iinfo(np.int32)
# Without assembly there are still the compiler's functions for instructions, if it has them.
FORMS = {
    "assembly": (),
    "functions": ("-DIBERT_PLAIN_C",),
    "plain": ("-DIBERT_PLAIN_C", "-U__ARM_FEATURE_SIMD32"),
}

_CALLS = """
#include <stdint.h>
{declarations}
static void (*const functions[])(const void *, const void *, void *, int32_t) = {{ {names} }};
int32_t run_cases(const int32_t *cases, const int8_t *a, const int8_t *b, int8_t *c)
{{
    const int32_t count = *cases++;
    for (int32_t i = 0; i < count; ++i, cases += 5) {{
        functions[cases[0]](a + cases[1], b + cases[2], c + cases[3], cases[4]);
    }}
    return count;
}}
"""

# The function that widens has one operand less than a product.
_WIDEN = """
#include <stdint.h>
void ibert_mk_sxtb16(const int8_t *, int16_t *, int32_t);
void widen(const void *a, const void *b, void *c, int32_t words)
{
    (void)b;
    ibert_mk_sxtb16(a, c, words);
}
"""


class Case:
    """A call: a function, its operands as arrays, and the result that it must leave."""

    def __init__(self, function: str, a: np.ndarray, b: np.ndarray, c: np.ndarray, size: int):
        self.function, self.a, self.b, self.c, self.size = function, a, b, c, size


def run_cases(
    description: TargetDescription,
    cases: list[Case],
    folder: Path,
    flags: tuple[str, ...] = (),
    sources: tuple[Path, ...] = (),
) -> list[np.ndarray]:
    """Run all calls in one program; the third operand of each afterwards."""
    names = sorted({case.function for case in cases})
    source = folder / "calls.c"
    kind = "const void *, const void *, void *, int32_t"
    declarations = "\n".join(f"extern void {name}({kind});" for name in names)
    source.write_text(_CALLS.format(declarations=declarations, names=", ".join(names)))
    table, offsets = [len(cases)], [0, 0, 0]
    for case in cases:
        table += [names.index(case.function), *offsets, case.size]
        for place, array in enumerate((case.a, case.b, case.c)):
            offsets[place] += -(-array.nbytes // 8) * 8
    buffers = [np.zeros(size, np.int8) for size in offsets]
    places = [table[1 + 5 * number : 6 + 5 * number] for number in range(len(cases))]
    for case, (_, *at, _size) in zip(cases, places, strict=True):
        for buffer, start, array in zip(buffers, at, (case.a, case.b, case.c), strict=True):
            buffer[start : start + array.nbytes] = array.ravel().view(np.int8)
    files = [source, *sources, *microkernel_paths(description)]
    arguments = [np.array(table, np.int32), *buffers]
    if description.system == "linux":
        status, arrays = run_function(description, files, "run_cases", arguments, flags)
    else:
        run = run_kernel(description, files, "run_cases", arguments, flags=flags)
        status, arrays = run.status, run.arrays
    assert status == len(cases)
    after = arrays[3]
    return [
        after[at[2] : at[2] + case.c.nbytes].view(case.c.dtype).reshape(case.c.shape)
        for case, (_, *at, _size) in zip(cases, places, strict=True)
    ]


def laid_out(
    matrix: np.ndarray, shape: tuple[int, ...], place: Callable[..., tuple], dtype: str
) -> np.ndarray:
    """Bring [rows or columns, depth] into the layout of a microkernel."""
    result = np.zeros(shape, dtype)
    row, k = np.indices(matrix.shape)
    result[place(row, k)] = matrix
    return result


def product_case(
    dot: DotInstruction, rows: int, a: np.ndarray, b: np.ndarray, c: np.ndarray
) -> Case:
    """Call for activations [rows, depth], weights [lanes, depth], accumulators [lanes, rows]."""
    operands, depth = microkernel_operands(dot), a.shape[1]
    tail = () if dot.rhs_dtype == "int16" else (0,)
    columns_first = operands.lhs if dot.rhs_dtype == "int16" else (lambda n, k: [k, n])
    return Case(
        f"ibert_mk_{dot.name}_{rows}x{dot.lanes}",
        laid_out(
            a,
            operands.lhs_shape(rows, depth),
            lambda m, k: tuple(operands.lhs(m, k)),
            dot.lhs_dtype,
        ),
        laid_out(
            b,
            operands.rhs_shape(dot.lanes, depth),
            lambda n, k: (*columns_first(n, k), *tail),
            dot.rhs_dtype,
        ),
        c.astype("int32"),
        depth,
    )


def expected(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """``c[n, m] + sum_k a[m, k] b[n, k]``, modulo 2^32."""
    return (c + b.astype("int64") @ a.astype("int64").T).astype("int32")


def operands_of(dot: DotInstruction, rows: int):
    """Random and extreme operands of products over many depths."""
    random = np.random.default_rng(rows)
    for depth in DEPTHS[dot.name]:
        shapes = (rows, depth), (dot.lanes, depth), (dot.lanes, rows)
        # Widened activations may come from int8 or uint8.
        a, b = random.integers(-128, 256, shapes[0]), random.integers(-128, 128, shapes[1])
        yield a, b, random.integers(INT32.min, INT32.max, shapes[2])
        for left in (-128, 127, 255):
            for right in (-128, 127):
                a, b = np.full(shapes[0], left), np.full(shapes[1], right)
                total = left * right * depth
                # To the bounds of an accumulator exactly, and one step beyond.
                for end in (INT32.max, INT32.min):
                    yield a, b, np.full(shapes[2], np.int64(end) - total).astype("int32")
        for m in range(rows):
            for n in range(dot.lanes):
                a, b = np.zeros(shapes[0], int), np.zeros(shapes[1], int)
                a[m, -1], b[n, -1] = 255, -128
                yield a, b, np.arange(dot.lanes * rows).reshape(shapes[2])


def row_counts(dot: DotInstruction) -> range:
    return range(dot.rows, dot.tile_rows + 1, dot.rows)


@pytest.mark.representatives(2)
@pytest.mark.qemu
@pytest.mark.parametrize("flags", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("name", TARGETS)
def test_products_are_exact(name: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    dot, description = TARGETS[name], board(name)
    operands = [(rows, *each) for rows in row_counts(dot) for each in operands_of(dot, rows)]
    cases = [product_case(dot, *each) for each in operands]
    results = run_cases(description, cases, tmp_path, flags)
    for (rows, a, b, c), got in zip(operands, results, strict=True):
        message = f"{rows} rows, depth {a.shape[1]}"
        np.testing.assert_array_equal(got, expected(a, b, c), err_msg=message)


@pytest.mark.qemu
@pytest.mark.parametrize("flags", FORMS.values(), ids=FORMS)
def test_widened_weights_lie_as_products_read_them(flags: tuple[str, ...], tmp_path: Path) -> None:
    needs("arm-none-eabi-gcc", "qemu-system-arm")
    random = np.random.default_rng(0)
    adapter = tmp_path / "adapter.c"
    adapter.write_text(_WIDEN)
    cases = []
    for words in (1, 2, 7, 8, 9, 16, 23, 96, 1536):
        a = random.integers(-128, 128, (words, 4)).astype("int8")
        a[0] = -128, 127, -1, 0
        # One word more than it may write.
        guarded = np.full((words + 1, 2, 2), 0x5A5A, "int16")
        cases.append(Case("widen", a, np.zeros(0, "int8"), guarded, words))
    results = run_cases(get_target("cortex-m4"), cases, tmp_path, flags, (adapter,))
    for case, got in zip(cases, results, strict=True):
        halves = case.a.reshape(-1, 2, 2).transpose(0, 2, 1)
        np.testing.assert_array_equal(got[:-1], halves)
        assert (got[-1] == 0x5A5A).all()


@pytest.mark.qemu
@pytest.mark.parametrize("flags", FORMS.values(), ids=FORMS)
def test_half_bytes_are_widened_as_the_specification_says(
    flags: tuple[str, ...], tmp_path: Path
) -> None:
    needs("arm-none-eabi-gcc", "qemu-system-arm")
    layout, random = layout_of(get_target("cortex-m4")), np.random.default_rng(0)
    cases, expected_weights = [], []
    for groups in (1, 2, 3, 12, 96):
        entries = random.integers(-8, 8, (2, groups, nibbles.GROUP)).astype("int8")
        scales = random.integers(1, 17, (2, groups))
        entries[0], scales[0] = -8, 16
        halves, of_groups = nibbles.pack(entries, scales)
        wide = layout.pack(nibbles.unpack(halves, of_groups, groups * nibbles.GROUP))
        expected_weights.append(wide.reshape(-1, 2, 2).swapaxes(1, 2).ravel())
        # Two entries more than it may write.
        guarded = np.full(64 * groups + 2, 0x5A5A, "int16")
        packed = layout.pack(halves), layout.pack(of_groups, "columns")
        cases.append(Case("ibert_mk_nibbles", *packed, guarded, groups))
    results = run_cases(get_target("cortex-m4"), cases, tmp_path, flags)
    for want, got in zip(expected_weights, results, strict=True):
        np.testing.assert_array_equal(got[:-2], want)
        assert (got[-2:] == 0x5A5A).all()


def compiled(source: str) -> Callable[..., None]:
    """A description, compiled for this machine."""
    function = from_source(source).with_attr("global_symbol", "main")
    return tvm.compile(tvm.IRModule({"main": function}), target="llvm")["main"]


@pytest.mark.representatives(1)
@pytest.mark.parametrize("name", TARGETS)
def test_descriptions_say_what_microkernels_compute(name: str) -> None:
    # The microkernels are held to the same numbers in the tests above.
    dot = TARGETS[name]
    assert is_microkernel(dot)
    random = np.random.default_rng(1)
    for rows in row_counts(dot):
        for depth in (max(dot.depth, 2), 12):
            a = random.integers(-128, 256, (rows, depth))
            b = random.integers(-128, 128, (dot.lanes, depth))
            c = random.integers(-(2**20), 2**20, (dot.lanes, rows))
            case = product_case(dot, rows, a, b, c)
            arrays = [tvm.runtime.tensor(array) for array in (case.a, case.b, case.c)]
            compiled(microkernel_sources(dot, rows, depth)[0])(*arrays)
            np.testing.assert_array_equal(arrays[2].numpy(), expected(a, b, c))


def test_the_description_of_widening_is_the_order_of_sxtb16() -> None:
    a = np.arange(-24, 24, dtype="int8").reshape(6, 2, 4)
    c = tvm.runtime.tensor(np.zeros((6, 2, 2, 2), "int16"))
    compiled(widening_sources(2, 24)[0])(tvm.runtime.tensor(a), c)
    np.testing.assert_array_equal(c.numpy(), a.reshape(6, 2, 2, 2).transpose(0, 1, 3, 2))


@pytest.mark.parametrize("name", TARGETS)
def test_implementations_call_functions_that_the_target_has(name: str) -> None:
    dot, description = TARGETS[name], get_target(name)
    symbols = microkernel_symbols(description)
    for rows in row_counts(dot):
        _, implementation, _ = microkernel_sources(dot, rows, 32)
        assert f"ibert_mk_{dot.name}_{rows}x{dot.lanes}" in symbols
        assert f'"ibert_mk_{dot.name}_{rows}x{dot.lanes}"' in implementation
    if dot.rhs_dtype == "int16":
        assert {"ibert_mk_sxtb16", "ibert_mk_nibbles"} <= set(symbols)


def test_every_file_belongs_to_a_target_and_compiles_to_what_it_says(tmp_path: Path) -> None:
    with_kernels = [one for one in PROCESSORS if one.microkernels]
    for description in with_kernels:
        board(description.name, run=False)
    from elftools.elf.elffile import ELFFile

    used = set()
    for description in with_kernels:
        used |= set(description.microkernels)
        defined = set()
        for stem, content in compile_microkernels(description).items():
            path = tmp_path / f"{stem}.o"
            path.write_bytes(content)
            with path.open("rb") as stream:
                symbols = ELFFile(stream).get_section_by_name(".symtab").iter_symbols()
                for symbol in symbols:
                    if symbol["st_info"]["bind"] != "STB_GLOBAL":
                        continue
                    if symbol["st_shndx"] != "SHN_UNDEF":
                        defined.add(symbol.name)
                        continue
                    machine = description.machine
                    called = isinstance(machine.system, Linux) and machine.is_call(symbol.name)
                    assert called, f"{stem} needs {symbol.name}"
        assert defined == set(microkernel_symbols(description))
    folder = Path(microkernels.__file__).parent
    assert used == {path.name for path in folder.glob("*.c")}


def test_a_target_without_microkernels_needs_no_compiler() -> None:
    assert compile_microkernels(get_target("x86-64")) == {}
