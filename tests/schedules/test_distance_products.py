"""Products with vectors for distances: their kernels on every family, and in programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from ibert_tvm.relay_passes import integer
from ibert_tvm.relay_passes.emit import KernelLayout
from ibert_tvm.relay_passes.errors import LoweringError
from ibert_tvm.relay_passes.integer.evaluate import evaluate
from ibert_tvm.relay_passes.integer.operators.positions import DistanceProducts
from ibert_tvm.relay_passes.integer.ranges import analyse_ranges
from ibert_tvm.relay_passes.integer.types import TensorType
from ibert_tvm.relay_passes.passes import IntegerProgram, lower_to_kernels
from ibert_tvm.relay_passes.spec.short_requantise import short_factors
from ibert_tvm.relay_passes.spec.short_softmax import ShortExponential
from ibert_tvm.schedules import schedule_kernel
from ibert_tvm.targets import TargetDescription, get_target
from tests.arm import bare_kernels
from tests.arm.linux_kernels import BoardKernels
from tests.arm.row_kernels import RowKernel
from tests.arm.tools import needs
from tests.cuda.stand_in_gpu import run_kernel
from tests.examples import examples
from tests.passes.execution import Compiled, inputs_of, reference
from tests.passes.small import kernels, small_program
from tests.schedules.machine import TARGETS, Kernels, runnable
from tests.snapshots import Messages

HEADS, WIDTH, POSITIONS = 3, 20, 17
CHANNELS = HEADS * WIDTH
# A length that vectors divide, and one that they do not, which is as long as there are positions.
LENGTHS = (16, POSITIONS)


def program() -> IntegerProgram:
    """One attention with both terms, whose queries, keys and values are projections."""

    def body(p: Any, inputs: Mapping[str, relax.Var]) -> list[relax.Var]:
        table = p.integers("word.weight", -127, 127, (50, CHANNELS), "int8")
        factor = p.integers("word.multiplier", 2**14, 2**15, (1,), "int32")
        call = integer.embedding(inputs["input_ids"], table, factor, name="word", shift=15)
        x = p.requantise("x", p.emit(call), 1.2, -127, 127, "int8")
        parts = {}
        for name in "qkv":
            weight = p.integers(f"{name}.weight", -127, 127, (CHANNELS, CHANNELS), "int8")
            bias = p.integers(f"{name}.bias", -999, 999, (CHANNELS,), "int32")
            product = p.emit(integer.linear(x, weight, bias, name=name))
            by = short_factors(np.full(CHANNELS, 2.0**-10), 2**26, -127, 127)
            constants = {"multiplier": by.multipliers, "pre_shift": by.pre_shifts}
            parts[name] = p.emit(
                integer.requantise_short(
                    product,
                    **{key: p.parameter(f"{name}.{key}", x) for key, x in constants.items()},
                    name=f"{name}.matmul",
                    shift=by.shift,
                    low=-127,
                    high=127,
                    dtype="int8",
                )
            )
        terms = {}
        for label, name in (("query_term", "q"), ("key_term", "k")):
            shape = (CHANNELS, 2 * POSITIONS - 1)
            vectors = p.integers(f"{label}.table", -9000, 9000, shape, "int16")
            given = {"name": label, "num_heads": HEADS, "shift": 7}
            terms[label] = p.emit(integer.distance_products(parts[name], vectors, **given))
        factors = short_factors(np.full(CHANNELS, 0.008), 2**14, -127, 127)
        attended = integer.attention(
            *parts.values(),
            inputs["attention_mask"],
            p.parameter("multiplier", factors.multipliers),
            **terms,
            name="attended",
            num_heads=HEADS,
            softmax="short",
            exponential=ShortExponential.from_scale(2e-4),
            shift=factors.shift,
            low=-127,
            high=127,
        )
        value = p.emit(attended)
        return [p.emit(integer.mask_tokens(value, inputs["attention_mask"], name="out"))]

    return small_program(body)


def term_kernels(target: TargetDescription, length: int = LENGTHS[1]) -> list[RowKernel]:
    """The kernels of terms of two sequences, with inputs and what the specification says."""
    layout = KernelLayout.of(target.dot, target.vector_lanes, target.functions)
    lowered = lower_to_kernels(program(), layout, [(2, length)])
    found = []
    for var, func in lowered.program.module.functions_items():
        layer = str(func.attrs["ibert.layer"]) if "ibert.layer" in func.attrs else ""
        if not isinstance(func, tirx.PrimFunc) or not layer.endswith("_term"):
            continue
        function = lowered.fused.module[var.name_hint]
        arrays = {}
        for param in function.params:
            shape = tuple(int(n) for n in param.ty.shape.values)
            known = lowered.fused.parameters.get(param.name)
            random = np.random.default_rng(1).integers(-127, 128, shape).astype("int8")
            arrays[param.name] = random if known is None else known
        (result,) = evaluate(lowered.fused.module, {}, arrays, var.name_hint)
        assert result.shape == (2, length, HEADS, length)
        buffers = [tuple(int(n) for n in param.shape) for param in func.params]
        shaped = [
            np.ascontiguousarray(array.reshape(shape))
            for array, shape in zip([*arrays.values(), result], buffers, strict=True)
        ]
        name = f"{var.name_hint}_{length}"
        found.append(RowKernel(name, func, shaped[:-1], shaped[-1:], result.size))
    assert len(found) in (1, 2), "kernels that differ in constants only may be one"
    return found


def arguments(kernel: RowKernel) -> list[np.ndarray]:
    """Arguments for a call whose results are wrong wherever nothing is written."""
    return [*kernel.inputs, *(np.full_like(array, 0x5A) for array in kernel.outputs)]


def test_entries_are_products_by_head_and_distance() -> None:
    kernel = term_kernels(get_target("x86-64-v3"))[0]
    x, table = (array.astype(np.int64) for array in kernel.inputs)
    assert x.shape == (2 * POSITIONS, 3 * CHANNELS), "a run of the merged projection"
    expected = kernel.outputs[0]
    for batch, i, h, j in ((0, 0, 0, 0), (1, 3, 2, 16), (0, 16, 1, 0), (1, 8, 0, 9)):
        # Queries are the first run, keys the second: the first kernel may be that of either.
        sums = []
        for run in range(2):
            first = run * CHANNELS + h * WIDTH
            row = x[batch * POSITIONS + i, first : first + WIDTH]
            sums.append(row @ table[h * WIDTH : (h + 1) * WIDTH, j - i + POSITIONS - 1])
        assert expected[batch, i, h, j] in [(total + 64) >> 7 for total in sums]


@pytest.mark.parametrize("name", examples(TARGETS, "x86-64-v3"))
def test_on_this_processor(name: str) -> None:
    target = runnable(name)
    found = [kernel for length in LENGTHS for kernel in term_kernels(target, length)]
    functions = {k.name: schedule_kernel(k.name, k.func, target) for k in found}
    compiled = Kernels(functions, target)
    for kernel in found:
        tensors = [tvm.runtime.tensor(array) for array in arguments(kernel)]
        compiled.library[kernel.name](*tensors)
        np.testing.assert_array_equal(tensors[-1].numpy(), kernel.outputs[0])


@pytest.mark.qemu
@pytest.mark.parametrize(
    ("name", "compiler", "emulator"),
    [
        ("rpi4", "aarch64-linux-gnu-gcc", "qemu-aarch64"),
        pytest.param("armv7-neon", "arm-linux-gnueabihf-gcc", "qemu-arm", marks=pytest.mark.slow),
    ],
)
def test_on_boards(name: str, compiler: str, emulator: str) -> None:
    needs(compiler, emulator)
    target = get_target(name)
    found = {k.name: k for length in LENGTHS for k in term_kernels(target, length)}
    functions = {key: schedule_kernel(key, k.func, target) for key, k in found.items()}
    compiled = BoardKernels(functions, target)
    for key, kernel in found.items():
        got = compiled.run(key, *arguments(kernel))[-1]
        np.testing.assert_array_equal(got.reshape(kernel.outputs[0].shape), kernel.outputs[0])


@pytest.mark.qemu
@pytest.mark.parametrize("name", examples(("cortex-m0", "cortex-m4", "cortex-m55"), "cortex-m4"))
def test_on_microcontrollers(name: str) -> None:
    needs("arm-none-eabi-gcc", "qemu-system-arm")
    kernel = term_kernels(get_target(name))[0]
    outputs, counts = bare_kernels.run(kernel, get_target(name))
    np.testing.assert_array_equal(outputs[0].reshape(kernel.outputs[0].shape), kernel.outputs[0])
    assert counts.floating_point == 0


@pytest.mark.parametrize("name", examples(("t4", "a100"), "t4"))
def test_on_a_gpu(name: str) -> None:
    kernel = term_kernels(get_target(name))[0]
    scheduled = schedule_kernel(kernel.name, kernel.func, get_target(name))
    got = run_kernel(scheduled, arguments(kernel), name)[-1]
    np.testing.assert_array_equal(got.reshape(kernel.outputs[0].shape), kernel.outputs[0])


def test_projections_of_terms_are_merged() -> None:
    """What reads queries and keys besides attention reads them in place."""
    target = get_target("x86-64-v3")
    layout = KernelLayout.of(target.dot, target.vector_lanes, target.functions)
    found = kernels(lower_to_kernels(program(), layout, [(2, 9)]).fused.module)
    linear = [calls for calls in found.values() if calls[0][0] == "linear"]
    assert len(linear) == 1


@pytest.mark.slow
@pytest.mark.parametrize("length", examples((1, 5, POSITIONS), 5))
def test_a_program_of_a_padded_batch(length: int) -> None:
    p, shape = program(), (3, length)
    ids, mask = inputs_of(*shape, 50, 0)
    got = Compiled(p, "x86-64-v3", [shape])(ids, mask)
    for one, other in zip(got, reference(p, ids, mask), strict=True):
        np.testing.assert_array_equal(one, other)


def test_programs_with_terms_keep_padding() -> None:
    target = get_target("x86-64-v3")
    layout = KernelLayout.of(target.dot, target.vector_lanes, target.functions)
    found = kernels(lower_to_kernels(program(), layout, [(2, 9)]).fused.module)
    assert not any(name.startswith("packing") for name in found)


def test_longer_sequences_are_refused(messages: Messages) -> None:
    report = analyse_ranges(program().module, program().parameters)
    assert report.max_seq_len == POSITIONS
    record = DistanceProducts("query_term", HEADS, 7)
    types = {
        "x": TensorType((2, POSITIONS + 1, CHANNELS), "int8"),
        "table": TensorType((CHANNELS, 2 * POSITIONS - 1), "int16"),
    }
    with messages.raises(LoweringError):
        record.result_type(types)
