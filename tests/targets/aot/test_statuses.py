"""Every result code: what brings it about, and that nothing is touched then."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ibert_tvm.targets.aot.header import STATUSES
from ibert_tvm.targets.toolchain import find_linker
from tests.arm.small_bert import VOCABULARY
from tests.targets.aot.bare_bert import SHAPES
from tests.targets.aot.c_interface import (
    ABI_VERSION,
    Caller,
    Context,
    Hook,
    Shape,
    aligned,
    arguments,
    load,
)

CODES = {name.removeprefix("IBERT_ERROR_"): code for code, name, _ in STATUSES}
SHAPE = (2, 16)


@pytest.fixture
def caller(compiled, library_path: Path) -> Caller:
    return Caller(library_path, max(compiled.bare.arena_bytes.values()))


def arrays(caller: Caller, shape: tuple[int, int] = SHAPE) -> tuple[list, list]:
    """Good inputs, and outputs that hold rubbish."""
    inputs = [np.ones(shape, "int32") for _ in caller.tensors("input")]
    return inputs, caller.outputs(*shape)


def run(
    caller: Caller, inputs: Any, outputs: Any, shape: tuple[int, int] = SHAPE, context: Any = None
) -> int:
    """Status of a call; a refused one leaves the outputs as they were."""
    before = [None if array is None else array.copy() for array in outputs]
    chosen = ctypes.byref(caller.context) if context is None else context
    status = caller.library.ibert_run(chosen, *shape, *arguments(inputs, outputs))
    if status != 0:
        for array, old in zip(outputs, before, strict=True):
            if array is not None:
                np.testing.assert_array_equal(array, old)
    return status


def test_words_for_every_code(library_path: Path) -> None:
    library = load(library_path)
    for code, _, text in STATUSES:
        assert library.ibert_strerror(code).decode() == text
    for unknown in (-1, len(STATUSES), 2**31 - 1):
        assert library.ibert_strerror(unknown) == b"unknown status"
    assert library.ibert_abi_version() == ABI_VERSION


def init(library: Any, **changes: Any) -> tuple[int, Context]:
    """Status of `ibert_init` on good arguments but for some, and the context."""
    context = Context()
    context.magic = 0x11111111
    arena = aligned(1 << 22)
    good = {
        "context": ctypes.byref(context),
        "version": ABI_VERSION,
        "fingerprint": library.ibert_fingerprint(),
        "arena": arena.ctypes.data,
        "size": arena.size,
    }
    return library.ibert_init(*{**good, **changes}.values()), context


def test_init_refuses_what_cannot_work(library_path: Path, compiled) -> None:
    library = load(library_path)
    least = min(compiled.bare.arena_bytes.values())
    arena = aligned(1 << 22)
    address = arena.ctypes.data
    assert init(library)[0] == CODES["IBERT_OK"]
    assert init(library, size=least)[0] == CODES["IBERT_OK"]
    assert init(library, context=None)[0] == CODES["NULL_POINTER"]
    assert init(library, size=least - 1)[0] == CODES["ARENA_SIZE"]
    for changes, name in (
        ({"arena": None}, "NULL_POINTER"),
        ({"size": 0}, "ARENA_SIZE"),
        ({"arena": address + 32}, "ARENA_ALIGNMENT"),
        ({"arena": address + 1}, "ARENA_ALIGNMENT"),
    ):
        status, context = init(library, **changes)
        assert status == CODES[name]
        assert context.magic == 0, "a context that was refused works no more"
    for version in (0, ABI_VERSION + 1, 2**32 - 1):
        status, context = init(library, version=version)
        assert status == CODES["ABI_VERSION"]
        assert context.magic == 0x11111111, "a context of another version is left alone"
    model = library.ibert_fingerprint()
    for other in (0, model ^ 1, model ^ 1 << 63):
        status, context = init(library, fingerprint=other)
        assert status == CODES["MODEL"]
        assert context.magic == 0x11111111, "a context of another model is left alone"


def test_a_call_needs_a_context(caller: Caller) -> None:
    inputs, outputs = arrays(caller)
    assert run(caller, inputs, outputs) == CODES["IBERT_OK"]
    for context in (Context(), Context(magic=7)):
        assert run(caller, inputs, outputs, context=ctypes.byref(context)) == CODES["CONTEXT"]
        unknown = caller.library.ibert_run(ctypes.byref(context), 9, 9, *arguments(inputs, outputs))
        assert unknown == CODES["CONTEXT"]
    null = ctypes.c_void_p(None)
    assert run(caller, inputs, outputs, context=null) == CODES["NULL_POINTER"]


@pytest.mark.parametrize("shape", [(1, 16), (2, 32), (0, 0), (-1, -2), (2, 15)])
def test_a_shape_that_was_not_compiled(caller: Caller, shape: tuple[int, int]) -> None:
    inputs, outputs = arrays(caller)
    assert run(caller, inputs, outputs, shape=shape) == CODES["SHAPE"]


def test_an_arena_that_serves_smaller_shapes_only(compiled, library_path: Path) -> None:
    sizes = compiled.bare.arena_bytes
    small = min(sizes, key=lambda shape: sizes[shape])
    large = max(sizes, key=lambda shape: sizes[shape])
    assert sizes[small] < sizes[large]
    caller = Caller(library_path, sizes[large] - 1)
    assert run(caller, *arrays(caller, small), shape=small) == CODES["IBERT_OK"]
    assert run(caller, *arrays(caller, large), shape=large) == CODES["ARENA_SIZE"]


def test_pointers_that_are_null(caller: Caller) -> None:
    inputs, outputs = arrays(caller)
    for index in range(len(inputs)):
        given = [*inputs[:index], None, *inputs[index + 1 :]]
        assert run(caller, given, outputs) == CODES["NULL_POINTER"]
    for index in range(len(outputs)):
        given = [*outputs[:index], None, *outputs[index + 1 :]]
        assert run(caller, inputs, given) == CODES["NULL_POINTER"]
    null = ctypes.c_void_p(None)
    function = caller.library.ibert_run
    context = ctypes.byref(caller.context)
    good = arguments(inputs, outputs)
    for index in range(len(good)):
        given = [*good[:index], null, *good[index + 1 :]]
        assert function(context, *SHAPE, *given) == CODES["NULL_POINTER"]


def test_arrays_that_are_smaller_than_the_shape_needs(caller: Caller) -> None:
    inputs, outputs = arrays(caller)
    for group, size in ((inputs, 4), (outputs, 1)):
        for index, array in enumerate(group):
            whole = group[index]
            group[index] = array.view("uint8").ravel()[:-size]
            assert run(caller, inputs, outputs) == CODES["BUFFER_SIZE"]
            group[index] = whole
    larger = [np.ones((SHAPE[0] + 1, SHAPE[1]), "int32") for _ in inputs]
    assert run(caller, larger, outputs) == CODES["IBERT_OK"]


def shifted(array: np.ndarray, by: int) -> np.ndarray:
    """A copy of an array, `by` bytes behind a cache line."""
    memory = aligned(array.nbytes, offset=by)
    memory[:] = np.ascontiguousarray(array).view("uint8").ravel()
    return memory


def test_arrays_that_are_not_aligned_to_their_type(caller: Caller) -> None:
    inputs, outputs = arrays(caller)
    for index, array in enumerate(inputs):
        for by in (1, 2, 3):
            given = [*inputs[:index], shifted(array, by), *inputs[index + 1 :]]
            assert run(caller, given, outputs) == CODES["INPUT_ALIGNMENT"]
        given = [*inputs[:index], shifted(array, 4), *inputs[index + 1 :]]
        assert run(caller, given, outputs) == CODES["IBERT_OK"]
    for index, array in enumerate(outputs):
        given = [*outputs[:index], shifted(array, 1), *outputs[index + 1 :]]
        expected = "IBERT_OK" if array.itemsize == 1 else "OUTPUT_ALIGNMENT"
        assert run(caller, inputs, given) == CODES[expected]


def test_values_that_the_model_does_not_accept(caller: Caller) -> None:
    limits = {t.name.decode(): (t.low, t.high) for t in caller.tensors("input")}
    ids, flags = (0, VOCABULARY - 1), (0, 1)
    assert limits == {"input_ids": ids, "attention_mask": flags, "token_type_ids": flags}
    for index, (low, high) in enumerate(limits.values()):
        for value in (low - 1, high + 1, -(2**31), 2**31 - 1):
            inputs, outputs = arrays(caller)
            inputs[index][-1, -1] = value  # the last entry is looked at, too
            assert run(caller, inputs, outputs) == CODES["INPUT_RANGE"]
        for value in (low, high):
            inputs, outputs = arrays(caller)
            inputs[index][0, 0] = value
            assert run(caller, inputs, outputs) == CODES["IBERT_OK"]


def test_the_hook_sees_every_kernel_and_can_end_a_run(caller: Caller, compiled) -> None:
    (function,) = [f for f in compiled.bare.functions if (f.batch, f.seq_len) == SHAPE]
    total = len(function.calls)
    inputs, outputs = arrays(caller)
    seen: list[tuple[int, int, int]] = []
    nested: list[int] = []
    last = total

    def observe(user: int, done: int, of: int) -> int:
        seen.append((user, done, of))
        # The context is in use: a call from here must not run.
        nested.append(run(caller, inputs, caller.outputs(*SHAPE)))
        return int(done == last)

    hook = Hook(observe)
    context = ctypes.byref(caller.context)
    assert caller.library.ibert_set_hook(context, hook, 42) == CODES["IBERT_OK"]
    last = -1
    assert run(caller, inputs, outputs) == CODES["IBERT_OK"]
    assert seen == [(42, done, total) for done in range(total + 1)]
    assert set(nested) == {CODES["BUSY"]}
    for last in (0, 1, total):
        seen.clear()
        status = caller.library.ibert_run(context, *SHAPE, *arguments(inputs, outputs))
        assert status == CODES["CANCELLED"]
        assert [done for _, done, _ in seen] == list(range(last + 1))
    # A cancelled run leaves a context that works.
    assert caller.library.ibert_set_hook(context, Hook(), None) == CODES["IBERT_OK"]
    assert run(caller, inputs, outputs) == CODES["IBERT_OK"]
    zeros = Context()
    assert caller.library.ibert_set_hook(ctypes.byref(zeros), hook, 0) == CODES["CONTEXT"]
    assert caller.library.ibert_set_hook(None, hook, 0) == CODES["NULL_POINTER"]


def test_shapes_and_tensors_by_number(caller: Caller, compiled) -> None:
    library = caller.library
    shapes = []
    assert library.ibert_num_shapes() == len(SHAPES)
    for index in range(len(SHAPES)):
        shape = Shape()
        assert library.ibert_get_shape(index, ctypes.byref(shape)) == CODES["IBERT_OK"]
        assert shape.arena_bytes == compiled.bare.arena_bytes[shape.batch, shape.seq_len]
        shapes.append((shape.batch, shape.seq_len))
    assert shapes == sorted(SHAPES)
    for index in (-1, len(SHAPES)):
        assert library.ibert_get_shape(index, ctypes.byref(Shape())) == CODES["INDEX"]
    assert library.ibert_get_shape(0, None) == CODES["NULL_POINTER"]
    assert not library.ibert_input(-1) and not library.ibert_output(99)
    for kind, records in (
        ("input", compiled.bare.interface.inputs),
        ("output", compiled.bare.interface.outputs),
    ):
        for tensor, record in zip(caller.tensors(kind), records, strict=True):
            assert tensor.name.decode() == record.name
            assert float(tensor.scale) == record.scale
            assert (tensor.scale_multiplier, tensor.scale_shift) == record.dyadic_scale


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ((1, 1), (3, 7)),  # of 32, 32 and 21 tokens
        ((1, 8), (1, 32)),
        ((2, 7), (3, 7)),
        ((2, 8), (2, 16)),
        ((1, 32), (1, 32)),
        ((1, 33), None),
        ((4, 1), None),
        ((0, 1), None),
        ((1, 0), None),
    ],
)
def test_the_smallest_shape_that_holds_a_batch(
    caller: Caller, wanted: tuple[int, int], found: tuple[int, int] | None
) -> None:
    shape = Shape()
    status = caller.library.ibert_find_shape(*wanted, ctypes.byref(shape))
    if found is None:
        assert status == CODES["SHAPE"]
    else:
        assert status == CODES["IBERT_OK"]
        assert (shape.batch, shape.seq_len) == found
    assert caller.library.ibert_find_shape(*wanted, None) == CODES["NULL_POINTER"]


def test_a_kernel_that_fails_ends_the_run(compiled, tmp_path: Path) -> None:
    """None does today: the driver is linked with ones that do."""
    model = compiled.bare
    third = model.functions[0].calls[2].symbol
    kernels = "".join(
        f"int {kernel.symbol}(void) {{ return {int(kernel.symbol == third)}; }}\n"
        for kernel in model.kernels
    )
    weights = "".join(f"char {weight.symbol}[1];\n" for weight in model.weights)
    (tmp_path / "ibert_model.h").write_text(model.header)
    (tmp_path / "driver.c").write_text(model.driver_c)
    (tmp_path / "kernels.c").write_text(kernels + weights)
    command = [*find_linker(compiled.target), "-shared", "-fPIC", "-o", "model.so"]
    subprocess.run([*command, "driver.c", "kernels.c"], cwd=tmp_path, check=True)
    caller = Caller(tmp_path / "model.so", max(model.arena_bytes.values()))
    shape = (model.functions[0].batch, model.functions[0].seq_len)
    inputs, outputs = arrays(caller, shape)
    done: list[int] = []
    hook = Hook(lambda _user, count, _total: done.append(count) or 0)
    caller.library.ibert_set_hook(ctypes.byref(caller.context), hook, None)
    assert run(caller, inputs, outputs, shape=shape) == CODES["KERNEL"]
    assert done == [0, 1, 2]
